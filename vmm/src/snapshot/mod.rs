//! Snapshots of running machines: memory and state at one point in time, and machines that go on there.
//!
//! [`Snapshotter`] takes one: it copies memory while the guest runs, again what was written meanwhile, until
//! little is left; holds the guest, saves it, copies the rest aside, and lets it go. [`image`] is what comes
//! out, on disk. `Machine::restore` sets a machine that has never run to an image: its memory is mapped, not
//! read, so that starting costs the same at any size and any number.
//!
//! The two halves need not be one process: a monitor, which nobody trusts, fills a file that it is handed
//! and says which pages it wrote; whoever owns the images makes the rest.

mod capture;
pub mod compat;
mod copy;
pub mod image;
pub mod pages;
mod ram;
mod resident;
mod restore;
mod state;
mod throttle;
mod track;
mod working_set;

pub use capture::{Options, SnapshotError, Snapshotter, Stats, Wanted};
pub use copy::CopyError;
pub use restore::RestoreImageError;
pub use state::{MachineState, StateError};
pub use working_set::{WorkingSet, WorkingSetError};
