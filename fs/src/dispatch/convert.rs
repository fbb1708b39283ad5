//! Numbers of the kernel to types of the engine. What they mean is the same for every transport, as is what
//! an extended attribute list looks like.

use crate::attr::FileKind;
use crate::dispatch::{Fallocate, NewNode, OpenMode, RenameFlags, XattrMode};

/// The permission bits of a mode.
pub(super) fn mode_bits(mode: u32) -> u16 {
    u16::try_from(mode & 0o7777).unwrap_or(0)
}

/// What to make, without a target or device number.
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

/// The access mode of open(2) flags. The fourth, which Linux gives to nothing but ioctls, reads.
pub(super) fn open_mode(flags: i32) -> OpenMode {
    match flags & libc::O_ACCMODE {
        libc::O_WRONLY => OpenMode::Write,
        libc::O_RDWR => OpenMode::ReadWrite,
        _ => OpenMode::Read,
    }
}

/// `None` for flags that nobody knows.
pub(super) fn rename_flags(flags: u32) -> Option<RenameFlags> {
    const ALL: u32 = libc::RENAME_NOREPLACE | libc::RENAME_EXCHANGE | libc::RENAME_WHITEOUT;
    (flags & !ALL == 0).then_some(RenameFlags {
        no_replace: flags & libc::RENAME_NOREPLACE != 0,
        exchange: flags & libc::RENAME_EXCHANGE != 0,
        whiteout: flags & libc::RENAME_WHITEOUT != 0,
    })
}

/// `None` for flags that nobody knows.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_flags_and_modes_that_shift_data_are_refused() {
        assert_eq!(fallocate(libc::FALLOC_FL_COLLAPSE_RANGE), None);
        assert_eq!(fallocate(libc::FALLOC_FL_PUNCH_HOLE), None);
        assert_eq!(fallocate(0), Some(Fallocate::Allocate));
        assert_eq!(rename_flags(1 << 3), None);
        assert!(rename_flags(libc::RENAME_EXCHANGE).unwrap().exchange);
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

    #[test]
    fn an_access_mode_that_does_not_exist_reads() {
        assert_eq!(
            open_mode(libc::O_RDWR | libc::O_APPEND),
            OpenMode::ReadWrite
        );
        assert_eq!(open_mode(libc::O_WRONLY), OpenMode::Write);
        assert_eq!(open_mode(libc::O_ACCMODE), OpenMode::Read);
    }
}
