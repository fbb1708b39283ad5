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
            libc::O_RDONLY | libc::O_CLOEXEC,
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
