//! What a store keeps of sandboxes: rows that whoever runs them writes before it acts.

use thiserror::Error;

use super::{SandboxCursor, Store};
use crate::catalog::{CatalogError, SandboxQuery};
use crate::change::{Change, Row};
use crate::id::{SnapshotId, WorkspaceId};
use crate::sandbox::{SandboxRecord, SandboxState};

/// Sandboxes forgotten in one transaction.
const BATCH: usize = 256;

/// Why a sandbox was not written: nothing has changed then.
#[derive(Debug, Error)]
pub enum SandboxError {
    /// Another sandbox, that is not deleted, belongs to the session.
    #[error("the session '{key}' has a sandbox already")]
    SessionTaken {
        /// The session.
        key: String,
    },
    /// A request of the same key has made another sandbox.
    #[error("a request with the key '{key}' has made another sandbox")]
    KeyTaken {
        /// The key.
        key: String,
    },
    /// Another sandbox has the range of user ids.
    #[error("another sandbox has the slot {slot}")]
    SlotTaken {
        /// The slot.
        slot: u32,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// Which sandboxes to list. Conditions are joined by "and".
#[derive(Clone, Debug, Default)]
pub struct SandboxFilter {
    /// In one of these states; empty: in any.
    pub states: Vec<SandboxState>,
    /// Asked to start from this, word for word.
    pub template: Option<String>,
    /// Made at this time or later, in nanoseconds since the epoch.
    pub since: Option<i64>,
    /// Oldest first.
    pub oldest_first: bool,
    /// Only what comes behind this place.
    pub after: Option<SandboxCursor>,
    /// At most so many.
    pub limit: Option<usize>,
}

impl Store {
    /// Writes all that is known of a sandbox, new or not. When it returns, that survives the death of the
    /// process, and power loss after [`Store::sync`]. On a disk that is full a sandbox can still be written
    /// that is deleted, or being ended.
    ///
    /// # Errors
    /// [`SandboxError`].
    pub fn put_sandbox(&self, sandbox: &SandboxRecord) -> Result<(), SandboxError> {
        let change = Change::from(Row::PutSandbox(Box::new(sandbox.clone())));
        self.core.catalog.apply(&change).map_err(|error| {
            let column = error.taken().and_then(|at| at.strip_prefix("sandbox."));
            match (
                column,
                &sandbox.session,
                &sandbox.idempotency_key,
                sandbox.slot,
            ) {
                (Some("session"), Some(key), _, _) => {
                    SandboxError::SessionTaken { key: key.clone() }
                }
                (Some("idempotency_key"), _, Some(key), _) => {
                    SandboxError::KeyTaken { key: key.clone() }
                }
                (Some("slot"), _, _, Some(slot)) => SandboxError::SlotTaken { slot },
                _ => error.into(),
            }
        })
    }

    /// A sandbox, deleted or not.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn sandbox(&self, id: &str) -> Result<Option<SandboxRecord>, CatalogError> {
        self.core.catalog.sandbox(id)
    }

    /// The sandbox that belongs to a session and is not deleted.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn sandbox_of_session(&self, key: &str) -> Result<Option<SandboxRecord>, CatalogError> {
        self.core.catalog.sandbox_of_session(key)
    }

    /// The newest snapshot of the sandboxes that belong or belonged to a session.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn last_snapshot_of_session(&self, key: &str) -> Result<Option<SnapshotId>, CatalogError> {
        self.core.catalog.last_snapshot_of_session(key)
    }

    /// The sandbox that a request with this idempotency key has made, deleted or not.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn sandbox_of_key(&self, key: &str) -> Result<Option<SandboxRecord>, CatalogError> {
        self.core.catalog.sandbox_of_key(key)
    }

    /// Sandboxes that match and are not deleted, newest first unless the filter says otherwise. Pages of a
    /// list are stable: what is added or deleted meanwhile moves nothing else.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn sandboxes(&self, filter: &SandboxFilter) -> Result<Vec<SandboxRecord>, CatalogError> {
        let after = filter.after.as_ref();
        self.core.catalog.sandboxes(&SandboxQuery {
            states: &filter.states,
            template: filter.template.as_deref(),
            since: filter.since,
            oldest_first: filter.oldest_first,
            after: after.map(|cursor| (cursor.at, &cursor.id[..])),
            limit: filter.limit,
        })
    }

    /// Every sandbox that whoever runs them has to look at after a crash, oldest first: those that are not
    /// deleted, and deleted ones that still have a slot or a workspace that is not deleted.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn all_sandboxes(&self) -> Result<Vec<SandboxRecord>, CatalogError> {
        self.core.catalog.sandboxes_left()
    }

    /// Forgets sandboxes that were deleted before a time, in nanoseconds since the epoch, and whose
    /// workspaces are deleted and have no snapshots any more. Returns how many.
    ///
    /// # Errors
    /// When the catalog fails; some are forgotten then.
    pub fn forget_deleted_sandboxes(&self, before: i64) -> Result<usize, CatalogError> {
        let catalog = &self.core.catalog;
        let ids = catalog.forgotten_sandboxes(before)?;
        for batch in ids.chunks(BATCH) {
            let mut change = Change::new();
            for id in batch {
                change.push(Row::DropSandbox { id: id.clone() });
            }
            catalog.apply(&change)?;
        }
        Ok(ids.len())
    }

    /// A guest is about to write to a workspace, which may be anybody's: set-id bits and device nodes in it
    /// are not to be honoured from now on, nor in anything that comes of it.
    ///
    /// # Errors
    /// [`super::WorkspaceError::NotFound`], or a failure of the catalog.
    pub fn distrust(&self, workspace: &str) -> Result<(), super::WorkspaceError> {
        self.with_control(workspace, |record, _| {
            let row = Row::MarkSandboxed { id: record.layer };
            Ok(self.core.catalog.apply(&Change::from(row))?)
        })
    }

    /// The name of a workspace that was not deleted.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn workspace_name(&self, id: WorkspaceId) -> Result<Option<String>, CatalogError> {
        self.core.catalog.workspace_name(id)
    }
}
