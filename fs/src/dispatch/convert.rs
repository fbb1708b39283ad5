//! Numbers of the kernel to types of the engine. What they mean is the same for every transport, as is what
//! an extended attribute list looks like.

use crate::attr::FileKind;
use crate::dispatch::{
    Errno, Fallocate, NewNode, OpenMode, RenameFlags, Unsettled, Write, XattrMode,
};

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

/// What lseek(2) asks for: from where on, and whether for a hole. The kernel moves to places that it knows
/// itself.
pub(super) fn seek(offset: i64, whence: i32) -> Result<(u64, bool), Errno> {
    let hole = match whence {
        libc::SEEK_DATA => false,
        libc::SEEK_HOLE => true,
        _ => return Err(Errno(libc::EINVAL)),
    };
    let offset = u64::try_from(offset).map_err(|_| Errno(libc::ENXIO))?;
    Ok((offset, hole))
}

/// What whoever asked for a value or a list is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Told<'a> {
    /// How long it is.
    Length(u32),
    /// All of it.
    Value(&'a [u8]),
}

/// A value or list for somebody with so much room: without any, its length.
pub(super) fn value_for(value: &[u8], room: u32) -> Result<Told<'_>, Errno> {
    // Values and lists are at most 64 KiB.
    let len = u32::try_from(value.len()).unwrap_or(u32::MAX);
    match room {
        0 => Ok(Told::Length(len)),
        room if len <= room => Ok(Told::Value(value)),
        _ => Err(Errno(libc::ERANGE)),
    }
}

/// A write as a kernel sends it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Sent<'a> {
    pub(super) offset: u64,
    pub(super) data: &'a [u8],
    /// How the file was opened.
    pub(super) flags: i32,
    /// It is of pages that a mapping changed: the offset is right whatever the flags say.
    pub(super) from_cache: bool,
    pub(super) kill_set_id: bool,
    /// The kernel knows the end of the file: nobody else writes. Several requests of one append may come at
    /// once then, and each has to go where it says.
    pub(super) knows_end: bool,
}

impl<'a> Sent<'a> {
    /// What is to be written. `None` if it belongs to a state that was left.
    pub(super) fn to_write(self, unsettled: Unsettled) -> Option<Write<'a>> {
        if unsettled.pages && self.from_cache {
            return None;
        }
        let append = !self.from_cache && self.flags & libc::O_APPEND != 0;
        Some(Write {
            offset: self.offset,
            data: self.data,
            append: append && (!self.knows_end || unsettled.size),
            kill_set_id: self.kill_set_id,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_append_goes_where_the_kernel_says_only_if_that_knows_the_end() {
        let append = |from_cache, knows_end, size| {
            let sent = Sent {
                offset: 5,
                data: b"x",
                flags: libc::O_WRONLY | libc::O_APPEND,
                from_cache,
                kill_set_id: false,
                knows_end,
            };
            let pages = false;
            sent.to_write(Unsettled { pages, size }).unwrap().append
        };
        assert!(append(false, false, false) && append(false, true, true));
        assert!(!append(false, true, false));
        assert!(!append(true, false, false) && !append(true, true, true));
    }

    #[test]
    fn pages_of_a_state_that_was_left_are_not_written() {
        let write = |from_cache, pages| {
            let sent = Sent {
                offset: 5,
                data: b"x",
                flags: 0,
                from_cache,
                kill_set_id: true,
                knows_end: true,
            };
            sent.to_write(Unsettled { pages, size: false })
        };
        assert!(write(true, true).is_none());
        assert!(write(true, false).is_some());
        let written = write(false, true).unwrap();
        assert_eq!((written.offset, written.data), (5, &b"x"[..]));
        assert!(written.kill_set_id && !written.append);
    }

    #[test]
    fn a_value_is_told_to_who_has_room_for_it() {
        assert_eq!(value_for(b"abc", 0), Ok(Told::Length(3)));
        assert_eq!(value_for(b"abc", 2), Err(Errno(libc::ERANGE)));
        assert_eq!(value_for(b"abc", 3), Ok(Told::Value(b"abc")));
    }

    #[test]
    fn only_data_and_holes_are_sought_and_nothing_before_the_start() {
        assert_eq!(seek(7, libc::SEEK_DATA), Ok((7, false)));
        assert_eq!(seek(7, libc::SEEK_HOLE), Ok((7, true)));
        assert_eq!(seek(7, libc::SEEK_END), Err(Errno(libc::EINVAL)));
        assert_eq!(seek(-1, libc::SEEK_HOLE), Err(Errno(libc::ENXIO)));
    }

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
