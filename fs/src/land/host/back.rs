//! The steps of one part, back: what is done is taken back.
//!
//! What somebody else has put or changed meanwhile stays at its path. What was there before gets a
//! name beside it then, so that nothing is lost and nothing has to wait.

use rustix::io::Errno;

use super::apply::Steps;
use super::guard::Guard;
use super::root::{exchange, is_absent, move_to};
use super::stage::{PUTS, TAKES};
use super::steps::{Put, SetMeta, Swap, Take};
use super::{HostConflict, HostLandError, Ours, STAGING, Theirs};
use crate::fault;

/// Longest name of a file on Linux.
const NAME_MAX: usize = 255;

/// What could not be as it was, and the first error.
#[derive(Default)]
struct Back {
    conflicts: Vec<HostConflict>,
    failed: Option<HostLandError>,
}

impl Back {
    /// One step. The others are taken back all the same.
    fn step(&mut self, done: Result<Option<HostConflict>, HostLandError>) {
        match done {
            Ok(conflict) => self.conflicts.extend(conflict),
            Err(error) => {
                self.failed.get_or_insert(error);
            }
        }
    }

    fn done(&mut self) -> Result<(), HostLandError> {
        self.failed.take().map_or(Ok(()), Err)
    }
}

/// Whether a new thing is as it was put.
fn is_as_put(is: Option<&Guard>, found: &Guard) -> bool {
    is.is_some_and(|is| is.is_unchanged(found))
}

impl Steps<'_> {
    /// Takes back what is done, and says where something else is at a path now.
    pub(super) fn back(&self) -> Result<Vec<HostConflict>, HostLandError> {
        let mut back = Back::default();
        if self.is_taken()? {
            for meta in self.part.metas.iter().rev() {
                back.step(self.unset(meta).map(|()| None));
            }
            for put in self.part.puts.iter().rev() {
                back.step(self.unput(put));
            }
            back.done()?;
            move_to(self.staging, PUTS, self.staging, TAKES).map_err(self.failed("note", PUTS))?;
            fault::step();
        }
        for swap in self.part.swaps.iter().rev() {
            back.step(self.unswap(swap));
        }
        for take in self.part.takes.iter().rev() {
            back.step(self.untake(take));
        }
        back.done()?;
        Ok(back.conflicts)
    }

    fn unset(&self, meta: &SetMeta) -> Result<(), HostLandError> {
        let path = &meta.path.0;
        let fd = match self.opened(meta) {
            Ok(Some(fd)) => fd,
            Ok(None) => return Ok(()),
            Err(errno) if is_absent(errno) => return Ok(()),
            Err(errno) => return Err(self.failed("open", path)(errno)),
        };
        match &meta.before {
            Some(before) if self.is_untouched(meta, &fd)? => before
                .set_open(&fd)
                .map_err(self.failed("reset the metadata of", path))?,
            Some(_) => {}
            // A new directory, whose mode may keep everybody from taking it away.
            None => super::meta::make_writable(&fd).map_err(self.failed("open", path))?,
        }
        fault::step();
        Ok(())
    }

    fn unput(&self, put: &Put) -> Result<Option<HostConflict>, HostLandError> {
        let path = &put.path.0;
        // What was moved goes back with what others did to it; what is new is theirs then.
        let is_new = put.from.starts_with('n');
        if self.staged(&put.from)?.is_none() {
            let found = self.root.find(path)?;
            let Some(found) = found.filter(|found| put.is.is_some_and(|is| is.is_same(found)))
            else {
                return Ok(None);
            };
            if is_new && !is_as_put(put.is.as_ref(), &found) {
                return Ok(None);
            }
            let moved = self.root.entry(path).and_then(|entry| {
                move_to(&entry.dir, entry.name, self.staging, put.from.as_bytes())
            });
            moved.map_err(self.failed("take back", path))?;
            fault::step();
        }
        // Also after a crash in between.
        if is_new && !self.is_untouched_new(&put.from, put.is.as_ref())? {
            return self.put_back(path, &put.from, Ours::Added);
        }
        Ok(None)
    }

    /// Whether nobody has changed a new thing that is staged again, where nobody sees it.
    fn is_untouched_new(&self, name: &str, is: Option<&Guard>) -> Result<bool, HostLandError> {
        let found = self.staged(name)?;
        Ok(match found {
            Some(found) if found.is_directory() => self.is_empty(name)?,
            Some(found) => is_as_put(is, &found),
            None => false,
        })
    }

    fn unswap(&self, swap: &Swap) -> Result<Option<HostConflict>, HostLandError> {
        let (path, with) = (&swap.path.0, swap.with.as_bytes());
        if self.staged(&swap.with)?.is_none() {
            return Ok(None);
        }
        let exchanged = || {
            let entry = self.root.entry(path)?;
            exchange(self.staging, with, &entry.dir, entry.name)
        };
        if !self.is_new(&swap.with, swap.is.as_ref())? {
            let found = self.root.find(path)?;
            if !found.is_some_and(|found| is_as_put(swap.is.as_ref(), &found)) {
                return self.put_back(path, &swap.with, Ours::Modified);
            }
            exchanged().map_err(self.failed("put back", path))?;
            fault::step();
        }
        // Also after a crash in between.
        if self.is_untouched_new(&swap.with, swap.is.as_ref())? {
            return Ok(None);
        }
        match exchanged() {
            // Nothing is there any more: theirs comes back.
            Err(errno) if is_absent(errno) => {}
            done => done.map_err(self.failed("put back", path))?,
        }
        fault::step();
        self.put_back(path, &swap.with, Ours::Modified)
    }

    fn untake(&self, take: &Take) -> Result<Option<HostConflict>, HostLandError> {
        if self.staged(&take.to)?.is_none() {
            return Ok(None);
        }
        let ours = if take.stays {
            Ours::Renamed
        } else {
            Ours::Deleted
        };
        self.put_back(&take.path.0, &take.to, ours)
    }

    /// Puts something back that was taken: to its path, or beside it if something else is there.
    fn put_back(
        &self,
        path: &[u8],
        staged: &str,
        ours: Ours,
    ) -> Result<Option<HostConflict>, HostLandError> {
        let moved = self
            .root
            .entry(path)
            .and_then(|entry| move_to(self.staging, staged.as_bytes(), &entry.dir, entry.name));
        let theirs = match moved {
            Err(Errno::EXIST) => Theirs::Modified,
            Err(errno) if is_absent(errno) => Theirs::Absent,
            moved => {
                moved.map_err(self.failed("put back", path))?;
                fault::step();
                return Ok(None);
            }
        };
        let saved = self.put_beside(path, staged)?;
        let root = self.root.path.display();
        let (path, shown) = (path.to_vec(), String::from_utf8_lossy(&saved));
        tracing::warn!(%root, path = %String::from_utf8_lossy(&path), saved = %shown,
            "somebody else's stays; what was there before is beside it");
        Ok(Some(HostConflict {
            root: self.root.path.clone(),
            path,
            ours,
            theirs,
            saved: Some(saved),
        }))
    }

    /// Gives something a name beside a path; in the root, if no way leads there any more.
    fn put_beside(&self, path: &[u8], staged: &str) -> Result<Vec<u8>, HostLandError> {
        let (dir, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(at) => (&path[..=at], &path[at + 1..]),
            None => (&b""[..], path),
        };
        let of = self.part.staging.strip_prefix(STAGING).unwrap_or_default();
        let of = of.get(..8).unwrap_or(of);
        for (dir, number) in (0..100).flat_map(|number| [(dir, number), (&b""[..], number)]) {
            let ending = match number {
                0 => format!(".before-{of}"),
                number => format!(".before-{of}-{number}"),
            };
            let kept = name.len().min(NAME_MAX - ending.len());
            let saved = [dir, &name[..kept], ending.as_bytes()].concat();
            let moved = self
                .root
                .entry(&saved)
                .and_then(|entry| move_to(self.staging, staged.as_bytes(), &entry.dir, entry.name));
            match moved {
                Err(Errno::EXIST) => {}
                Err(errno) if is_absent(errno) && !dir.is_empty() => {}
                moved => {
                    moved.map_err(self.failed("put back", &saved))?;
                    fault::step();
                    return Ok(saved);
                }
            }
        }
        Err(self.failed("put back", path)(Errno::EXIST))
    }
}
