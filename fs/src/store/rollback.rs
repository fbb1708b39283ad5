//! Rolling a workspace back to a snapshot, in place and undoably.

use std::time::Instant;

use thiserror::Error;

use super::snapshots::new_spec;
use super::types::{RollbackReport, SnapshotOptions};
use super::{FindError, SnapshotError, Store, WorkspaceError};
use crate::engine::{FreezeError, finish, freeze_closed};

/// Why a rollback failed.
#[derive(Debug, Error)]
pub enum RollbackError {
    /// The workspace cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The snapshot was not found.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The state before could not be kept.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The layers could not be changed.
    #[error("cannot roll the workspace '{workspace}' back")]
    Freeze {
        /// The workspace.
        workspace: String,
        /// Why.
        #[source]
        source: FreezeError,
    },
}

impl Store {
    /// Shows a snapshot's state in a workspace from now on. Any snapshot of the store will do. The
    /// state before is kept as an automatic snapshot. Mounts stay, and what the kernel has cached
    /// of the old state is dropped before the call returns.
    ///
    /// # Errors
    /// [`RollbackError`].
    pub fn rollback(
        &self,
        workspace: &str,
        reference: &str,
    ) -> Result<RollbackReport, RollbackError> {
        let started = Instant::now();
        let target = self.find_in(workspace, reference)?;
        let options = SnapshotOptions {
            message: Some(format!("before the rollback to {}", target.id)),
            ..SnapshotOptions::default()
        };
        // Perhaps on other directories of the host than what is left.
        let held = self.hold_base(target.layer).map_err(FindError::from)?;
        let (kept, elapsed_us) = self.with_control(workspace, |record, control| {
            let mut spec = new_spec(record, &options, Some("rollback"), started)?;
            spec.back_to = Some(target.id.clone());
            match &control.view {
                Some(view) => view
                    .roll_back(&spec, target.layer)
                    .inspect(|_| view.hold(held)),
                None => freeze_closed(&self.core, &spec, record.layer, target.layer),
            }
            .and_then(|frozen| finish(&self.core, &spec, frozen.layer))
            .map(|elapsed_us| (spec.id, elapsed_us))
            .map_err(|source| match source {
                FreezeError::Catalog(error) if error.is_left() => FindError::NotFound {
                    reference: reference.to_owned(),
                }
                .into(),
                source => RollbackError::Freeze {
                    workspace: record.name.clone(),
                    source,
                },
            })
        })?;
        let workspace = self.workspace(workspace)?;
        Ok(RollbackReport {
            workspace,
            to: target.id,
            kept,
            elapsed_us,
        })
    }

    /// The snapshot that a rollback would go back to.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn rollback_target(
        &self,
        workspace: &str,
        reference: &str,
    ) -> Result<super::SnapshotInfo, FindError> {
        self.find_in(workspace, reference)
    }

    /// A snapshot by reference, where a bare name means the workspace's own first, and never one of
    /// a workspace that was deleted: it may have had the same name, and nobody thinks of it.
    fn find_in(&self, workspace: &str, reference: &str) -> Result<super::SnapshotInfo, FindError> {
        if !reference.contains('/') {
            match self.find_snapshot(&format!("{workspace}/{reference}")) {
                Err(FindError::NotFound { .. }) => {}
                other => return other,
            }
        }
        self.find(reference, false)
    }
}
