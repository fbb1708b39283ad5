//! Opening workspaces and snapshots as file systems.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::{FindError, Store, WorkspaceError};
use crate::base::Held;
use crate::catalog::CatalogError;
use crate::change::{Change, Row};
use crate::engine::{View, ViewTarget};
use crate::id::{LayerId, SnapshotId, WorkspaceId};

impl Store {
    /// The view of a workspace; everyone who opens it shares one.
    ///
    /// # Errors
    /// [`WorkspaceError::NotFound`].
    pub fn open_live(&self, workspace: &str) -> Result<Arc<View>, WorkspaceError> {
        let held = self.hold_base(self.workspace_record(workspace)?.layer)?;
        self.with_control(workspace, |record, control| {
            self.refuse_while_repairing()?;
            if let Some(view) = &control.view {
                return Ok(view.clone());
            }
            let target = ViewTarget::Live(record.id);
            let view = View::new(self.core.clone(), target, record.layer);
            let catalog = &self.core.catalog;
            view.limit(catalog.totals(record.layer)?, catalog.quota(record.id)?);
            view.hold(held);
            Ok(control.view.insert(view).clone())
        })
    }

    /// The view of a workspace, if somebody has it open.
    pub(crate) fn live_view(&self, workspace: &str) -> Result<Option<Arc<View>>, WorkspaceError> {
        self.with_control(workspace, |_, control| Ok(control.view.clone()))
    }

    /// The read-only view of a snapshot.
    ///
    /// # Errors
    /// [`FindError::NotFound`].
    pub fn open_frozen(&self, snapshot: &SnapshotId) -> Result<Arc<View>, FindError> {
        let info = self.find_snapshot(snapshot.as_str())?;
        let held = self.hold_base(info.layer)?;
        let target = ViewTarget::Frozen(info.id.clone());
        let view = View::new(self.core.clone(), target, info.layer);
        view.hold(held);
        // Only now that it is in use: it may have been deleted meanwhile.
        if !self.core.catalog.is_frozen(info.layer)? {
            return Err(FindError::NotFound {
                reference: snapshot.to_string(),
            });
        }
        let view = self.controls.frozen(&info.id, view);
        // Now that whoever repairs sees it.
        self.refuse_while_repairing()?;
        Ok(view)
    }

    /// Opens the directories of the host that a layer stands on, before anything of it can be
    /// mounted, over one of them perhaps. They stay open as long as the answer is kept.
    pub(crate) fn hold_base(&self, layer: LayerId) -> Result<Option<Arc<Held>>, CatalogError> {
        let base = self
            .core
            .layers
            .lineage(layer)
            .map(|lineage| lineage.base());
        base.map_or(Ok(None), |base| self.core.bases.hold(base))
    }

    /// A workspace that was deleted is not open any more.
    fn give_up(&self, id: WorkspaceId, layer: LayerId) {
        let doom = Change::from(Row::DoomLayer { id: layer });
        match self.core.catalog.apply(&doom) {
            Ok(()) => self.core.collect.ask(),
            // It is done when the store is opened: no workspace has the layer.
            Err(error) => {
                tracing::warn!(%error, "the space of a deleted workspace is not free yet")
            }
        }
        self.controls.forget(id);
    }

    fn refuse_while_repairing(&self) -> Result<(), CatalogError> {
        match self.repairing().load(Ordering::SeqCst) {
            true => Err(CatalogError::Repairing),
            false => Ok(()),
        }
    }

    /// Whether a workspace or a snapshot is open.
    pub(crate) fn any_view_open(&self) -> bool {
        !self.controls.live_views().is_empty() || self.controls.any_frozen()
    }

    /// Live layers of workspaces that are open.
    pub(crate) fn open_layers(&self) -> HashSet<LayerId> {
        let views = self.controls.live_views();
        views.iter().map(|view| view.layer()).collect()
    }

    /// Returns when every change of an open workspace that is under way has ended.
    pub(crate) fn wait_for_changes(&self) {
        for view in self.controls.live_views() {
            view.wait_for_mutations();
        }
    }

    /// Gives a view up when its last mount is gone: it takes no changes any more, unlinked files are
    /// reclaimed, and the workspace can be deleted again. A view that somebody opened anew
    /// meanwhile stays.
    pub fn close_view(&self, view: &Arc<View>) {
        let ViewTarget::Live(id) = view.target() else {
            return;
        };
        let control = self.controls.of(*id);
        let mut control = control.lock();
        let same = control
            .view
            .as_ref()
            .is_some_and(|open| Arc::ptr_eq(open, view));
        if same && !view.is_attached() {
            if let Err(error) = view.close() {
                // They stay unlinked in the catalog; opening the store tries again.
                tracing::warn!(%error, "unlinked files were not reclaimed");
            }
            control.view = None;
            view.hold(None);
            self.core.objects.close_guarded();
            if control.deleted {
                self.give_up(*id, view.layer());
            }
        }
    }
}
