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
        self.change_quota(workspace, |_| quota)
    }

    /// As [`Store::set_quota`], made from what it was.
    ///
    /// # Errors
    /// [`WorkspaceError::NotFound`], or a failure of the catalog.
    pub fn change_quota(
        &self,
        workspace: &str,
        change: impl Fn(Quota) -> Quota,
    ) -> Result<WorkspaceInfo, WorkspaceError> {
        self.with_control(workspace, |record, control| {
            let quota = change(self.core.catalog.quota(record.id)?);
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
