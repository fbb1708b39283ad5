//! One control mutex a workspace: snapshots, rollbacks, renames and deletes of one workspace
//! happen one after the other, whoever asks for them, while those of others go on.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use crate::catalog::WorkspaceRecord;
use crate::engine::View;
use crate::id::{SnapshotId, WorkspaceId};
use crate::lock::{Mutex, rank};

/// State of one workspace; lock it for as long as an operation on the workspace lasts.
#[derive(Default)]
pub(super) struct Control {
    /// The view, while the workspace is mounted or otherwise open.
    pub(super) view: Option<Arc<View>>,
    /// Set when the workspace was deleted while somebody waited for the lock.
    pub(super) deleted: bool,
    /// What the catalog says of the workspace, but for its size, when the last operation on it left
    /// that behind. Each operation takes it, so one that does not know better leaves nothing.
    pub(super) known: Option<WorkspaceRecord>,
}

/// A control mutex.
pub(super) type ControlMutex = Mutex<{ rank::CONTROL }, Control>;

/// The control mutexes of a store, and its open views.
#[derive(Default)]
pub(super) struct Controls {
    workspaces: Mutex<{ rank::LEAF }, HashMap<WorkspaceId, Arc<ControlMutex>>>,
    /// Whose name a name was when it was last used. Saves asking the catalog, which says in the end
    /// whether it still holds.
    names: Mutex<{ rank::LEAF }, HashMap<String, WorkspaceId>>,
    frozen: Mutex<{ rank::LEAF }, HashMap<SnapshotId, Weak<View>>>,
}

impl Controls {
    pub(super) fn of(&self, id: WorkspaceId) -> Arc<ControlMutex> {
        self.workspaces.lock().entry(id).or_default().clone()
    }

    /// The workspace that had a name when it was last used.
    pub(super) fn last_known(&self, name: &str) -> Option<WorkspaceId> {
        self.names.lock().get(name).copied()
    }

    /// A workspace has a name.
    pub(super) fn note(&self, name: &str, id: WorkspaceId) {
        let mut names = self.names.lock();
        if names.get(name) != Some(&id) {
            names.insert(name.to_owned(), id);
        }
    }

    /// A workspace was deleted: its name may be another's.
    pub(super) fn forget_name(&self, name: &str) {
        self.names.lock().remove(name);
    }

    /// Nobody has a deleted workspace open. Whoever waits for its mutex has it still.
    pub(super) fn forget(&self, id: WorkspaceId) {
        self.workspaces.lock().remove(&id);
    }

    /// The views of workspaces that are open now.
    pub(super) fn live_views(&self) -> Vec<Arc<View>> {
        // The map is let go before a control mutex is taken.
        let all: Vec<_> = self.workspaces.lock().values().cloned().collect();
        all.iter()
            .filter_map(|control| control.lock().view.clone())
            .collect()
    }

    /// Whether a snapshot is open.
    pub(super) fn any_frozen(&self) -> bool {
        self.frozen
            .lock()
            .values()
            .any(|view| view.strong_count() > 0)
    }

    /// The open view of a snapshot; this one, if there is none. Made before: the map is a leaf, and a
    /// view asks for its base.
    pub(super) fn frozen(&self, id: &SnapshotId, view: Arc<View>) -> Arc<View> {
        let mut frozen = self.frozen.lock();
        if let Some(view) = frozen.get(id).and_then(Weak::upgrade) {
            return view;
        }
        frozen.retain(|_, view| view.strong_count() > 0);
        frozen.insert(id.clone(), Arc::downgrade(&view));
        view
    }
}
