//! How much workspaces may hold, and how much of the disk stays free.

use super::types::WorkspaceInfo;
use super::{Store, WorkspaceError};
use crate::catalog::CatalogError;
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

    /// Says how many bytes of the disk have to stay free: below that nothing is added and no snapshot
    /// taken. None for what is usual, 1 % of the disk and at most 256 MiB.
    ///
    /// # Errors
    /// When the catalog fails.
    pub fn set_min_free(&self, bytes: Option<u64>) -> Result<(), CatalogError> {
        self.core
            .catalog
            .apply(&Change::from(Row::SetMinFree { bytes }))?;
        self.core.room.set_min_free(bytes);
        Ok(())
    }

    /// How many bytes of the disk have to stay free, if somebody said so.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn min_free(&self) -> Result<Option<u64>, CatalogError> {
        self.core.catalog.min_free()
    }
}
