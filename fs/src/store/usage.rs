//! What snapshots, workspaces and the store take of the disk.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::Store;
use super::delete::held;
use super::types::SnapshotInfo;
use crate::space::{CollectError, Estimate, StoreUsage, usage};

/// What keeps a layer that is no snapshot any more, besides what stands on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptBy {
    /// It is mounted, or being compared or landed.
    Use,
    /// Later landings begin from it.
    Landing,
}

/// How much a snapshot takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SnapshotUsage {
    /// Allocated bytes of the files seen in it, shared or not.
    pub apparent: u64,
    /// Bytes of contents and memory on the disk that deleting it would free.
    pub exclusive: u64,
    /// What stands on it, directly or through what is no snapshot any more: workspaces by name, snapshots
    /// by id.
    pub held_by: Vec<String>,
    /// What would keep its layer besides that.
    pub kept_by: Vec<KeptBy>,
}

impl Store {
    /// What the store takes of the disk, and for whom. Looks at every object; `progress` is told how many
    /// and how many bytes, and says whether to go on.
    ///
    /// # Errors
    /// [`CollectError`].
    pub fn usage(
        &self,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<StoreUsage, CollectError> {
        usage(&self.core, progress)
    }

    /// What snapshots take, each for itself. The catalog's layers are read once; each snapshot costs a pass over
    /// them in memory, and what stands directly on it, or what it holds. `progress` is told how many
    /// are done, and says whether to go on.
    ///
    /// # Errors
    /// [`CollectError`].
    pub fn snapshot_usage(
        &self,
        snapshots: &[SnapshotInfo],
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<Vec<SnapshotUsage>, CollectError> {
        let core = &self.core;
        let estimate = Estimate::new(core)?;
        let (landings, in_use) = (estimate.landings(core), core.uses.all());
        let standers = core.catalog.standing()?;
        let mut all = Vec::with_capacity(snapshots.len());
        for info in snapshots {
            let layer = info.layer;
            let exclusive = estimate.would_free(core, &HashSet::from([layer]))?;
            let exclusive = exclusive + self.images_would_free([&info.id])?;
            let (bytes, _) = core.catalog.totals(layer)?;
            let these = HashSet::from([layer]);
            let mut held = held(estimate.families(), &standers, &these, usize::MAX);
            let kept = [
                in_use.contains(&layer).then_some(KeptBy::Use),
                landings.contains(&layer).then_some(KeptBy::Landing),
            ];
            all.push(SnapshotUsage {
                apparent: bytes.max(0).unsigned_abs(),
                exclusive,
                held_by: held.remove(&layer).map_or_else(Vec::new, |held| held.names),
                kept_by: kept.into_iter().flatten().collect(),
            });
            if progress(all.len() as u64, 0).is_break() {
                return Err(CollectError::Interrupted);
            }
        }
        Ok(all)
    }
}
