//! The virtual machine monitor of Floe.
//!
//! So far it only *probes*: [`kvm::probe`] says whether this host could run a virtual machine and,
//! if not, what is in the way. `floe doctor` prints the answer. Nothing here opens a virtual
//! machine yet; the monitor itself comes with a later issue.

#![forbid(unsafe_code)]

pub mod kvm;
