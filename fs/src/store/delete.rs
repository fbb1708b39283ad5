//! Deleting snapshots, and giving their space back.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use thiserror::Error;

use super::types::{DeletedSnapshot, DeletedSnapshots, SnapshotFilter, SnapshotInfo};
use super::{FindError, SnapshotError, Store};
use crate::catalog::{CatalogError, LayerRow};
use crate::change::{Change, Row};
use crate::core::Core;
use crate::id::{LayerId, SnapshotId, WorkspaceId};
use crate::lock::MutexGuard;
use crate::space::{CollectError, CollectReport, Collecting, Estimate, collect};

/// Why snapshots were not deleted: none was.
#[derive(Debug, Error)]
pub enum DeleteError {
    /// One was not found.
    #[error(transparent)]
    Find(#[from] FindError),
    /// Some that were named are protected.
    #[error("protected, and so not deleted: {}", references.join(", "))]
    Protected {
        /// Which, as asked for.
        references: Vec<String>,
    },
    /// The snapshots could not be listed.
    #[error(transparent)]
    List(#[from] SnapshotError),
    /// They were deleted, but their space is not free yet.
    #[error("the snapshots were deleted, but their space is not free yet")]
    Collect(#[from] CollectError),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// Which snapshots to delete.
#[derive(Clone, Debug)]
pub enum DeleteSelection {
    /// These, by reference.
    These(Vec<String>),
    /// Those that match, but for the newest of each workspace.
    Matching {
        /// The conditions.
        filter: SnapshotFilter,
        /// How many of each workspace's that match stay.
        keep_last: usize,
    },
}

/// Deletes snapshots in one transaction; whoever calls has decided it with the lock held. The one way
/// in which a snapshot is deleted.
pub(crate) fn drop_snapshots(
    core: &Core,
    _deciding: &MutexGuard<'_, ()>,
    these: impl IntoIterator<Item = (SnapshotId, LayerId)>,
) -> Result<(), CatalogError> {
    let mut change = Change::new();
    for (id, layer) in these {
        change.push(Row::DropSnapshot { id });
        change.push(Row::LeaveLayer { id: layer });
    }
    if !change.is_empty() {
        core.catalog.apply(&change)?;
        core.collect.ask();
    }
    Ok(())
}

impl Store {
    /// Deletes snapshots, all of them or none, whatever stands on them or is mounted from them. Their
    /// space is given back in the background, as far as nothing else needs it. A dry run only says
    /// which they are. Protected ones are refused if they are named, and else passed over.
    ///
    /// # Errors
    /// [`DeleteError`].
    pub fn delete_snapshots(
        &self,
        selection: &DeleteSelection,
        dry_run: bool,
    ) -> Result<DeletedSnapshots, DeleteError> {
        let deciding = self.core.deciding.lock();
        let mut selected = self.selected(selection)?;
        let before = selected.len();
        selected.retain(|info| !info.protected);
        let protected = before - selected.len();
        let mut held = self.standing_on(&selected)?;
        if !dry_run {
            let these = selected.iter().map(|info| (info.id.clone(), info.layer));
            drop_snapshots(&self.core, &deciding, these)?;
        }
        let deleted = selected.into_iter().map(|snapshot| DeletedSnapshot {
            held_by: held.remove(&snapshot.layer).unwrap_or_default(),
            snapshot,
        });
        Ok(DeletedSnapshots {
            deleted: deleted.collect(),
            protected,
        })
    }

    /// As [`Store::delete_snapshots`], and gives space back at once: all there is, also what was deleted
    /// before and is not back yet. `progress` is told after each step, and says whether to go on.
    ///
    /// # Errors
    /// [`DeleteError`].
    pub fn delete_snapshots_now(
        &self,
        selection: &DeleteSelection,
        progress: &mut dyn FnMut(&CollectReport) -> ControlFlow<()>,
    ) -> Result<(DeletedSnapshots, CollectReport), DeleteError> {
        // Or somebody else would do it, and could not tell.
        let mut collecting = self.core.collect.instead(&self.core.collecting);
        let deleted = self.delete_snapshots(selection, false)?;
        Ok((deleted, self.collect_all(&mut collecting, progress)?))
    }

    /// What is selected, protected ones as well unless they are named, each once, in the order that was asked for or newest first.
    fn selected(&self, selection: &DeleteSelection) -> Result<Vec<SnapshotInfo>, DeleteError> {
        let mut selected: Vec<SnapshotInfo> = Vec::new();
        match selection {
            DeleteSelection::These(references) => {
                let mut protected = Vec::new();
                for reference in references {
                    let info = self.find_snapshot(reference)?;
                    if info.protected {
                        protected.push(reference.clone());
                    }
                    if selected.iter().all(|one| one.id != info.id) {
                        selected.push(info);
                    }
                }
                if !protected.is_empty() {
                    let references = protected;
                    return Err(DeleteError::Protected { references });
                }
            }
            DeleteSelection::Matching { filter, keep_last } => {
                // What is kept counts from the newest that there is, however old; and one list
                // is all that is looked at, or what is taken meanwhile would count as too old.
                let all = SnapshotFilter {
                    before: None,
                    ..filter.clone()
                };
                let mut seen: HashMap<WorkspaceId, usize> = HashMap::new();
                selected = self.snapshots(&all)?;
                selected.retain(|info| {
                    let count = seen.entry(info.workspace_id).or_default();
                    *count += 1;
                    let old = filter.before.is_none_or(|before| info.cursor.at < before);
                    *count > *keep_last && old
                });
            }
        }
        Ok(selected)
    }

    /// By layer, what stands on snapshots and is none of them, directly or through what is no snapshot any
    /// more: workspaces by name, snapshots by id.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn standing_on(
        &self,
        selected: &[SnapshotInfo],
    ) -> Result<HashMap<LayerId, Vec<String>>, CatalogError> {
        let layers: HashSet<LayerId> = selected.iter().map(|info| info.layer).collect();
        let ids: HashSet<&str> = selected.iter().map(|info| info.id.as_str()).collect();
        let mut held: HashMap<LayerId, Vec<String>> = HashMap::new();
        let families = self.core.catalog.families()?;
        let above: HashMap<LayerId, (Option<LayerId>, bool)> = families
            .iter()
            .map(|layer| {
                let seen_through = layer.what == LayerRow::Left || layers.contains(&layer.id);
                (layer.id, (layer.parent, seen_through))
            })
            .collect();
        for (layer, name) in self.core.catalog.standing()? {
            if ids.contains(&name[..]) {
                continue;
            }
            // Through those that are no snapshots any more, or will not be.
            let mut next = above.get(&layer).and_then(|&(parent, _)| parent);
            while let Some(at) = next {
                if layers.contains(&at) {
                    held.entry(at).or_default().push(name.clone());
                }
                next = match above.get(&at) {
                    Some(&(parent, true)) => parent,
                    _ => None,
                };
            }
        }
        Ok(held)
    }

    /// Bytes of contents on the disk that deleting snapshots would free, once that is given back: what
    /// nothing else shows. The cost is that of what stands directly on them, or of what they hold.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn would_free(&self, snapshots: &[SnapshotInfo]) -> Result<u64, CollectError> {
        let layers = snapshots.iter().map(|info| info.layer).collect();
        Estimate::new(&self.core)?.would_free(&self.core, &layers)
    }

    /// Has space given back in the background.
    pub fn collect_later(&self) {
        self.core.collect.ask();
    }

    /// Gives space back now, and returns when nothing is left to do. `progress` is told after each
    /// step, and says whether to go on.
    ///
    /// # Errors
    /// [`CollectError`].
    pub fn collect(
        &self,
        progress: &mut dyn FnMut(&CollectReport) -> ControlFlow<()>,
    ) -> Result<CollectReport, CollectError> {
        let mut collecting = self.core.collect.instead(&self.core.collecting);
        collecting.look_at_hidden();
        self.collect_all(&mut collecting, progress)
    }

    fn collect_all(
        &self,
        collecting: &mut Collecting,
        progress: &mut dyn FnMut(&CollectReport) -> ControlFlow<()>,
    ) -> Result<CollectReport, CollectError> {
        // Chains on live layers as well: those have changed perhaps.
        collecting.look_again();
        collect(&self.core, collecting, &mut |report, _: Duration| {
            progress(report)
        })
    }
}
