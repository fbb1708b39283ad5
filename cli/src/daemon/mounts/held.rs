//! A workspace that is about to be changed from outside: rolled back, landed on, removed.

use std::sync::Arc;

use floe_fs::{MountTarget, WorkspaceInfo};

use super::slot::Slot;
use super::{Mounts, Subject};
use crate::error::ApiError;

/// As long as there is one, no virtual machine gets the workspace: its kernel would believe that nobody else
/// changes it, and cannot be told.
pub(crate) struct Held<'a> {
    mounts: &'a Mounts,
    slot: Arc<Slot>,
}

impl Mounts {
    /// Keeps a workspace from virtual machines.
    ///
    /// # Errors
    /// [`crate::error::ErrorKind::Conflict`] when one has it.
    pub(crate) fn hold(&self, workspace: &WorkspaceInfo) -> Result<Held<'_>, ApiError> {
        let slot = self.slot(MountTarget::Workspace(workspace.id));
        // One that cannot be held is in use, and there is nothing to prune.
        slot.hold(&Subject::Workspace(workspace.clone()))?;
        Ok(Held { mounts: self, slot })
    }
}

impl Held<'_> {
    /// Has set-id bits and device nodes in the workspace's mounts ignored, in those that are made while it is
    /// held as well: something that comes from a sandbox is about to be shown there.
    ///
    /// # Errors
    /// When a mount cannot be changed.
    pub(crate) fn distrust(&self) -> Result<(), ApiError> {
        self.slot.distrust()
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.slot.let_go();
        self.mounts.prune(&self.slot);
    }
}
