//! Forking: new workspaces on a snapshot, however many, in one transaction.

use std::collections::BTreeSet;
use std::time::Instant;

use thiserror::Error;

use super::types::{ForkSource, SnapshotInfo, SnapshotOptions, WorkspaceInfo};
use super::{FindError, SnapshotError, Store, WorkspaceError};
use crate::catalog::CatalogError;
use crate::change::{Change, Row};
use crate::engine::now_ns;
use crate::id::WorkspaceName;

/// Why a fork failed. No workspace was made.
#[derive(Debug, Error)]
pub enum ForkError {
    /// A name is taken, or the same name was asked for twice.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The source workspace could not be snapshotted.
    #[error("cannot snapshot the workspace to fork")]
    Snapshot(#[from] SnapshotError),
    /// The snapshot was not found.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Store {
    /// Makes one workspace for each name on the same snapshot: all of them or none.
    ///
    /// # Errors
    /// [`ForkError`].
    pub fn fork(
        &self,
        source: &ForkSource,
        names: &[WorkspaceName],
    ) -> Result<Vec<WorkspaceInfo>, ForkError> {
        let mut seen = BTreeSet::new();
        for name in names {
            if !seen.insert(name) {
                return Err(WorkspaceError::Exists {
                    name: name.to_string(),
                }
                .into());
            }
            self.check_free(name)?;
        }
        // Rules may let it go as soon as another is taken.
        let mut _used = None;
        let from = match source {
            ForkSource::Workspace(name) => {
                let started = Instant::now();
                self.with_control(name, |record, control| {
                    let options = SnapshotOptions::default();
                    let reason = Some("fork");
                    self.snapshot_locked(record, control, &options, reason, started)
                        .inspect(|taken| _used = Some(self.core.use_layer(taken.layer)))
                })?
            }
            ForkSource::Snapshot(id) => self.find_snapshot(id.as_str())?,
        };
        self.add_forks(&from, names)?;
        names
            .iter()
            .map(|name| Ok(self.workspace(name.as_str())?))
            .collect()
    }

    fn add_forks(&self, from: &SnapshotInfo, names: &[WorkspaceName]) -> Result<(), ForkError> {
        let (snapshot, parent, origin) = (&from.id, from.layer, from.workspace_id);
        let core = &self.core;
        let created_at = now_ns();
        let mut change = Change::new();
        let mut layers = Vec::with_capacity(names.len());
        for name in names {
            let (layer, id) = (core.numbers.layer(), core.numbers.workspace());
            change.push(Row::AddLayer {
                id: layer,
                parent: Some(parent),
                workspace: id,
                created_at,
            });
            change.push(Row::AddWorkspace {
                id,
                name: name.to_string(),
                layer,
                created_at,
                forked_from: Some(snapshot.clone()),
                origin: Some(origin),
            });
            layers.push(layer);
        }
        // First, or somebody could find a workspace and not its layer.
        for layer in layers {
            core.layers
                .add(layer, Some(parent))
                .map_err(WorkspaceError::from)?;
        }
        match core.catalog.apply(&change) {
            // The names were free a moment ago; another fork was faster.
            Err(error) if error.is_conflict() => {
                let taken = names.iter().find(|name| self.check_free(name).is_err());
                let name = taken.map_or_else(String::new, ToString::to_string);
                Err(WorkspaceError::Exists { name }.into())
            }
            Err(error) if error.is_left() => Err(FindError::NotFound {
                reference: snapshot.to_string(),
            }
            .into()),
            other => Ok(other?),
        }
    }
}
