//! What tells whether a thing on the host is still the one that was seen.

use std::io;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Stat, statat};
use serde::{Deserialize, Serialize};

use crate::attr::{FileKind, Timestamp};

/// Seconds and nanoseconds, as they are written in a plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Instant(pub(super) i64, pub(super) u32);

impl From<Timestamp> for Instant {
    fn from(time: Timestamp) -> Self {
        Self(time.secs, time.nanos)
    }
}

/// What a thing on the host was when it was looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Guard {
    kind: u8,
    /// Absent where device numbers mean nothing any more. Beneath a root there is only one.
    #[serde(skip)]
    dev: Option<u64>,
    inode: u64,
    size: u64,
    mtime: Instant,
    /// Absent of a file with several names: what is done to another one changes it.
    ctime: Option<Instant>,
}

impl Guard {
    /// What was seen of a thing earlier; no `ctime` if it has several names.
    #[must_use]
    pub fn new(
        kind: FileKind,
        inode: u64,
        size: u64,
        mtime: Timestamp,
        ctime: Option<Timestamp>,
    ) -> Self {
        Self {
            kind: kind as u8,
            dev: None,
            inode,
            size,
            mtime: mtime.into(),
            ctime: ctime.map(Instant::from),
        }
    }

    /// What a thing is now; links are not followed.
    ///
    /// # Errors
    /// When there is none, or it is of no known kind.
    pub fn at(path: &Path) -> io::Result<Self> {
        let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
        Self::of(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    pub(super) fn of(stat: &Stat) -> Option<Self> {
        let nanos = |nanos: u64| u32::try_from(nanos).unwrap_or(0);
        let kind = FileKind::from_mode(stat.st_mode)?;
        let is_single = kind == FileKind::Directory || stat.st_nlink < 2;
        let ctime = Instant(stat.st_ctime, nanos(stat.st_ctime_nsec));
        Some(Self {
            kind: kind as u8,
            dev: Some(stat.st_dev),
            inode: stat.st_ino,
            size: u64::try_from(stat.st_size).unwrap_or(0),
            mtime: Instant(stat.st_mtime, nanos(stat.st_mtime_nsec)),
            ctime: is_single.then_some(ctime),
        })
    }

    /// The kind of thing.
    #[must_use]
    pub fn kind(&self) -> FileKind {
        FileKind::from_code(self.kind).unwrap_or(FileKind::File)
    }

    pub(super) fn inode(&self) -> u64 {
        self.inode
    }

    pub(super) fn size(&self) -> u64 {
        self.size
    }

    /// The same with another time of change.
    pub(super) fn dated(self, mtime: Instant) -> Self {
        Self { mtime, ..self }
    }

    /// Whether a change of nothing but its metadata would show.
    pub(super) fn tells_metadata(&self) -> bool {
        !self.is_directory() && self.ctime.is_some()
    }

    pub(super) fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory as u8
    }

    /// Whether it is the very same thing, whatever became of it.
    pub(super) fn is_same(&self, found: &Self) -> bool {
        let dev = self.dev.is_none() || found.dev.is_none() || self.dev == found.dev;
        dev && (self.kind, self.inode) == (found.kind, found.inode)
    }

    /// Whether it is the same and unchanged, as far as a rename lets one know. Directories change
    /// with what is in them.
    pub(super) fn is_unchanged(&self, found: &Self) -> bool {
        self.is_same(found)
            && (self.is_directory() || (self.size, self.mtime) == (found.size, found.mtime))
    }

    /// Whether nothing at all has happened to it.
    pub(super) fn is_untouched(&self, found: &Self) -> bool {
        self.is_unchanged(found) && (!self.tells_metadata() || self.ctime == found.ctime)
    }
}
