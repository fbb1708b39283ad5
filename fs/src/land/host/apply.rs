//! The steps of one part. Each finds out whether it is done already, so that
//! they can be gone on with after a crash wherever it was.

use std::io;
use std::os::fd::OwnedFd;

use rustix::fs::{AtFlags, unlinkat};
use rustix::io::Errno;

use super::guard::Guard;
use super::meta::Meta;
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
    pub(super) fn failed<E: Into<io::Error>>(
        &self,
        action: &'static str,
        path: &[u8],
    ) -> impl FnOnce(E) -> HostLandError {
        HostLandError::step(action, &self.root.path, path)
    }

    pub(super) fn conflict(&self, path: &[u8], ours: Ours, theirs: Theirs) -> Stop {
        Stop::Conflict(HostConflict {
            root: self.root.path.clone(),
            path: path.to_vec(),
            ours,
            theirs,
            saved: None,
        })
    }

    /// What has a name in the staging directory.
    pub(super) fn staged(&self, name: &str) -> Result<Option<Guard>, HostLandError> {
        look(self.staging, name.as_bytes()).map_err(self.failed("look at", name.as_bytes()))
    }

    /// Whether everything is taken.
    pub(super) fn is_taken(&self) -> Result<bool, HostLandError> {
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

    pub(super) fn is_empty(&self, name: &str) -> Result<bool, HostLandError> {
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
    pub(super) fn is_new(&self, name: &str, is: Option<&Guard>) -> Result<bool, HostLandError> {
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
            Ok(Some(fd)) if !self.is_untouched(meta, &fd)? => {
                Err(self.conflict(path, Ours::Metadata, Theirs::Modified))
            }
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

    /// Whether nobody else has changed what metadata is to be set of, as far as these steps are.
    pub(super) fn is_untouched(&self, meta: &SetMeta, fd: &OwnedFd) -> Result<bool, HostLandError> {
        let (Some(before), Some(is)) = (&meta.before, &meta.is) else {
            return Ok(true);
        };
        let look = || -> io::Result<bool> {
            let Some(found) = Guard::of(&rustix::fs::fstat(fd)?) else {
                return Ok(false);
            };
            let dates = [*is, meta.after.dated(*is)];
            Ok(dates.iter().any(|is| is.is_unchanged(&found))
                && Meta::of_open(fd)?.is_between(before, &meta.after))
        };
        look().map_err(self.failed("look at", &meta.path.0))
    }

    /// What metadata is to be set of, if it is at its path.
    pub(super) fn opened(&self, meta: &SetMeta) -> rustix::io::Result<Option<OwnedFd>> {
        let fd = self.root.entry(&meta.path.0)?.open()?;
        let found = Guard::of(&rustix::fs::fstat(&fd)?);
        let is_it = matches!((&meta.is, &found), (Some(is), Some(found)) if is.is_same(found));
        Ok(is_it.then_some(fd))
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
