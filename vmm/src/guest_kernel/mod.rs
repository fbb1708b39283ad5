//! The kernel that guests boot: where it comes from, and the initramfs that goes with it.
//!
//! A stock distribution kernel has every virtio driver as a module, so it needs an initramfs with those,
//! and with the agent as its first process. [`install()`] gets a kernel and makes one; [`find`] finds them
//! again. Pure: [`modules`] picks what is loaded, [`cpio`] and [`initramfs`] make the archive, [`image`]
//! reads versions. `docs/guest.md` says what a kernel must have.

pub mod cpio;
pub mod facts;
pub mod fetch;
pub mod image;
pub mod initramfs;
pub mod install;
pub mod modules;

pub use facts::Facts;
pub use install::{FindError, InstallError, Installed, Source, find, install, refresh};
