//! Freezing the live layer, and going back to a frozen one.
//!
//! A freeze holds the gate for one transaction of a few rows: it waits for the mutations under
//! way, and keeps new ones out meanwhile. Nothing is walked and nothing copied; cached nodes stay
//! valid, because every version visible in the old layer is visible in its child.

use std::collections::BTreeMap;
use std::time::Instant;

use thiserror::Error;

use super::{Epoch, View};
use crate::attr::FileKind;
use crate::catalog::CatalogError;
use crate::change::{Change, EventRow, Row, SnapshotRow};
use crate::core::{Chore, Core};
use crate::dispatch::Dispatch;
use crate::id::{Ino, LayerId, SnapshotId, WorkspaceId};
use crate::image::ImageState;
use crate::layers::TreeError;
use crate::retention::SnapshotClass;

/// What a snapshot is to be.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotSpec {
    pub(crate) id: SnapshotId,
    pub(crate) workspace: WorkspaceId,
    pub(crate) name: Option<String>,
    pub(crate) message: Option<String>,
    pub(crate) automatic: Option<&'static str>,
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) durable: bool,
    pub(crate) expires_at: Option<i64>,
    pub(crate) protected: bool,
    /// Memory of a machine is to belong to it, and is being written down.
    pub(crate) memory: bool,
    /// The snapshot that the workspace is put back on, if it is.
    pub(crate) back_to: Option<SnapshotId>,
    pub(crate) started: Instant,
}

impl SnapshotSpec {
    fn elapsed_us(&self) -> u64 {
        u64::try_from(self.started.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

/// A layer that was frozen.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frozen {
    pub(crate) layer: LayerId,
    /// The workspace's live layer from then on.
    pub(crate) live: LayerId,
    /// Nanoseconds since the epoch.
    pub(crate) created_at: i64,
}

/// Why a layer could not be frozen. Nothing was changed, except after [`FreezeError::Sync`].
#[derive(Debug, Error)]
pub enum FreezeError {
    /// Dirty mapped pages could not be written back: the snapshot would lack them.
    #[error("pages that programs changed in mapped files could not be written back")]
    PushDirty(#[source] std::io::Error),
    /// The catalog refused the change.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The layer tree refused the new layer: the catalog is damaged.
    #[error(transparent)]
    Tree(#[from] TreeError),
    /// The snapshot exists but could not be made durable.
    #[error("the snapshot {id} was taken but could not be made durable")]
    Sync {
        /// The snapshot.
        id: SnapshotId,
        /// Why.
        #[source]
        source: Box<crate::dispatch::OpError>,
    },
    /// The workspace may not hold what it would hold then.
    #[error("the quota of the workspace does not allow that: {wanted} of {limit} {what}")]
    Quota {
        /// What is limited: `bytes` or `inodes`.
        what: &'static str,
        /// What it would hold.
        wanted: u64,
        /// What it may.
        limit: u64,
    },
    /// The rollback happened but the kernel kept what it had cached.
    #[error("the kernel's caches could not be invalidated; unmount and mount the workspace again")]
    Invalidate(#[source] std::io::Error),
}

/// Rows that freeze `layer` under a snapshot and give the workspace a new live layer on `parent`.
fn freeze_rows(
    spec: &SnapshotSpec,
    layer: LayerId,
    parent: LayerId,
    new: LayerId,
    created_at: i64,
) -> Change {
    let mut change = Change::new();
    change.push(Row::FreezeLayer { id: layer });
    change.push(Row::AddLayer {
        id: new,
        parent: Some(parent),
        workspace: spec.workspace,
        created_at,
    });
    change.push(Row::MoveWorkspace {
        id: spec.workspace,
        layer: new,
    });
    change.push(Row::AddSnapshot(Box::new(SnapshotRow {
        id: spec.id.clone(),
        layer,
        workspace: spec.workspace,
        name: spec.name.clone(),
        message: spec.message.clone(),
        automatic: spec.automatic,
        created_at,
        elapsed_us: spec.elapsed_us(),
        durable: spec.durable,
        expires_at: spec.expires_at,
        protected: spec.protected,
        image: spec.memory.then_some(ImageState::Capturing),
        labels: spec.labels.clone().into_iter().collect(),
    })));
    // Of a snapshot its own row tells everything, and another would cost it a page more.
    if let Some(target) = &spec.back_to {
        change.push(Row::AddEvent(Box::new(EventRow {
            snapshot: Some(target.clone()),
            ..EventRow::new(spec.workspace, created_at, "rollback")
        })));
    }
    change
}

/// Nanoseconds since the epoch.
pub(crate) fn now_ns() -> i64 {
    crate::attr::Timestamp::now().nanoseconds()
}

/// Freezes a live layer under a snapshot and gives the workspace a new one on `parent`. The caller
/// sees to it that nobody is writing to the layer.
fn replace(
    core: &Core,
    spec: &SnapshotSpec,
    layer: LayerId,
    parent: LayerId,
) -> Result<Frozen, FreezeError> {
    let (new, created_at) = (core.numbers.layer(), now_ns());
    replace_with(core, spec, (layer, parent, new), created_at, Change::new())
}

/// As [`replace`], with the new layer's number and rows to be in it.
pub(super) fn replace_with(
    core: &Core,
    spec: &SnapshotSpec,
    (layer, parent, new): (LayerId, LayerId, LayerId),
    created_at: i64,
    rows: Change,
) -> Result<Frozen, FreezeError> {
    // First, or somebody could find the workspace and not its layer.
    core.layers.add(new, Some(parent))?;
    let mut change = freeze_rows(spec, layer, parent, new, created_at);
    change.append(rows);
    core.catalog.apply(&change)?;
    Ok(Frozen {
        layer,
        live: new,
        created_at,
    })
}

/// Freezes the live layer of a workspace that has no view, and so nobody writing to it.
pub(crate) fn freeze_closed(
    core: &Core,
    spec: &SnapshotSpec,
    layer: LayerId,
    parent: LayerId,
) -> Result<Frozen, FreezeError> {
    replace(core, spec, layer, parent)
}

/// After the freeze of a layer: whoever does something in the background is told, which nobody has to wait for
/// while requests are held up; durability if asked for; and the final figure of how long it took.
pub(crate) fn finish(core: &Core, spec: &SnapshotSpec, layer: LayerId) -> Result<u64, FreezeError> {
    core.hashing.frozen(layer);
    core.collect.frozen();
    let class = SnapshotClass::of(spec.automatic);
    core.retain.taken(spec.workspace, class, spec.expires_at);
    if spec.durable {
        let synced = core
            .objects
            .sync_all()
            .map_err(crate::dispatch::OpError::from)
            .and_then(|()| core.sync_catalog());
        if let Err(source) = synced {
            return Err(FreezeError::Sync {
                id: spec.id.clone(),
                source: Box::new(source),
            });
        }
    }
    let elapsed_us = spec.elapsed_us();
    if core.elapsed.note(&spec.id, elapsed_us) {
        core.later(Chore::NoteElapsed);
    }
    Ok(elapsed_us)
}

impl View {
    /// Has pages written back that programs changed in mapped files.
    pub(crate) fn push_dirty(&self) -> Result<(), FreezeError> {
        let mappable = self.kernel.mappable();
        if mappable.is_empty() {
            return Ok(());
        }
        self.transports
            .each(|cache| cache.push_dirty(&mappable))
            .map_err(FreezeError::PushDirty)
    }

    /// Freezes the live layer under a snapshot; the view goes on with a new one.
    pub(crate) fn freeze(&self, spec: &SnapshotSpec) -> Result<Frozen, FreezeError> {
        self.push_dirty()?;
        let _gate = self.gate.write();
        let epoch = self.epoch();
        let layer = epoch.layer();
        let frozen = replace(&self.core, spec, layer, layer)?;
        epoch
            .layer
            .store(frozen.live.0, std::sync::atomic::Ordering::Release);
        Ok(frozen)
    }

    /// Freezes the live layer under a snapshot and continues on `target`, a frozen layer.
    pub(crate) fn roll_back(
        &self,
        spec: &SnapshotSpec,
        target: LayerId,
    ) -> Result<Frozen, FreezeError> {
        self.push_dirty()?;
        let mut swapped = None;
        self.transports
            .paused(&mut || swapped = Some(self.swap(spec, target)));
        let Some(swapped) = swapped else {
            return Err(FreezeError::Invalidate(std::io::ErrorKind::Other.into()));
        };
        let (frozen, known) = swapped?;
        // Outside the gate: invalidating waits for pages whose requests wait at the gate.
        let told = self
            .transports
            .each(|cache| cache.invalidate(&known, &|ino, kept| self.left.settled(ino, kept)));
        self.left.all_settled();
        told.map_err(FreezeError::Invalidate)?;
        Ok(frozen)
    }

    /// Goes over to another layer while no request is being served, so that no answer mixes both
    /// states. Returns the inodes that the kernel knows as well.
    fn swap(
        &self,
        spec: &SnapshotSpec,
        target: LayerId,
    ) -> Result<(Frozen, Vec<Ino>), FreezeError> {
        let _gate = self.gate.write();
        let epoch = self.epoch();
        let known = self.known();
        let removed = |ino: &&Ino| {
            epoch.nodes.get(**ino).is_ok_and(|node| {
                let attr = node.state.read().row.attr;
                attr.kind == FileKind::Directory && attr.nlink == 0
            })
        };
        let removed: Vec<Ino> = known.iter().filter(removed).copied().collect();
        // A frozen layer's do not change any more.
        let totals = self.core.catalog.totals(target)?;
        let frozen = replace(&self.core, spec, epoch.layer(), target)?;
        // Nothing in between: writes would go on into the layer that is frozen now.
        *self.epoch.write() = Epoch::new(&self.core, frozen.live);
        self.usage.start(totals);
        self.left.leave(&known, &removed);
        Ok((frozen, known))
    }
}
