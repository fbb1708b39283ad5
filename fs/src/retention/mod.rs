//! How long snapshots are kept: docs/retention.md says what it means.
//!
//! [`rules`] decides, and knows nothing of catalogs and clocks; [`apply`] asks the catalog and deletes;
//! [`thread`] does so in the background, when there may be something to do.
//!
//! Invariants: a snapshot is deleted here only if it may go at that moment, by rules that are in force:
//! both are looked at again with [`crate::core::Core::deciding`] held. It is deleted as any other is
//! ([`crate::store::drop_snapshots`]).

mod apply;
mod clock;
mod rules;
mod thread;

pub(crate) use apply::{Judging, find, retire};
pub(crate) use rules::Rules;
pub(crate) use thread::{Signal, start};

pub use rules::{RetentionRule, RetireReason, RuleSource, SnapshotClass};
