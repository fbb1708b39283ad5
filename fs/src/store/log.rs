//! What happened to a workspace. Most of it is derived from the rows of workspaces and snapshots;
//! what these do not tell has rows in `event`.

use thiserror::Error;

use super::types::rfc3339;
use super::{Store, WorkspaceError};
use crate::catalog::{CatalogError, EventRecord, ForkRecord, SnapshotQuery, SnapshotRecord};
use crate::id::SnapshotId;

/// Why no log could be given.
#[derive(Debug, Error)]
pub enum LogError {
    /// There is no such workspace, nor was there ever one.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// What kind of thing happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogKind {
    /// The workspace was made: empty, from a directory, or from `snapshot` of `workspace`.
    Created,
    /// `snapshot` was taken of it.
    Snapshot,
    /// `workspace` was forked from its `snapshot`.
    Fork,
    /// It was put back on `snapshot`.
    Rollback,
    /// Its changes were landed on `workspace`, or in a directory of the host.
    Land,
    /// It received the changes of `workspace`.
    Landed,
    /// A landing was undone.
    Undo,
    /// It became independent of the directories of the host that it was made from.
    Adopt,
    /// It was deleted.
    Deleted,
}

impl LogKind {
    /// The word for it: `created`, `snapshot` and so on.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Created => "created",
            Self::Snapshot => "snapshot",
            Self::Fork => "fork",
            Self::Rollback => "rollback",
            Self::Land => "land",
            Self::Landed => "landed",
            Self::Undo => "undo",
            Self::Adopt => "adopt",
            Self::Deleted => "deleted",
        }
    }

    /// The kind of an event, as its row has it.
    fn of_event(kind: &str) -> Option<Self> {
        Some(match kind {
            "rollback" => Self::Rollback,
            "land" => Self::Land,
            "landed" => Self::Landed,
            "undo" => Self::Undo,
            "adopt" => Self::Adopt,
            _ => return None,
        })
    }
}

/// One thing that happened to a workspace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogEntry {
    /// When, RFC 3339.
    pub at: String,
    /// What.
    pub kind: LogKind,
    /// The snapshot it is about.
    pub snapshot: Option<SnapshotId>,
    /// That snapshot's name.
    pub name: Option<String>,
    /// The other workspace it is about, by its present or last name.
    pub workspace: Option<String>,
    /// Whether that other workspace was deleted since.
    pub workspace_deleted: bool,
    /// What was said about it.
    pub message: Option<String>,
    /// Why Floe took a snapshot by itself.
    pub automatic: Option<String>,
}

/// An entry before its time is text.
struct Timed(i64, LogEntry);

impl Timed {
    fn new(at: i64, kind: LogKind) -> Self {
        Self(
            at,
            LogEntry {
                at: rfc3339(at),
                kind,
                snapshot: None,
                name: None,
                workspace: None,
                workspace_deleted: false,
                message: None,
                automatic: None,
            },
        )
    }
}

impl From<SnapshotRecord> for Timed {
    fn from(record: SnapshotRecord) -> Self {
        let mut made = Self::new(record.created_at, LogKind::Snapshot);
        made.1.snapshot = Some(record.id);
        made.1.name = record.name;
        made.1.message = record.message;
        made.1.automatic = record.automatic;
        made
    }
}

impl From<ForkRecord> for Timed {
    fn from(record: ForkRecord) -> Self {
        let mut made = Self::new(record.created_at, LogKind::Fork);
        made.1.snapshot = Some(record.from);
        made.1.name = record.from_name;
        made.1.workspace = Some(record.name);
        made.1.workspace_deleted = record.deleted;
        made
    }
}

impl Store {
    /// What happened to a workspace, newest first, at most `limit` entries. A name that no
    /// workspace has means the last one that had it. What happened to a fork before it was forked
    /// is in the log of the workspace it comes from.
    ///
    /// The cost is that of the workspace's own history.
    ///
    /// # Errors
    /// [`LogError`].
    pub fn log(&self, workspace: &str, limit: Option<usize>) -> Result<Vec<LogEntry>, LogError> {
        let catalog = &self.core.catalog;
        let Some(life) = catalog.life(workspace)? else {
            // Says which names are like it.
            self.workspace_record(workspace)?;
            // It was made this instant.
            return self.log(workspace, limit);
        };
        // What happened at one instant, in the order in which it did.
        let mut entries = vec![self.created(&life)?];
        let snapshots = catalog.snapshots(&SnapshotQuery {
            workspace: Some(life.id),
            limit,
            ..SnapshotQuery::default()
        })?;
        let oldest_first = snapshots.into_iter().rev().map(Timed::from);
        entries.extend(oldest_first);
        entries.extend(
            catalog
                .forks_of(life.id, limit)?
                .into_iter()
                .rev()
                .map(Timed::from),
        );
        for event in catalog.events_of(life.id, limit)?.into_iter().rev() {
            entries.push(self.happened(event)?);
        }
        entries.extend(life.deleted_at.map(|at| Timed::new(at, LogKind::Deleted)));
        entries.sort_by_key(|entry| entry.0);
        let newest_first = entries.into_iter().rev().map(|Timed(_, entry)| entry);
        Ok(newest_first.take(limit.unwrap_or(usize::MAX)).collect())
    }

    fn created(&self, life: &crate::catalog::LifeRecord) -> Result<Timed, CatalogError> {
        let mut made = Timed::new(life.created_at, LogKind::Created);
        if let Some(id) = &life.forked_from {
            if let Some(origin) = self.core.catalog.origin(id)? {
                made.1.name = origin.name;
                made.1.workspace = Some(origin.workspace.name);
                made.1.workspace_deleted = origin.workspace.deleted;
            }
            made.1.snapshot = Some(id.clone());
        }
        Ok(made)
    }

    fn happened(&self, event: EventRecord) -> Result<Timed, CatalogError> {
        let kind = LogKind::of_event(&event.kind).ok_or_else(|| CatalogError::Damaged {
            what: format!("an event of kind {:?}", event.kind),
        })?;
        let mut made = Timed::new(event.at, kind);
        if let Some(id) = &event.snapshot {
            made.1.name = self.core.catalog.origin(id)?.and_then(|origin| origin.name);
        }
        made.1.snapshot = event.snapshot;
        made.1.workspace_deleted = event.other.as_ref().is_some_and(|other| other.deleted);
        made.1.workspace = event.other.map(|other| other.name);
        made.1.message = event.message;
        Ok(made)
    }
}
