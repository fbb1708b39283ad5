//! Host mounts through `/dev/fuse`, with the crate `fuser`.
//!
//! [`Mount`] mounts a [`super::Dispatch`] and serves it; [`adapter`] translates requests
//! and [`negotiate`] says which the kernel may send, [`cache`] pushes and drops what the kernel has cached, [`table`] reads the kernel's table of
//! mounts, [`watch`] notices when a mount is gone, whoever unmounted it.

mod adapter;
mod cache;
mod convert;
mod mount;
mod negotiate;
mod table;
mod watch;

pub use mount::{Mount, MountError, MountOptions};
pub use table::{FoundMount, detach_stale, floe_mounts, is_mount_point};

/// Generation of every inode: numbers are never reused, so it never changes.
const GENERATION: u32 = 0;
