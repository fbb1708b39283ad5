//! The virtual machine monitor of Floe.
//!
//! A [`machine::Machine`] is RAM, vCPUs and [`devices`]; [`boot`] puts a kernel and the tables it
//! needs into the RAM; [`confine`] takes away what the process does not need; [`monitor`] makes one
//! process of it all, which a daemon starts and watches. [`guest_kernel`] gets a kernel that boots and
//! makes the initramfs that goes with it. [`kvm::probe`] says, without opening
//! anything, whether this host could. `docs/vmm.md` has the whole picture.
//!
//! Rules that hold everywhere:
//! - a guest is hostile: what it writes is parsed once into a checked type, or refused;
//! - everything a guest or a client can make grow has a limit;
//! - `unsafe` is in five files, each for one reason that its head gives.

#![deny(unsafe_code)]

pub mod boot;
pub mod confine;
pub mod devices;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod guest_kernel;
pub mod kvm;
pub mod machine;
pub mod monitor;
pub mod snapshot;
