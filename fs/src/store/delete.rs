//! Deleting snapshots, and giving their space back.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use thiserror::Error;

use super::types::{DeletedSnapshot, DeletedSnapshots, SnapshotFilter, SnapshotInfo};
use super::{FindError, SnapshotError, Store};
use crate::catalog::{CatalogError, FamilyRecord, LayerRow};
use crate::change::{Change, Row};
use crate::core::Core;
use crate::id::{LayerId, SnapshotId, WorkspaceId};
use crate::image;
use crate::lock::MutexGuard;
use crate::space::{CollectError, CollectReport, Collecting, Estimate, collect};

/// Names that are told of what stands on a snapshot that is deleted; of others only how many.
const NAMES: usize = 16;

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
    let mut gone = Vec::new();
    for (id, layer) in these {
        gone.push(id.clone());
        change.push(Row::DropSnapshot { id });
        change.push(Row::LeaveLayer { id: layer });
    }
    if !change.is_empty() {
        core.catalog.apply(&change)?;
        image::remove(&core.dir, &gone);
        core.retain.changed();
        core.collect.ask();
    }
    Ok(())
}

/// What stands on a layer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Standing {
    /// Some of it by name, the nearest first.
    pub(super) names: Vec<String>,
    /// How much more there is.
    more: u64,
}

/// The layers of the newest snapshots of each workspace, so many of each. Layers tell which is newer: a
/// clock can go back.
fn newest(snapshots: &[SnapshotInfo], count: usize) -> HashSet<LayerId> {
    let mut of: Vec<(WorkspaceId, Reverse<LayerId>)> = snapshots
        .iter()
        .map(|info| (info.workspace_id, Reverse(info.layer)))
        .collect();
    of.sort_unstable();
    let of = of.chunk_by(|a, b| a.0 == b.0);
    of.flat_map(|of| of.iter().take(count).map(|&(_, Reverse(layer))| layer))
        .collect()
}

/// What stands on the selected layers, directly or through those that are selected or no snapshots any
/// more. Each layer hands on what it holds to the one below it, once: a chain is not walked again for
/// each that stands on it.
pub(super) fn held(
    families: &[FamilyRecord],
    standers: &[(LayerId, String)],
    selected: &HashSet<LayerId>,
    most: usize,
) -> HashMap<LayerId, Standing> {
    let below: HashMap<LayerId, LayerId> = families
        .iter()
        .filter_map(|layer| Some((layer.id, layer.parent?)))
        .collect();
    // The names by number, and how many there are.
    let mut reach: HashMap<LayerId, (Vec<usize>, usize)> = HashMap::new();
    for (number, (layer, _)) in standers.iter().enumerate() {
        if let Some(&at) = below.get(layer) {
            let (some, count) = reach.entry(at).or_default();
            *count += 1;
            if some.len() < most {
                some.push(number);
            }
        }
    }
    // A layer is older than what stands on it.
    for layer in families.iter().rev() {
        if layer.what != LayerRow::Left && !selected.contains(&layer.id) {
            continue;
        }
        let handed_on = if selected.contains(&layer.id) {
            reach.get(&layer.id).cloned()
        } else {
            reach.remove(&layer.id)
        };
        let Some((from, more)) = handed_on else {
            continue;
        };
        let Some(&at) = below.get(&layer.id) else {
            continue;
        };
        let (some, count) = reach.entry(at).or_default();
        *count += more;
        let room = most - some.len();
        some.extend(from.into_iter().take(room));
    }
    reach.retain(|layer, _| selected.contains(layer));
    let named = reach.into_iter().map(|(layer, (some, count))| {
        let more = (count - some.len()) as u64;
        let names = some.into_iter().map(|number| standers[number].1.clone());
        let names = names.collect();
        (layer, Standing { names, more })
    });
    named.collect()
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
        let mut held = self.standing(&selected, NAMES)?;
        if !dry_run {
            let these = selected.iter().map(|info| (info.id.clone(), info.layer));
            drop_snapshots(&self.core, &deciding, these)?;
        }
        let deleted = selected.into_iter().map(|snapshot| {
            let held = held.remove(&snapshot.layer).unwrap_or_default();
            DeletedSnapshot {
                snapshot,
                held_by: held.names,
                more_held_by: held.more,
            }
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

    /// What is selected, each once, in the order that was asked for or newest first. Protected ones that are
    /// named are an error; others are among them.
    fn selected(&self, selection: &DeleteSelection) -> Result<Vec<SnapshotInfo>, DeleteError> {
        let mut selected: Vec<SnapshotInfo> = Vec::new();
        match selection {
            DeleteSelection::These(references) => {
                let (mut protected, mut seen) = (Vec::new(), HashSet::new());
                for reference in references {
                    let info = self.find_snapshot(reference)?;
                    if info.protected {
                        protected.push(reference.clone());
                    }
                    if seen.insert(info.layer) {
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
                selected = self.snapshots(&all)?;
                // What may come to nothing yet neither goes nor counts.
                selected.retain(|info| !info.is_capturing());
                let counted = newest(&selected, *keep_last);
                selected.retain(|info| {
                    let old = filter.before.is_none_or(|before| info.cursor.at < before);
                    old && !counted.contains(&info.layer)
                });
            }
        }
        Ok(selected)
    }

    /// By layer, what stands on snapshots and is none of them, directly or through what is no snapshot any
    /// more: workspaces by name, snapshots by id, at most so many of each.
    fn standing(
        &self,
        selected: &[SnapshotInfo],
        most: usize,
    ) -> Result<HashMap<LayerId, Standing>, CatalogError> {
        let ids: HashSet<&str> = selected.iter().map(|info| info.id.as_str()).collect();
        let layers: HashSet<LayerId> = selected.iter().map(|info| info.layer).collect();
        let mut standers = self.core.catalog.standing()?;
        standers.retain(|(_, name)| !ids.contains(&name[..]));
        Ok(held(
            &self.core.catalog.families()?,
            &standers,
            &layers,
            most,
        ))
    }

    /// Bytes on the disk that deleting snapshots would free, once that is given back: contents that
    /// nothing else shows, and memory that no other image has. The cost is that of what stands directly on them, or of what they hold.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn would_free(&self, snapshots: &[SnapshotInfo]) -> Result<u64, CollectError> {
        let layers = snapshots.iter().map(|info| info.layer).collect();
        let images = self.images_would_free(snapshots.iter().map(|info| &info.id))?;
        Ok(Estimate::new(&self.core)?.would_free(&self.core, &layers)? + images)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_on_a_layer_is_told_once_and_of_many_only_how_many() {
        // A chain of 1 to 6, of which 3 is no snapshot any more; 7 to 9 stand on it aside.
        let family = |id, parent: Option<u64>, what| FamilyRecord {
            id: LayerId(id),
            parent: parent.map(LayerId),
            what,
        };
        let mut families = vec![family(1, None, LayerRow::Frozen)];
        for id in 2..=6 {
            let what = if id == 3 {
                LayerRow::Left
            } else {
                LayerRow::Frozen
            };
            families.push(family(id, Some(id - 1), what));
        }
        for (id, parent) in [(7, 1), (8, 3), (9, 5)] {
            families.push(family(id, Some(parent), LayerRow::Live));
        }
        let standers: Vec<(LayerId, String)> =
            (5..=9).map(|id| (LayerId(id), id.to_string())).collect();
        let of = |selected: &[u64], most| {
            let selected = selected.iter().map(|&id| LayerId(id)).collect();
            let held = held(&families, &standers, &selected, most);
            let mut held: Vec<_> = held
                .into_iter()
                .map(|(layer, held)| (layer.0, held.names.join(" "), held.more))
                .collect();
            held.sort();
            held
        };
        let told = |layer, names: &str, more| (layer, names.to_owned(), more);
        assert_eq!(
            of(&[1, 2, 4], 9),
            [told(1, "7 8 5", 0), told(2, "8 5", 0), told(4, "5", 0)]
        );
        // The selected one between them is no end.
        assert_eq!(of(&[1], 9), [told(1, "7", 0)]);
        assert_eq!(
            of(&[1, 2, 4], 2),
            [told(1, "7 8", 1), told(2, "8 5", 0), told(4, "5", 0)]
        );
    }
}
