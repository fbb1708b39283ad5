//! Types of `fuser` from and to ours.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fuser::{FileAttr, FileType, INodeNo, OpenAccMode, OpenFlags, RenameFlags, Request, TimeOrNow};

use crate::attr::{Attr, FileKind, Timestamp};
use crate::dispatch::{self, Caller, Fallocate, NewNode, OpenMode, SetTime, XattrMode};
use crate::id::Ino;

/// The daemon is the only writer and tells the kernel when that is not the whole truth (rollback),
/// so names and attributes may be cached for as long as the kernel likes.
pub(super) const TTL: Duration = Duration::from_secs(365 * 24 * 3600);

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

pub(super) fn caller(request: &Request) -> Caller {
    Caller {
        uid: request.uid(),
        gid: request.gid(),
    }
}

pub(super) fn mode_bits(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).unwrap_or(0)
}

pub(super) fn open_mode(flags: OpenFlags) -> OpenMode {
    match flags.acc_mode() {
        OpenAccMode::O_RDONLY => OpenMode::Read,
        OpenAccMode::O_WRONLY => OpenMode::Write,
        OpenAccMode::O_RDWR => OpenMode::ReadWrite,
    }
}

pub(super) fn node(kind: FileKind, mode: u32, umask: u32) -> NewNode<'static> {
    NewNode {
        kind,
        perm: mode_bits(mode),
        umask: mode_bits(umask),
        rdev: 0,
        target: b"",
    }
}

/// What mknod(2) asks for. A mode without a kind is a regular file.
pub(super) fn device_node(mode: u32, umask: u32, rdev: u32) -> NewNode<'static> {
    let kind = FileKind::from_mode(mode).unwrap_or(FileKind::File);
    let mut node = node(kind, mode, umask);
    if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) {
        node.rdev = rdev;
    }
    node
}

/// `None` for flags that nobody knows.
pub(super) fn rename_flags(flags: RenameFlags) -> Option<dispatch::RenameFlags> {
    RenameFlags::all()
        .contains(flags)
        .then(|| dispatch::RenameFlags {
            no_replace: flags.contains(RenameFlags::RENAME_NOREPLACE),
            exchange: flags.contains(RenameFlags::RENAME_EXCHANGE),
            whiteout: flags.contains(RenameFlags::RENAME_WHITEOUT),
        })
}

pub(super) fn xattr_mode(flags: i32) -> Option<XattrMode> {
    Some(match flags {
        0 => XattrMode::Set,
        libc::XATTR_CREATE => XattrMode::Create,
        libc::XATTR_REPLACE => XattrMode::Replace,
        _ => return None,
    })
}

/// `None` for modes that shift data: the kernel's FUSE client refuses them itself.
pub(super) fn fallocate(mode: i32) -> Option<Fallocate> {
    const KEEP: i32 = libc::FALLOC_FL_KEEP_SIZE;
    const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | KEEP;
    const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
    const ZERO_KEEP: i32 = ZERO | KEEP;
    Some(match mode {
        0 => Fallocate::Allocate,
        KEEP => Fallocate::AllocateKeepSize,
        PUNCH => Fallocate::PunchHole,
        ZERO => Fallocate::ZeroRange,
        ZERO_KEEP => Fallocate::ZeroRangeKeepSize,
        _ => return None,
    })
}

/// Names as listxattr(2) gives them, each ended by NUL.
pub(super) fn name_list(names: Vec<Vec<u8>>) -> Vec<u8> {
    let mut list = Vec::new();
    for name in names {
        list.extend_from_slice(&name);
        list.push(0);
    }
    list
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
    #[test]
    fn modes_that_shift_data_and_unknown_flags_are_refused() {
        assert_eq!(fallocate(libc::FALLOC_FL_COLLAPSE_RANGE), None);
        assert_eq!(fallocate(libc::FALLOC_FL_PUNCH_HOLE), None);
        assert_eq!(fallocate(0), Some(Fallocate::Allocate));
        assert_eq!(rename_flags(RenameFlags::from_bits_retain(1 << 3)), None);
        assert_eq!(xattr_mode(libc::XATTR_CREATE | libc::XATTR_REPLACE), None);
    }

    #[test]
    fn only_device_nodes_have_a_device_number() {
        let device = device_node(libc::S_IFCHR | 0o4644, 0o22, 259);
        assert_eq!((device.kind, device.rdev), (FileKind::CharDevice, 259));
        assert_eq!((device.perm, device.umask), (0o4644, 0o22));
        let file = device_node(0o644, 0, 259);
        assert_eq!((file.kind, file.rdev), (FileKind::File, 0));
    }
}
