//! The steps of one part, forwards and back. Each finds out whether it is done already, so that
//! they can be gone on with after a crash wherever it was.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::guard::Guard;
use super::root::{Root, exchange, is_absent, look, move_to, names};
use super::stage::{PUTS, TAKES};
use super::steps::{Part, Put, SetMeta, Swap, Take};
use super::{HostConflict, HostLandError, Ours, Theirs};
use crate::fault;

/// Why the steps cannot be gone on with.
#[derive(Debug)]
pub(super) enum Stop {
    /// Somebody else changed something meanwhile.
    Conflict(HostConflict),
    /// Something failed.
    Failed(HostLandError),
}

impl From<HostLandError> for Stop {
    fn from(error: HostLandError) -> Self {
        Self::Failed(error)
    }
}

/// A part with its open root and staging directory.
pub(super) struct Steps<'a> {
    pub(super) root: &'a Root,
    pub(super) staging: &'a OwnedFd,
    pub(super) part: &'a Part,
}

impl Steps<'_> {
    fn failed<E: Into<io::Error>>(
        &self,
        action: &'static str,
        path: &[u8],
    ) -> impl FnOnce(E) -> HostLandError {
        HostLandError::step(action, &self.root.path, path)
    }

    fn conflict(&self, path: &[u8], ours: Ours, theirs: Theirs) -> Stop {
        Stop::Conflict(HostConflict {
            root: self.root.path.clone(),
            path: path.to_vec(),
            ours,
            theirs,
        })
    }

    /// What has a name in the staging directory.
    fn staged(&self, name: &str) -> Result<Option<Guard>, HostLandError> {
        look(self.staging, name.as_bytes()).map_err(self.failed("look at", name.as_bytes()))
    }

    /// Whether everything is taken.
    fn is_taken(&self) -> Result<bool, HostLandError> {
        let found = look(self.staging, PUTS).map_err(self.failed("look at", PUTS))?;
        Ok(found.is_some())
    }

    /// Does what is not done yet.
    pub(super) fn forward(&self) -> Result<(), Stop> {
        if !self.is_taken()? {
            for take in &self.part.takes {
                self.take(take)?;
            }
            for swap in &self.part.swaps {
                self.swap(swap)?;
            }
            move_to(self.staging, TAKES, self.staging, PUTS).map_err(self.failed("note", TAKES))?;
            fault::step();
        }
        for put in &self.part.puts {
            self.put(put)?;
        }
        for meta in &self.part.metas {
            self.meta(meta)?;
        }
        Ok(())
    }

    fn take(&self, take: &Take) -> Result<(), Stop> {
        let path = &take.path.0;
        let ours = if take.stays {
            Ours::Renamed
        } else {
            Ours::Deleted
        };
        if self.staged(&take.to)?.is_none() {
            let moved = self.root.entry(path).and_then(|entry| {
                move_to(&entry.dir, entry.name, self.staging, take.to.as_bytes())
            });
            match moved {
                Err(errno) if is_absent(errno) => {
                    return Err(self.conflict(path, ours, Theirs::Absent));
                }
                moved => moved.map_err(self.failed("take", path))?,
            }
            fault::step();
        }
        // Nobody reaches it by its path any more.
        let must_be_empty = !take.stays;
        match self.changed(&take.to, &take.was, must_be_empty)? {
            Some(theirs) => Err(self.conflict(path, ours, theirs)),
            None => Ok(()),
        }
    }

    /// What became of something that is staged now, since it was seen.
    fn changed(
        &self,
        name: &str,
        was: &Guard,
        must_be_empty: bool,
    ) -> Result<Option<Theirs>, HostLandError> {
        match self.staged(name)? {
            Some(found) if was.is_unchanged(&found) => {}
            _ => return Ok(Some(Theirs::Modified)),
        }
        if was.is_directory() && must_be_empty && !self.is_empty(name)? {
            return Ok(Some(Theirs::NotEmpty));
        }
        Ok(None)
    }

    fn is_empty(&self, name: &str) -> Result<bool, HostLandError> {
        let listed = self.root.list(&self.in_staging(name));
        Ok(listed
            .map_err(self.failed("list", name.as_bytes()))?
            .is_empty())
    }

    /// The path of something staged, from the root.
    fn in_staging(&self, name: &str) -> Vec<u8> {
        format!("{}/{name}", self.part.staging).into_bytes()
    }

    fn swap(&self, swap: &Swap) -> Result<(), Stop> {
        let path = &swap.path.0;
        if self.is_new(&swap.with, swap.is.as_ref())? {
            let swapped = self.root.entry(path).and_then(|entry| {
                exchange(self.staging, swap.with.as_bytes(), &entry.dir, entry.name)
            });
            match swapped {
                Err(errno) if is_absent(errno) => {
                    return Err(self.conflict(path, Ours::Modified, Theirs::Absent));
                }
                swapped => swapped.map_err(self.failed("replace", path))?,
            }
            fault::step();
        }
        match self.changed(&swap.with, &swap.was, true)? {
            Some(theirs) => Err(self.conflict(path, Ours::Modified, theirs)),
            None => Ok(()),
        }
    }

    /// Whether a staged name means the new thing still, and not what it is exchanged with.
    fn is_new(&self, name: &str, is: Option<&Guard>) -> Result<bool, HostLandError> {
        let found = self.staged(name)?;
        Ok(matches!((found, is), (Some(found), Some(is)) if is.is_same(&found)))
    }

    fn put(&self, put: &Put) -> Result<(), Stop> {
        let path = &put.path.0;
        if self.staged(&put.from)?.is_none() {
            return Ok(());
        }
        let moved = self
            .root
            .entry(path)
            .and_then(|entry| move_to(self.staging, put.from.as_bytes(), &entry.dir, entry.name));
        match moved {
            Err(Errno::EXIST) => Err(self.conflict(path, Ours::Added, Theirs::Added)),
            Err(errno) if is_absent(errno) => Err(self.conflict(path, Ours::Added, Theirs::Absent)),
            moved => {
                moved.map_err(self.failed("put", path))?;
                fault::step();
                Ok(())
            }
        }
    }

    fn meta(&self, meta: &SetMeta) -> Result<(), Stop> {
        let path = &meta.path.0;
        match self.opened(meta) {
            Ok(Some(fd)) => {
                meta.after
                    .set_open(&fd)
                    .map_err(self.failed("set the metadata of", path))?;
                fault::step();
                Ok(())
            }
            Ok(None) => Err(self.conflict(path, Ours::Metadata, Theirs::Modified)),
            Err(errno) if is_absent(errno) => {
                Err(self.conflict(path, Ours::Metadata, Theirs::Absent))
            }
            Err(errno) => Err(self.failed("open", path)(errno).into()),
        }
    }

    /// What metadata is to be set of, if it is at its path.
    fn opened(&self, meta: &SetMeta) -> rustix::io::Result<Option<OwnedFd>> {
        let fd = self.root.entry(&meta.path.0)?.open()?;
        let found = Guard::of(&rustix::fs::fstat(&fd)?);
        let is_it = matches!((&meta.is, &found), (Some(is), Some(found)) if is.is_same(found));
        Ok(is_it.then_some(fd))
    }

    /// Takes back what is done. What somebody else has changed of it stays as it is.
    pub(super) fn back(&self) -> Result<(), HostLandError> {
        if self.is_taken()? {
            for meta in self.part.metas.iter().rev() {
                self.unset(meta)?;
            }
            for put in self.part.puts.iter().rev() {
                self.unput(put)?;
            }
            move_to(self.staging, PUTS, self.staging, TAKES).map_err(self.failed("note", PUTS))?;
            fault::step();
        }
        for swap in self.part.swaps.iter().rev() {
            self.unswap(swap)?;
        }
        for take in self.part.takes.iter().rev() {
            self.untake(take)?;
        }
        Ok(())
    }

    fn unset(&self, meta: &SetMeta) -> Result<(), HostLandError> {
        let path = &meta.path.0;
        let Some(before) = &meta.before else {
            return Ok(());
        };
        match self.opened(meta) {
            Ok(Some(fd)) => {
                before
                    .set_open(&fd)
                    .map_err(self.failed("reset the metadata of", path))?;
                fault::step();
                Ok(())
            }
            Ok(None) => Ok(()),
            Err(errno) if is_absent(errno) => Ok(()),
            Err(errno) => Err(self.failed("open", path)(errno)),
        }
    }

    fn unput(&self, put: &Put) -> Result<(), HostLandError> {
        let path = &put.path.0;
        if self.staged(&put.from)?.is_some() {
            return Ok(());
        }
        let found = self.root.look(path).map_err(self.failed("look at", path))?;
        let is_it = matches!((&put.is, &found), (Some(is), Some(found)) if is.is_same(found));
        if !is_it {
            return Ok(());
        }
        let moved = |back: bool| {
            let entry = self.root.entry(path)?;
            if back {
                move_to(self.staging, put.from.as_bytes(), &entry.dir, entry.name)
            } else {
                move_to(&entry.dir, entry.name, self.staging, put.from.as_bytes())
            }
        };
        moved(false).map_err(self.failed("take back", path))?;
        // Somebody has put something into a directory that would have been new.
        let is_new = put.from.starts_with('n') && put.is.is_some_and(|is| is.is_directory());
        if is_new && !self.is_empty(&put.from)? {
            moved(true).map_err(self.failed("put back", path))?;
        }
        fault::step();
        Ok(())
    }

    fn unswap(&self, swap: &Swap) -> Result<(), HostLandError> {
        let path = &swap.path.0;
        if self.staged(&swap.with)?.is_none() || self.is_new(&swap.with, swap.is.as_ref())? {
            return Ok(());
        }
        let failed = self.failed("put back", path);
        let found = self.root.look(path).map_err(self.failed("look at", path))?;
        let entry = self.root.entry(path).map_err(self.failed("find", path))?;
        let done = match (found, &swap.is) {
            (Some(found), Some(is)) if is.is_same(&found) => {
                exchange(self.staging, swap.with.as_bytes(), &entry.dir, entry.name)
            }
            // What somebody else has put there stays, and ours waits.
            _ => move_to(self.staging, swap.with.as_bytes(), &entry.dir, entry.name),
        };
        done.map_err(failed)?;
        fault::step();
        Ok(())
    }

    fn untake(&self, take: &Take) -> Result<(), HostLandError> {
        if self.staged(&take.to)?.is_none() {
            return Ok(());
        }
        let path = &take.path.0;
        let moved = self
            .root
            .entry(path)
            .and_then(|entry| move_to(self.staging, take.to.as_bytes(), &entry.dir, entry.name));
        moved.map_err(self.failed("put back", path))?;
        fault::step();
        Ok(())
    }

    /// Removes the staging directory and what is in it: new things that were not needed.
    pub(super) fn clear(&self) -> Result<(), HostLandError> {
        clear(self.root, self.staging, &self.part.staging)
    }
}

/// Removes a staging directory with what is in it. A directory in it has to be empty.
pub(super) fn clear(root: &Root, staging: &OwnedFd, name: &str) -> Result<(), HostLandError> {
    for one in names(staging).map_err(HostLandError::step("list", &root.path, name.as_bytes()))? {
        let removed = match unlinkat(staging, &one[..], AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => unlinkat(staging, &one[..], AtFlags::REMOVEDIR),
            removed => removed,
        };
        removed.map_err(HostLandError::step("remove", &root.path, &one))?;
        fault::step();
    }
    unlinkat(root.fd(), name, AtFlags::REMOVEDIR)
        .and_then(|()| rustix::fs::fsync(root.fd()))
        .map_err(HostLandError::step("remove", &root.path, name.as_bytes()))?;
    fault::step();
    Ok(())
}
