//! Before anything is touched: is everything still what was seen? What became what the plan wants
//! by somebody else's hand is no conflict, and needs no step.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags, openat, readlinkat};

use super::guard::Guard;
use super::meta::Meta;
use super::root::{Entry, Root, is_absent, path_in};
use super::steps::{Steps, joined};
use super::{HostConflict, HostLandError, NewKind, NewThing, Ours, Source, Theirs};
use crate::attr::FileKind;

/// Bytes compared at once.
const CHUNK: usize = 256 << 10;

/// A part that is looked at.
pub(super) struct Check<'a> {
    pub(super) root: &'a Root,
    pub(super) source: &'a dyn Source,
    /// Where earlier landings keep what they took away.
    pub(super) kept: &'a Path,
}

impl Check<'_> {
    /// Leaves out steps that are not needed, and says which cannot be done.
    pub(super) fn run(&self, steps: &mut Steps) -> Result<Vec<HostConflict>, HostLandError> {
        let mut conflicts = Vec::new();
        self.takes(steps, &mut conflicts)?;
        self.swaps(steps, &mut conflicts)?;
        self.puts(steps, &mut conflicts)?;
        self.metas(steps, &mut conflicts)?;
        steps.leave_out();
        conflicts.sort_by(|a, b| a.path.cmp(&b.path));
        conflicts.dedup_by(|a, b| a.path == b.path);
        Ok(conflicts)
    }

    fn conflict(&self, path: &[u8], ours: Ours, theirs: Theirs) -> HostConflict {
        HostConflict {
            root: self.root.path.clone(),
            path: path.to_vec(),
            ours,
            theirs,
            saved: None,
        }
    }

    fn takes(
        &self,
        steps: &mut Steps,
        conflicts: &mut Vec<HostConflict>,
    ) -> Result<(), HostLandError> {
        let mut kept = Vec::new();
        for take in std::mem::take(&mut steps.takes) {
            let path = &take.path.0;
            let ours = if take.stays {
                Ours::Renamed
            } else {
                Ours::Deleted
            };
            match self.root.find(path)? {
                // Somebody else removed it as well.
                None if !take.stays => continue,
                None => conflicts.push(self.conflict(path, ours, Theirs::Absent)),
                Some(found) if !self.is_untouched(steps, path, &take.was, &found)? => {
                    conflicts.push(self.conflict(path, ours, Theirs::Modified));
                }
                Some(_) if take.was.is_directory() && !take.stays => {
                    if self.has_others(steps, path)? {
                        conflicts.push(self.conflict(path, ours, Theirs::NotEmpty));
                    }
                }
                Some(_) => {}
            }
            kept.push(take);
        }
        steps.takes = kept;
        Ok(())
    }

    /// Whether nothing has happened to what is at a path, its metadata included where that is told.
    fn is_untouched(
        &self,
        steps: &Steps,
        path: &[u8],
        was: &Guard,
        found: &Guard,
    ) -> Result<bool, HostLandError> {
        if !was.is_untouched(found) {
            return Ok(false);
        }
        let Some(seen) = steps.seen_at(path).filter(|_| !was.tells_metadata()) else {
            return Ok(true);
        };
        Ok(self.meta(path)?.is_as_left(seen))
    }

    /// Whether a directory that is to go has something in it that does not.
    fn has_others(&self, steps: &Steps, path: &[u8]) -> Result<bool, HostLandError> {
        let names =
            self.root
                .list(path)
                .map_err(HostLandError::step("list", &self.root.path, path))?;
        let stays = |name: &Vec<u8>| !steps.is_taken(&joined(path, name));
        Ok(names.iter().any(stays))
    }

    fn swaps(
        &self,
        steps: &mut Steps,
        conflicts: &mut Vec<HostConflict>,
    ) -> Result<(), HostLandError> {
        let mut kept = Vec::new();
        for swap in std::mem::take(&mut steps.swaps) {
            let path = &swap.path.0;
            match self.root.find(path)? {
                None => conflicts.push(self.conflict(path, Ours::Modified, Theirs::Absent)),
                Some(found) if self.is_untouched(steps, path, &swap.was, &found)? => {
                    if swap.was.is_directory() && self.has_others(steps, path)? {
                        conflicts.push(self.conflict(path, Ours::Modified, Theirs::NotEmpty));
                    }
                }
                Some(found) => {
                    if self.is_wanted(steps, path, path, &found)? {
                        steps.not_new(path, found);
                        continue;
                    }
                    conflicts.push(self.conflict(path, Ours::Modified, Theirs::Modified));
                }
            }
            kept.push(swap);
        }
        steps.swaps = kept;
        Ok(())
    }

    fn puts(
        &self,
        steps: &mut Steps,
        conflicts: &mut Vec<HostConflict>,
    ) -> Result<(), HostLandError> {
        let mut kept = Vec::new();
        for put in std::mem::take(&mut steps.puts) {
            let path = &put.path.0;
            let ours = if put.is.is_some() {
                Ours::Renamed
            } else {
                Ours::Added
            };
            if let Some(place) = steps.place(path)
                && !steps.is_taken(&place)
            {
                if !self.leads_somewhere(&place)? {
                    conflicts.push(self.conflict(path, ours, Theirs::Absent));
                } else if let Some(found) = self.root.find(&place)? {
                    if put.is.is_none() && self.is_wanted(steps, path, &place, &found)? {
                        steps.not_new(path, found);
                        continue;
                    }
                    conflicts.push(self.conflict(path, ours, Theirs::Added));
                }
            }
            kept.push(put);
        }
        steps.puts = kept;
        Ok(())
    }

    fn leads_somewhere(&self, path: &[u8]) -> Result<bool, HostLandError> {
        match self.root.entry(path) {
            Ok(_) => Ok(true),
            Err(errno) if is_absent(errno) => Ok(false),
            Err(errno) => Err(HostLandError::step("find", &self.root.path, path)(errno)),
        }
    }

    fn metas(
        &self,
        steps: &mut Steps,
        conflicts: &mut Vec<HostConflict>,
    ) -> Result<(), HostLandError> {
        for mut meta in std::mem::take(&mut steps.metas) {
            let path = meta.path.0.clone();
            let Some(was) = meta.is else {
                // Of a new directory, unless it turned out not to be needed.
                if steps.is_new(&path) {
                    steps.metas.push(meta);
                }
                continue;
            };
            match self.root.find(&meta.from.0)? {
                None => conflicts.push(self.conflict(&path, Ours::Metadata, Theirs::Absent)),
                Some(found) => {
                    let present = self.meta(&meta.from.0)?;
                    if !self.is_untouched(steps, &meta.from.0, &was, &found)? {
                        // Somebody else set the same.
                        if was.is_same(&found) && present.is_like(&meta.after) {
                            steps.is_already(&path, found);
                            continue;
                        }
                        conflicts.push(self.conflict(&path, Ours::Metadata, Theirs::Modified));
                    }
                    meta.before = Some(present);
                    steps.metas.push(meta);
                }
            }
        }
        Ok(())
    }

    fn meta(&self, path: &[u8]) -> Result<Meta, HostLandError> {
        let of = || {
            let entry = self.root.entry(path)?;
            Meta::of(&entry.dir, entry.name)
        };
        of().map_err(HostLandError::step::<io::Error>(
            "look at",
            &self.root.path,
            path,
        ))
    }

    /// Whether what is at a place is what is to come to a path.
    fn is_wanted(
        &self,
        steps: &Steps,
        path: &[u8],
        place: &[u8],
        found: &Guard,
    ) -> Result<bool, HostLandError> {
        let Some(staged) = steps.staged_at(path) else {
            return Ok(false);
        };
        let new = match &staged.new.kind {
            NewKind::Link { to } => match steps.staged_at(to) {
                Some(linked) => &linked.new,
                None => return Ok(false),
            },
            _ => &staged.new,
        };
        if new.kind.kind() != found.kind() {
            return Ok(false);
        }
        // Others' directory does as well as ours.
        if found.is_directory() {
            return Ok(true);
        }
        let same = || {
            let entry = self.root.entry(place)?;
            Ok(Meta::of(&entry.dir, entry.name)?.is_like(&new.meta)
                && self.is_equal(new, &entry, found)?)
        };
        same().map_err(HostLandError::step::<io::Error>(
            "compare",
            &self.root.path,
            path,
        ))
    }

    fn is_equal(&self, new: &NewThing, entry: &Entry<'_>, found: &Guard) -> io::Result<bool> {
        match &new.kind {
            NewKind::File { contents, size } => {
                if found.size() != *size {
                    return Ok(false);
                }
                let file = opened(entry)?;
                let mut wanted = Vec::with_capacity(CHUNK);
                same_bytes(*size, |at, mine| {
                    wanted.clear();
                    self.source.read(*contents, at, mine.len(), &mut wanted)?;
                    file.read_exact_at(mine, at)?;
                    Ok(wanted == *mine)
                })
            }
            NewKind::Symlink { target } => {
                let found = readlinkat(&entry.dir, entry.name, Vec::new())?;
                Ok(found.as_bytes() == target)
            }
            NewKind::Special { rdev, .. } => {
                let stat = std::fs::symlink_metadata(path_in(&entry.dir, entry.name))?;
                Ok(super::stage::device(*rdev) == stat.rdev())
            }
            NewKind::Kept { landing, name, .. } => {
                self.is_as_kept(&self.path(*landing, name), entry, found)
            }
            NewKind::Directory | NewKind::Link { .. } => Ok(false),
        }
    }

    fn path(&self, landing: u64, name: &str) -> PathBuf {
        self.kept.join(landing.to_string()).join(name)
    }

    fn is_as_kept(&self, kept: &Path, entry: &Entry<'_>, found: &Guard) -> io::Result<bool> {
        match found.kind() {
            FileKind::Symlink => {
                let target = std::fs::read_link(kept)?;
                let found = readlinkat(&entry.dir, entry.name, Vec::new())?;
                Ok(found.as_bytes() == target.as_os_str().as_encoded_bytes())
            }
            FileKind::File => {
                let (mut kept, file) = (File::open(kept)?, opened(entry)?);
                if kept.metadata()?.len() != found.size() {
                    return Ok(false);
                }
                let mut wanted = vec![0; CHUNK];
                same_bytes(found.size(), |at, mine| {
                    let wanted = &mut wanted[..mine.len()];
                    kept.read_exact(wanted)?;
                    file.read_exact_at(mine, at)?;
                    Ok(wanted == mine)
                })
            }
            _ => Ok(false),
        }
    }
}

fn opened(entry: &Entry<'_>) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    Ok(openat(&entry.dir, entry.name, flags, Mode::empty())?.into())
}

/// Whether each piece of so many bytes is the same on both sides. A file that was cut meanwhile is
/// not.
fn same_bytes(
    size: u64,
    mut same: impl FnMut(u64, &mut [u8]) -> io::Result<bool>,
) -> io::Result<bool> {
    let mut buffer = vec![0; CHUNK];
    let mut at = 0;
    while at < size {
        let length = CHUNK.min(usize::try_from(size - at).unwrap_or(CHUNK));
        match same(at, &mut buffer[..length]) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Ok(true) => at += length as u64,
            other => return other,
        }
    }
    Ok(true)
}
