//! What is agreed with the kernel when a session starts (FUSE_INIT).
//!
//! Left out on purpose: the write-back cache (a write that returned must be in a snapshot), remote
//! locks (one file system a workspace, so the kernel's own locks are right) and `O_TRUNC` inside OPEN.

use std::io;
use std::time::Duration;

use fuser::{InitFlags, KernelConfig};

/// Largest write and read request in bytes.
const REQUEST_MAX: u32 = 1 << 20;
/// Requests the kernel may have under way in the background (read-ahead, write-back).
const BACKGROUND_MAX: u16 = 64;

/// Each is asked for only if the kernel offers it; a mount works without any.
const WANTED: [InitFlags; 10] = [
    // The kernel checks ACLs; we keep mode and ACL in step, and apply umask or default ACL.
    InitFlags::FUSE_POSIX_ACL,
    InitFlags::FUSE_DONT_MASK,
    // We clear set-id bits and capabilities, which saves a request before each write.
    InitFlags::FUSE_HANDLE_KILLPRIV_V2,
    InitFlags::FUSE_PARALLEL_DIROPS,
    InitFlags::FUSE_DO_READDIRPLUS,
    InitFlags::FUSE_READDIRPLUS_AUTO,
    InitFlags::FUSE_CACHE_SYMLINKS,
    InitFlags::FUSE_ASYNC_DIO,
    InitFlags::FUSE_NO_OPENDIR_SUPPORT,
    // Lets the daemon open a file by node id, for writing mapped pages back.
    InitFlags::FUSE_EXPORT_SUPPORT,
];

/// Asks for what there is; `others_write` if the kernel is not told of every change.
pub(super) fn negotiate(config: &mut KernelConfig, others_write: bool) -> io::Result<()> {
    let pages = if others_write {
        // They go with attributes that changed.
        InitFlags::FUSE_AUTO_INVAL_DATA
    } else {
        // They are dropped when we say so, never because an attribute changed.
        InitFlags::FUSE_EXPLICIT_INVAL_DATA
    };
    for flag in WANTED.into_iter().chain([pages]) {
        if let Err(missing) = config.add_capabilities(flag) {
            tracing::info!(?missing, "the kernel lacks a FUSE feature");
        }
    }
    // These fail only for values out of a fixed range.
    let set = config.set_max_write(REQUEST_MAX).is_ok()
        && config.set_max_background(BACKGROUND_MAX).is_ok()
        && config.set_time_granularity(Duration::from_nanos(1)).is_ok();
    if set {
        Ok(())
    } else {
        Err(rustix::io::Errno::PROTO.into())
    }
}
