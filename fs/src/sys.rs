//! System calls that no crate wraps. The only module of this crate with unsafe code.

use std::io;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use crate::id::Ino;

/// A file handle as `fs/fuse/inode.c` encodes it: `FILEID_INO64_GEN`, node id in two halves,
/// generation.
#[repr(C)]
struct FuseHandle {
    bytes: u32,
    kind: i32,
    node_high: u32,
    node_low: u32,
    generation: u32,
}

/// `FILEID_INO64_GEN` of `linux/exportfs.h`.
const FILEID_INO64_GEN: i32 = 0x81;

/// Opens a file of a FUSE mount by its node id, read-only. `mount` is any open file of the mount;
/// needs `CAP_DAC_READ_SEARCH`.
pub(crate) fn open_by_node_id(mount: impl AsFd, ino: Ino, generation: u32) -> io::Result<OwnedFd> {
    let [high, low] =
        [ino.0 >> 32, ino.0 & 0xffff_ffff].map(|half| u32::try_from(half).unwrap_or(0));
    let mut handle = FuseHandle {
        bytes: 12,
        kind: FILEID_INO64_GEN,
        node_high: high,
        node_low: low,
        generation,
    };
    // SAFETY: `handle` has the layout of `struct file_handle` with 12 bytes of f_handle, as its
    // `bytes` says, and outlives the call; the kernel only reads it. `mount` is open for as long
    // as the borrow lasts.
    let fd = unsafe {
        libc::open_by_handle_at(
            mount.as_fd().as_raw_fd(),
            (&raw mut handle).cast::<libc::file_handle>(),
            libc::O_RDONLY | libc::O_CLOEXEC | libc::O_NONBLOCK,
        )
    };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call succeeded, so `fd` is a new descriptor that nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Writes every dirty page of a file and waits for all of them; on a clean file returns at once.
pub(crate) fn write_back(file: impl AsFd) -> io::Result<()> {
    let flags = libc::SYNC_FILE_RANGE_WAIT_BEFORE
        | libc::SYNC_FILE_RANGE_WRITE
        | libc::SYNC_FILE_RANGE_WAIT_AFTER;
    // SAFETY: the call takes no pointers; the descriptor is open for as long as the borrow lasts.
    let result = unsafe { libc::sync_file_range(file.as_fd().as_raw_fd(), 0, 0, flags) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

/// `struct file_dedupe_range` of `linux/fs.h` with one `struct file_dedupe_range_info`.
#[repr(C)]
struct DedupeRange {
    src_offset: u64,
    src_length: u64,
    dest_count: u16,
    reserved1: u16,
    reserved2: u32,
    dest_fd: i64,
    dest_offset: u64,
    bytes_deduped: u64,
    status: i32,
    reserved: u32,
}

/// `FIDEDUPERANGE`: `_IOWR(0x94, 54, struct file_dedupe_range)`.
const FIDEDUPERANGE: libc::Ioctl = 0xc018_9436_u32 as libc::Ioctl;
/// `FILE_DEDUPE_RANGE_DIFFERS`.
const DEDUPE_DIFFERS: i32 = 1;

/// Has two files share the extents of a range at the same place in both, if they hold the same there:
/// the kernel compares them. Returns how many bytes they share then; none if they differ.
pub(crate) fn share_extents(
    from: impl AsFd,
    to: impl AsFd,
    offset: u64,
    len: u64,
) -> io::Result<Option<u64>> {
    let mut range = DedupeRange {
        src_offset: offset,
        src_length: len,
        dest_count: 1,
        reserved1: 0,
        reserved2: 0,
        dest_fd: i64::from(to.as_fd().as_raw_fd()),
        dest_offset: offset,
        bytes_deduped: 0,
        status: 0,
        reserved: 0,
    };
    // SAFETY: `range` has the layout of `struct file_dedupe_range` followed by as many
    // `struct file_dedupe_range_info` as its `dest_count` says, one, and outlives the call, which
    // reads and writes nothing else. Both files are open for as long as the borrows last.
    let result = unsafe { libc::ioctl(from.as_fd().as_raw_fd(), FIDEDUPERANGE, &raw mut range) };
    if result < 0 {
        return Err(io::Error::last_os_error());
    }
    match range.status {
        0 => Ok(Some(range.bytes_deduped)),
        DEDUPE_DIFFERS => Ok(None),
        error => Err(io::Error::from_raw_os_error(-error)),
    }
}

/// Size from which an allocation is a mapping of its own.
#[cfg(target_env = "gnu")]
const MAP_FROM: libc::c_int = 1 << 20;

/// Makes every large allocation a mapping of its own, so that pages of a zeroed one cost nothing
/// until they are touched, and freed ones go back to the system at once.
///
/// glibc begins so, but stops at the first one that is freed: its threshold adapts. A mount then
/// took 16 MiB a thread, and three times as long.
pub(crate) fn map_large_allocations() {
    #[cfg(target_env = "gnu")]
    {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            // SAFETY: no pointers are passed. mallopt writes two words that malloc reads without a
            // lock: an allocation made meanwhile sees the old threshold or the new one, and both
            // are right for it, because each allocation records itself how it was made.
            let set = unsafe { libc::mallopt(libc::M_MMAP_THRESHOLD, MAP_FROM) };
            if set == 0 {
                tracing::debug!("the allocator keeps its own threshold");
            }
        });
    }
}
