//! Types of `fuser` from and to ours.

use std::time::{SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, TimeOrNow};

use crate::attr::{Attr, FileKind, Timestamp};
use crate::dispatch::SetTime;
pub(super) use crate::dispatch::convert::{
    Sent, Told, device_node, fallocate, mode_bits, name_list, node, open_mode, rename_flags, seek,
    value_for, xattr_mode,
};
use crate::id::Ino;

pub(super) fn ino(node: INodeNo) -> Ino {
    Ino(node.0)
}

pub(super) fn kind(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

pub(super) fn attr(ino: Ino, attr: &Attr) -> FileAttr {
    FileAttr {
        ino: INodeNo(ino.0),
        size: attr.size,
        blocks: attr.blocks,
        atime: attr.atime.into(),
        mtime: attr.mtime.into(),
        ctime: attr.ctime.into(),
        crtime: attr.btime.into(),
        kind: kind(attr.kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: 4096,
        flags: 0,
    }
}

/// An entry with node id 0: the kernel remembers that the name does not exist.
pub(super) fn negative() -> FileAttr {
    let zero = Timestamp { secs: 0, nanos: 0 };
    let nothing = Attr {
        kind: FileKind::File,
        perm: 0,
        uid: 0,
        gid: 0,
        nlink: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        atime: zero,
        mtime: zero,
        ctime: zero,
        btime: zero,
    };
    attr(Ino(0), &nothing)
}

pub(super) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(timestamp(time)),
    }
}

/// The time that the kernel sent.
///
/// fuser 0.18 decodes `(secs, nanos)` with negative `secs` as `EPOCH - (|secs| s + nanos ns)`,
/// where `EPOCH - |secs| s + nanos ns` is meant. Before the epoch that is undone exactly: the
/// distance's parts are the two numbers that were sent.
pub(super) fn timestamp(time: SystemTime) -> Timestamp {
    match UNIX_EPOCH.duration_since(time) {
        Ok(before) if !before.is_zero() => Timestamp {
            secs: i64::try_from(before.as_secs()).map_or(i64::MIN, |secs| -secs),
            nanos: before.subsec_nanos(),
        },
        _ => Timestamp::from(time),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn times_before_the_epoch_are_what_the_kernel_sent() {
        // As fuser's system_time_from_time does.
        let decoded = |secs: u64, nanos| UNIX_EPOCH - Duration::new(secs, nanos);
        let at = |secs, nanos| Timestamp { secs, nanos };
        assert_eq!(timestamp(decoded(2, 800_000_000)), at(-2, 800_000_000));
        assert_eq!(timestamp(decoded(1, 0)), at(-1, 0));
        assert_eq!(timestamp(UNIX_EPOCH + Duration::new(5, 7)), at(5, 7));
        assert_eq!(timestamp(UNIX_EPOCH), at(0, 0));
    }
}
