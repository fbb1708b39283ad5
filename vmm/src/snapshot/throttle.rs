//! Copying what a guest writes faster than it is copied.
//!
//! The guest is held while a slice is copied, runs for a moment, and is held again: no hold lasts longer than it
//! takes to copy a slice, and what it can write in the moments between is less than what is copied. Each round over all
//! that is left gives it half as long.

use std::time::Duration;

use super::capture::{SnapshotError, Snapshotter};
use super::copy::Copier;
use super::image::parts;
use super::pages::{Pages, Run};
use super::ram::bytes;

/// So few bytes may be left.
pub(super) const GOAL: usize = 32 << 20;
/// How long the guest runs between two slices at first.
pub(super) const RUN_FIRST: Duration = Duration::from_millis(1);
/// Most rounds.
pub(super) const ROUNDS_MAX: u32 = 8;
/// Bytes that are copied while it is held.
const SLICE: usize = 4 << 20;
/// How long servers of file systems are waited for before a slice: it is no matter if they have not answered.
const DRAIN: Duration = Duration::from_millis(5);

/// How slowly the guest runs.
pub(super) struct Slowly<'a> {
    /// For how long between two slices.
    pub(super) run: Duration,
    /// Whether this is wanted still.
    pub(super) go_on: &'a dyn Fn() -> bool,
}

impl Snapshotter {
    /// Copies pages while the guest runs for moments only; false if that is not wanted any more.
    pub(super) fn copy_slowly(
        &self,
        copier: &mut Copier<'_>,
        pages: &Pages,
        slowly: &Slowly<'_>,
    ) -> Result<bool, SnapshotError> {
        let mut todo = pages.runs().flat_map(parts).peekable();
        while todo.peek().is_some() {
            if !(slowly.go_on)() {
                return Ok(false);
            }
            // It was not held before, or nothing would be left of it.
            self.parts.pause(DRAIN)?;
            let copied = self.copy_slice(copier, &mut todo);
            self.parts.resume()?;
            copied?;
            std::thread::sleep(slowly.run);
        }
        Ok(true)
    }

    fn copy_slice(
        &self,
        copier: &mut Copier<'_>,
        todo: &mut impl Iterator<Item = Run>,
    ) -> Result<(), SnapshotError> {
        let mut copied = 0;
        while copied < SLICE
            && let Some(run) = todo.next()
        {
            copier.copy_run(&self.ram, run)?;
            copied += bytes(run.len);
        }
        Ok(())
    }
}
