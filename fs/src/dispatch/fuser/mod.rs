//! Host mounts through `/dev/fuse`, with the crate `fuser`.
//!
//! [`Mount`] mounts a [`super::Dispatch`] and serves it: as root through [`superblock`], otherwise
//! through fusermount3. [`negotiate`] says what the kernel may send, [`adapter`] translates it,
//! [`shift`] the ids in it where a mount is for a user namespace.
//! [`cache`] pushes and drops what the kernel has cached. [`table`] reads the kernel's table of
//! mounts, [`stale`] takes dead ones away, [`watch`] notices when a mount is gone, whoever unmounted
//! it, and [`ending`] tells so. [`abort()`] ends the connections of a server that was killed.

mod abort;
mod adapter;
mod cache;
mod closer;
mod convert;
mod ending;
mod error;
mod mount;
mod negotiate;
mod shift;
mod stale;
mod superblock;
mod syncing;
mod table;
mod watch;

pub use abort::abort;
pub use error::MountError;
pub use mount::{Mount, MountOptions};
pub use shift::IdShift;
pub use stale::mount_at;
pub use table::{FoundMount, every_mount, floe_mounts};

/// Generation of every inode that can have a sync descriptor: numbers are never reused, so it never
/// changes. Of directories it may ([`super::Dispatch::generation`]).
const GENERATION: u32 = 0;
