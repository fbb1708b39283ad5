//! How much workspaces may hold.

use super::types::WorkspaceInfo;
use super::{Store, WorkspaceError};
use crate::change::{Change, Row};
use crate::engine::Quota;

impl Store {
    /// Says how much a workspace may hold. What it holds already stays, also if that is more: then nothing
    /// can be added until enough was removed. Forks begin with the quota of what they were forked from.
    ///
    /// # Errors
    /// [`WorkspaceError::NotFound`], or a failure of the catalog.
    pub fn set_quota(
        &self,
        workspace: &str,
        quota: Quota,
    ) -> Result<WorkspaceInfo, WorkspaceError> {
        self.with_control(workspace, |record, control| {
            let row = Row::SetQuota {
                workspace: record.id,
                bytes: quota.bytes,
                inodes: quota.inodes,
            };
            self.core.catalog.apply(&Change::from(row))?;
            if let Some(view) = &control.view {
                view.set_quota(quota);
            }
            Ok::<_, WorkspaceError>(())
        })?;
        self.workspace(workspace)
    }
}
