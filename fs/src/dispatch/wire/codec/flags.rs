//! Flags and bits of `linux/fuse.h`, under their names there without `FUSE_`.

#![allow(missing_docs, reason = "the names are those of linux/fuse.h")]

/// Flags of INIT. The upper half travels in `flags2`, and only under [`init::INIT_EXT`].
pub mod init {
    pub const ASYNC_READ: u64 = 1 << 0;
    pub const EXPORT_SUPPORT: u64 = 1 << 4;
    pub const BIG_WRITES: u64 = 1 << 5;
    pub const DONT_MASK: u64 = 1 << 6;
    pub const AUTO_INVAL_DATA: u64 = 1 << 12;
    pub const DO_READDIRPLUS: u64 = 1 << 13;
    pub const READDIRPLUS_AUTO: u64 = 1 << 14;
    pub const ASYNC_DIO: u64 = 1 << 15;
    pub const WRITEBACK_CACHE: u64 = 1 << 16;
    pub const PARALLEL_DIROPS: u64 = 1 << 18;
    pub const POSIX_ACL: u64 = 1 << 20;
    pub const MAX_PAGES: u64 = 1 << 22;
    pub const CACHE_SYMLINKS: u64 = 1 << 23;
    pub const NO_OPENDIR_SUPPORT: u64 = 1 << 24;
    pub const EXPLICIT_INVAL_DATA: u64 = 1 << 25;
    pub const HANDLE_KILLPRIV_V2: u64 = 1 << 28;
    pub const SETXATTR_EXT: u64 = 1 << 29;
    pub const INIT_EXT: u64 = 1 << 30;
    pub const NO_EXPORT_SUPPORT: u64 = 1 << 38;
}

/// Bits of `fuse_setattr_in.valid`.
pub mod setattr {
    pub const MODE: u32 = 1 << 0;
    pub const UID: u32 = 1 << 1;
    pub const GID: u32 = 1 << 2;
    pub const SIZE: u32 = 1 << 3;
    pub const ATIME: u32 = 1 << 4;
    pub const MTIME: u32 = 1 << 5;
    pub const ATIME_NOW: u32 = 1 << 7;
    pub const MTIME_NOW: u32 = 1 << 8;
    pub const CTIME: u32 = 1 << 10;
}

/// What an OPEN or CREATE is answered with.
pub mod open {
    pub const KEEP_CACHE: u32 = 1 << 1;
    pub const NOFLUSH: u32 = 1 << 5;
}

/// Flags of WRITE.
pub mod write {
    /// Pages of a mapping, written back; the offset is right and `O_APPEND` means nothing.
    pub const CACHE: u32 = 1 << 0;
    pub const KILL_SUIDGID: u32 = 1 << 2;
}

/// Flags of SETXATTR.
pub mod setxattr {
    /// Setting the ACL clears the set-group-id bit: the sender is not in the file's group.
    pub const ACL_KILL_SGID: u32 = 1 << 0;
}

/// What a STATX answer holds: `STATX_BASIC_STATS` and `STATX_BTIME`.
pub const STATX_MASK: u32 = 0x0fff;
