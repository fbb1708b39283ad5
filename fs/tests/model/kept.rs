//! Protecting snapshots, and deleting them by rules.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use floe_fs::{RetentionError, RetentionRule, SnapshotClass, SnapshotEdit, SnapshotFilter};

use super::world::World;
use super::{Outcome, ensure};

impl World {
    pub fn protect(&mut self, number: usize) -> Outcome {
        if self.snapshots.is_empty() {
            return Ok(());
        }
        let at = number % self.snapshots.len();
        let protected = !self.snapshots[at].protected;
        self.snapshots[at].protected = protected;
        let edit = SnapshotEdit {
            protected: Some(protected),
            ..SnapshotEdit::default()
        };
        let these = [self.snapshots[at].id.to_string()];
        let edited = self.store().edit_snapshots(&these, &edit);
        let edited = edited.map_err(|error| error.to_string())?;
        ensure!(edited[0].protected == protected, "{edited:?}");
        Ok(())
    }

    /// Sets a rule, applies it, and takes it back: what is left is what the rule keeps. The background thread
    /// may do a part of it.
    pub fn retain(&mut self, at: usize, last: u8, automatic: bool, of_all: bool) -> Outcome {
        let of = (!of_all).then(|| self.live[at].name.clone());
        let class = if automatic {
            SnapshotClass::Automatic
        } else {
            SnapshotClass::ByHand
        };
        let rule = RetentionRule {
            keep_last: NonZeroU64::new(last.into()),
            keep_within: None,
        };
        let failed = |error: RetentionError| error.to_string();
        let store = self.store().clone();
        let set = store.set_retention(of.as_deref(), class, &rule);
        set.map_err(failed)?;
        store.apply_retention(false).map_err(failed)?;
        let again = store.apply_retention(true).map_err(failed)?;
        ensure!(again.retired.is_empty(), "not deleted: {again:?}");
        store
            .clear_retention(of.as_deref(), class)
            .map_err(failed)?;
        let mut seen: BTreeMap<String, u8> = BTreeMap::new();
        let mut left = Vec::new();
        for snapshot in std::mem::take(&mut self.snapshots).into_iter().rev() {
            let is_meant = snapshot.automatic == automatic
                && of.as_ref().is_none_or(|name| *name == snapshot.of);
            let seen = seen.entry(snapshot.of.clone()).or_default();
            *seen += u8::from(is_meant);
            if !is_meant || snapshot.protected || *seen <= last {
                left.insert(0, snapshot);
            }
        }
        self.snapshots = left;
        let there = store.snapshots(&SnapshotFilter::default());
        let there = there.map_err(|error| error.to_string())?;
        let there: BTreeSet<String> = there.iter().map(|one| one.id.to_string()).collect();
        let left = self.snapshots.iter().map(|one| one.id.to_string());
        let left: BTreeSet<String> = left.collect();
        ensure!(there == left, "{there:?} are left, not {left:?}");
        Ok(())
    }
}
