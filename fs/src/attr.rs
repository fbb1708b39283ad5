//! Attributes of a file as the engine keeps them, free of any transport's types.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Set-user-id bit of a mode.
pub const SET_UID: u16 = 0o4000;
/// Set-group-id bit of a mode.
pub const SET_GID: u16 = 0o2000;
/// Group-execute bit of a mode.
pub const GROUP_EXEC: u16 = 0o0010;

/// What kind of file an inode is. The discriminants are stored in the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum FileKind {
    /// Regular file.
    File = 1,
    /// Directory.
    Directory = 2,
    /// Symbolic link.
    Symlink = 3,
    /// Named pipe.
    Fifo = 4,
    /// Unix domain socket.
    Socket = 5,
    /// Character device.
    CharDevice = 6,
    /// Block device.
    BlockDevice = 7,
}

impl FileKind {
    /// Reads the catalog's number.
    #[must_use]
    pub fn from_code(code: u8) -> Option<Self> {
        Some(match code {
            1 => Self::File,
            2 => Self::Directory,
            3 => Self::Symlink,
            4 => Self::Fifo,
            5 => Self::Socket,
            6 => Self::CharDevice,
            7 => Self::BlockDevice,
            _ => return None,
        })
    }

    /// The kind encoded in `st_mode` (`S_IFMT` bits); `None` for a mode of no known kind.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => Self::File,
            libc::S_IFDIR => Self::Directory,
            libc::S_IFLNK => Self::Symlink,
            libc::S_IFIFO => Self::Fifo,
            libc::S_IFSOCK => Self::Socket,
            libc::S_IFCHR => Self::CharDevice,
            libc::S_IFBLK => Self::BlockDevice,
            _ => return None,
        })
    }

    /// The bits of `st_mode` that say so (`S_IFMT`).
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::File => libc::S_IFREG,
            Self::Directory => libc::S_IFDIR,
            Self::Symlink => libc::S_IFLNK,
            Self::Fifo => libc::S_IFIFO,
            Self::Socket => libc::S_IFSOCK,
            Self::CharDevice => libc::S_IFCHR,
            Self::BlockDevice => libc::S_IFBLK,
        }
    }
}

/// A point in time with nanoseconds; covers times before 1970 and after 2038.
///
/// `nanos` is always below 10^9 and counts forward from `secs`, as in `struct timespec`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Whole seconds since the epoch, rounded down.
    pub secs: i64,
    /// Nanoseconds after `secs`.
    pub nanos: u32,
}

impl Timestamp {
    /// The current wall-clock time.
    #[must_use]
    pub fn now() -> Self {
        Self::from(SystemTime::now())
    }

    /// Nanoseconds since the epoch; saturates where 64 bits do not hold them (years 1677 to 2262).
    #[must_use]
    pub fn nanoseconds(self) -> i64 {
        self.secs
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::from(self.nanos))
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Self {
                secs: i64::try_from(after.as_secs()).unwrap_or(i64::MAX),
                nanos: after.subsec_nanos(),
            },
            Err(before) => {
                let before = before.duration();
                let secs = i64::try_from(before.as_secs()).map_or(i64::MIN, |secs| -secs);
                match before.subsec_nanos() {
                    0 => Self { secs, nanos: 0 },
                    nanos => Self {
                        secs: secs.saturating_sub(1),
                        nanos: 1_000_000_000 - nanos,
                    },
                }
            }
        }
    }
}

impl From<Timestamp> for SystemTime {
    /// Saturates at the epoch when the platform cannot represent the time.
    fn from(time: Timestamp) -> Self {
        let base = if time.secs >= 0 {
            UNIX_EPOCH.checked_add(Duration::from_secs(time.secs.unsigned_abs()))
        } else {
            UNIX_EPOCH.checked_sub(Duration::from_secs(time.secs.unsigned_abs()))
        };
        base.and_then(|base| base.checked_add(Duration::from_nanos(u64::from(time.nanos))))
            .unwrap_or(UNIX_EPOCH)
    }
}

/// The attributes `stat` reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    /// Kind of file; never changes for an inode number.
    pub kind: FileKind,
    /// Permission bits with set-id and sticky bits (`0o7777`).
    pub perm: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Hard links; for a directory 2 plus its subdirectories.
    pub nlink: u32,
    /// Device number in the kernel's 32-bit encoding; 0 unless a device node.
    pub rdev: u32,
    /// Size in bytes.
    pub size: u64,
    /// Allocated 512-byte blocks.
    pub blocks: u64,
    /// Last access, as set by utimensat (reads do not update it).
    pub atime: Timestamp,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of contents or attributes.
    pub ctime: Timestamp,
    /// Birth.
    pub btime: Timestamp,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_and_bits_of_a_mode_are_the_same_both_ways() {
        let kinds: Vec<FileKind> = (1..=7).filter_map(FileKind::from_code).collect();
        assert_eq!(kinds.len(), 7);
        for kind in kinds {
            assert_eq!(FileKind::from_mode(kind.mode_bits() | 0o7777), Some(kind));
            assert_eq!(kind.mode_bits() & !libc::S_IFMT, 0);
        }
        assert_eq!(FileKind::Socket.mode_bits(), 0o140_000);
    }

    #[test]
    fn times_before_1970_and_after_2038_survive_conversion() {
        for (secs, nanos) in [
            (0, 0),
            (-1, 999_999_999),
            (-2, 1),
            (1 << 33, 5),
            (-(1 << 40), 0),
        ] {
            let time = Timestamp { secs, nanos };
            assert_eq!(Timestamp::from(SystemTime::from(time)), time);
        }
    }
}
