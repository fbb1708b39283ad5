//! Giving space back.
//!
//! A snapshot is deleted by one transaction: its layer is *left*. What becomes of a left layer is the
//! collector's business, in the background and in small steps:
//!
//! * with nothing on it, it is doomed: its rows and objects are removed, and then itself;
//! * with one layer on it, it is a *link*: nobody sees it but through what stands on it, so versions
//!   that are hidden there are of no use and are removed; what is left is handed down, or, if that is
//!   a lot, stays where it is;
//! * with more, it stays as it is: they share it.
//!
//! Invariants: what is visible at a layer that is no link never changes; each step is one
//! transaction, after which the store is sound; what has to be done is found by looking at the
//! layers, so that a crash anywhere costs nothing but the step that was under way. One thread
//! collects at a time.

mod collector;
mod doomed;
mod estimate;
mod hidden;
mod merge;
mod needed;
mod prune;
mod remains;
mod room;
mod shape;
mod usage;
mod uses;

pub(crate) use collector::{Collecting, Signal, collect, start};
pub(crate) use estimate::Estimate;
pub(crate) use room::Room;
pub(crate) use uses::{Use, Uses};

pub use collector::{CollectError, CollectReport};
pub(crate) use usage::{LayerOwner, usage};
pub use usage::{StoreUsage, WorkspaceUsage};
