//! Protecting snapshots, and deleting them by rules; and a workspace that may hold nothing more.

use std::collections::{BTreeMap, BTreeSet};
use std::num::NonZeroU64;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Caller, Dispatch, NewNode};
use floe_fs::id::Ino;
use floe_fs::{Quota, RetentionError, RetentionRule, SnapshotClass, SnapshotEdit, SnapshotFilter};

use super::run::answer;
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

    /// Nothing new is made where no inode may be added, and what was refused leaves no trace: whatever is
    /// compared afterwards says so.
    pub fn at_quota(&mut self, at: usize, parent: u64) -> Outcome {
        let (store, live) = (self.store().clone(), &self.live[at]);
        let set = |inodes| {
            let quota = Quota {
                bytes: None,
                inodes,
            };
            let set = store.set_quota(&live.name, quota);
            set.map(drop).map_err(|error| error.to_string())
        };
        set(Some(0))?;
        // One that is not there says so first, and so does a name that is.
        let errors = match live.state.nodes.contains_key(&parent) {
            true => &[libc::EDQUOT, libc::ENOENT, libc::ENOTDIR][..],
            false => &[libc::ESTALE],
        };
        for kind in [FileKind::File, FileKind::Directory, FileKind::Symlink] {
            let node = NewNode {
                kind,
                perm: 0o755,
                umask: 0,
                rdev: 0,
                target: match kind {
                    FileKind::Symlink => b"to",
                    _ => b"",
                },
            };
            let caller = Caller { uid: 0, gid: 0 };
            let made = live
                .view()
                .make(caller, Ino(parent), b"more than there may be", node);
            answer(made, errors)?;
        }
        set(None)
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
