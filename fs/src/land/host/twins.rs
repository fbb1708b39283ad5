//! Other bases over the directories that are landed in. What they refer to in place and what is about
//! to change is taken into the store first, for them as for the workspace that lands.

use std::collections::{BTreeMap, HashSet};
use std::path::PathBuf;

use super::from_diff::path;
use super::{HostChange, HostLandError, HostPlan};
use crate::catalog::CatalogError;
use crate::id::{Ino, LayerId};
use crate::store::Store;

/// What is about to change on the host, by inode number there.
#[derive(Default)]
struct Touched {
    all: HashSet<u64>,
    /// Directories of which everything goes elsewhere.
    moved: HashSet<u64>,
}

impl Touched {
    fn of(plan: &HostPlan) -> Self {
        let mut touched = Self::default();
        for change in plan.parts.iter().flat_map(|part| &part.changes) {
            let (HostChange::Remove { was, .. }
            | HostChange::Move { was, .. }
            | HostChange::SetMeta { was, .. }) = change
            else {
                continue;
            };
            touched.all.insert(was.inode());
            if matches!(change, HostChange::Move { .. }) && was.is_directory() {
                touched.moved.insert(was.inode());
            }
        }
        touched
    }
}

impl Store {
    /// Takes in what bases, all or all but one, show of what a plan is about to change. What one of
    /// them cannot have any more is its own loss and no reason not to land.
    pub(super) fn adopt_elsewhere(
        &self,
        but: Option<LayerId>,
        plan: &HostPlan,
    ) -> Result<(), HostLandError> {
        let core = &self.core;
        let roots: Vec<&PathBuf> = plan.parts.iter().map(|part| &part.root).collect();
        let mut others = Vec::new();
        for base in core.bases.in_place() {
            let shown = core.catalog.host_roots(base)?;
            let mut dirs = shown.iter().map(|(_, row)| path(&row.name));
            let overlaps = |dir: PathBuf| {
                let overlaps = |root: &&PathBuf| root.starts_with(&dir) || dir.starts_with(root);
                roots.iter().any(overlaps)
            };
            if Some(base) != but && dirs.any(overlaps) {
                others.push(base);
            }
        }
        if others.is_empty() {
            return Ok(());
        }
        let touched = Touched::of(plan);
        for base in others {
            // What is in a directory that nobody has looked into is found when that is taken in.
            let mut known: HashSet<Ino> = HashSet::new();
            loop {
                let mut found = self.found(base, &touched)?;
                found.retain(|ino| known.insert(*ino));
                if found.is_empty() {
                    break;
                }
                if let Err(error) = self.adopt_some(base, &found) {
                    tracing::warn!(%error, %base, "another base loses what is landed over");
                }
            }
        }
        Ok(())
    }

    /// What a base has in place of what is touched, and below directories that are moved.
    fn found(&self, base: LayerId, touched: &Touched) -> Result<Vec<Ino>, CatalogError> {
        let catalog = &self.core.catalog;
        let by_inode = catalog.host_inodes(base, &touched.all)?;
        let mut found: Vec<Ino> = by_inode.values().copied().collect();
        let moved: BTreeMap<u64, Ino> = by_inode
            .into_iter()
            .filter(|(inode, _)| touched.moved.contains(inode))
            .collect();
        let mut below: Vec<Ino> = moved.into_values().collect();
        while let Some(dir) = below.pop() {
            for (_, ino, _) in catalog.names_of(dir, base)? {
                found.push(ino);
                below.push(ino);
            }
        }
        Ok(found)
    }
}
