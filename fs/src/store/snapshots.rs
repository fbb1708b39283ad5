//! Taking, finding and listing snapshots.

use std::collections::HashMap;
use std::time::Instant;

use thiserror::Error;

use super::control::Control;
use super::types::{
    Fidelity, SnapshotFilter, SnapshotImage, SnapshotInfo, SnapshotOptions, rfc3339,
};
use super::{SnapshotCursor, Store, WorkspaceError};
use crate::catalog::{CatalogError, SnapshotQuery, SnapshotRecord, WorkspaceRecord};
use crate::dispatch::OpError;
use crate::engine::{FreezeError, SnapshotSpec, finish, freeze_closed};
use crate::id::SnapshotId;
use crate::image::ImageState;

/// Shortest beginning of an id that can stand for it.
const PREFIX_MIN: usize = 4;

/// What a snapshot may take of the disk: some pages of the catalog.
const SNAPSHOT_BYTES: u64 = 64 << 10;

/// Why a snapshot could not be taken. The workspace goes on as it was.
#[derive(Debug, Error)]
pub enum SnapshotError {
    /// The workspace cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The workspace has a snapshot of that name.
    #[error("the workspace '{workspace}' has a snapshot '{name}' already")]
    NameTaken {
        /// The workspace.
        workspace: String,
        /// The name.
        name: String,
    },
    /// The layer could not be frozen.
    #[error("cannot freeze the workspace '{workspace}'")]
    Freeze {
        /// The workspace.
        workspace: String,
        /// Why.
        #[source]
        source: FreezeError,
    },
    /// The disk has not enough room.
    #[error("no snapshot of the workspace '{workspace}' was taken")]
    Room {
        /// The workspace.
        workspace: String,
        /// Why.
        #[source]
        source: OpError,
    },
    /// No random id could be drawn.
    #[error("cannot draw a random id")]
    Random(#[source] getrandom::Error),
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// Why a snapshot was not found.
#[derive(Debug, Error)]
pub enum FindError {
    /// Nothing fits.
    #[error("there is no snapshot '{reference}'")]
    NotFound {
        /// As asked for.
        reference: String,
    },
    /// Several fit.
    #[error("'{reference}' can mean several snapshots")]
    Ambiguous {
        /// As asked for.
        reference: String,
        /// Some that fit, as `WORKSPACE/NAME` or id.
        candidates: Vec<String>,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// What a new snapshot is besides its workspace.
pub(super) fn new_spec(
    record: &WorkspaceRecord,
    options: &SnapshotOptions,
    automatic: Option<&'static str>,
    started: Instant,
) -> Result<SnapshotSpec, SnapshotError> {
    Ok(SnapshotSpec {
        id: match &options.id {
            Some(id) => id.clone(),
            None => SnapshotId::random().map_err(SnapshotError::Random)?,
        },
        workspace: record.id,
        name: options.name.as_ref().map(ToString::to_string),
        message: options.message.clone(),
        automatic,
        labels: options.labels.clone(),
        durable: options.durable,
        expires_at: options.expires_at,
        protected: options.protected,
        memory: options.memory,
        back_to: None,
        started,
    })
}

/// A snapshot as the catalog has it, with how long it took as that was known before.
fn shown(record: SnapshotRecord, elapsed: &HashMap<SnapshotId, u64>) -> SnapshotInfo {
    let mut info = SnapshotInfo::from(record);
    if let Some(&elapsed_us) = elapsed.get(&info.id) {
        info.elapsed_us = elapsed_us;
    }
    info
}

impl Store {
    /// Freezes a workspace as it is now. Constant time: everything acknowledged before the call is
    /// in the snapshot, nothing begun after its return is.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn snapshot(
        &self,
        workspace: &str,
        options: &SnapshotOptions,
    ) -> Result<SnapshotInfo, SnapshotError> {
        let started = Instant::now();
        self.with_control_within(workspace, options.patience, |record, control| {
            self.snapshot_locked(record, control, options, None, started)
        })
    }

    /// As [`Store::snapshot`], of one that is taken to fork it at once.
    ///
    /// # Errors
    /// [`SnapshotError`].
    pub fn snapshot_to_fork(
        &self,
        workspace: &str,
        options: &SnapshotOptions,
    ) -> Result<SnapshotInfo, SnapshotError> {
        self.snapshot_for("fork", workspace, options)
    }

    /// As [`Store::snapshot`], of one that Floe takes by itself.
    pub(crate) fn snapshot_for(
        &self,
        reason: &'static str,
        workspace: &str,
        options: &SnapshotOptions,
    ) -> Result<SnapshotInfo, SnapshotError> {
        let started = Instant::now();
        self.with_control_within(workspace, options.patience, |record, control| {
            self.snapshot_locked(record, control, options, Some(reason), started)
        })
    }

    pub(super) fn snapshot_locked(
        &self,
        record: &WorkspaceRecord,
        control: &mut Control,
        options: &SnapshotOptions,
        automatic: Option<&'static str>,
        started: Instant,
    ) -> Result<SnapshotInfo, SnapshotError> {
        // Before anything is held up for it.
        self.core
            .room
            .take(SNAPSHOT_BYTES)
            .map_err(|source| SnapshotError::Room {
                workspace: record.name.clone(),
                source,
            })?;
        let spec = new_spec(record, options, automatic, started)?;
        // What is known of the workspace may be from before a sandbox got it.
        let sandboxed = record.sandboxed || self.core.catalog.is_sandboxed(record.layer)?;
        let failed = |source: FreezeError| match (&source, &spec.name) {
            (FreezeError::Catalog(error), Some(name)) if error.is_conflict() => {
                SnapshotError::NameTaken {
                    workspace: record.name.clone(),
                    name: name.clone(),
                }
            }
            _ => SnapshotError::Freeze {
                workspace: record.name.clone(),
                source,
            },
        };
        let frozen = match &control.view {
            Some(view) => view.freeze(&spec),
            None => freeze_closed(&self.core, &spec, record.layer, record.layer),
        };
        let frozen = frozen.map_err(failed)?;
        let elapsed_us = finish(&self.core, &spec, frozen.layer).map_err(failed)?;
        control.known = Some(WorkspaceRecord {
            layer: frozen.live,
            parent: Some(spec.id.clone()),
            sandboxed,
            ..record.clone()
        });
        Ok(SnapshotInfo {
            id: spec.id,
            workspace: record.name.clone(),
            workspace_id: record.id,
            name: spec.name,
            message: spec.message,
            labels: spec.labels,
            parent: record.parent.clone(),
            created_at: rfc3339(frozen.created_at),
            cursor: SnapshotCursor {
                at: frozen.created_at,
                layer: frozen.layer,
            },
            elapsed_us,
            durable: spec.durable,
            fidelity: match spec.memory {
                true => Fidelity::FilesystemMemory,
                false => Fidelity::Filesystem,
            },
            image: spec.memory.then_some(SnapshotImage {
                state: ImageState::Capturing,
                bytes: 0,
            }),
            automatic: spec.automatic.map(str::to_owned),
            expires_at: spec.expires_at.map(rfc3339),
            protected: spec.protected,
            sandboxed,
            layer: frozen.layer,
        })
    }

    /// Restricts a query to the workspace of a name. Names are used again: where a live workspace
    /// has it, snapshots of deleted ones that had it before are not meant.
    fn of_workspace<'a>(
        &self,
        name: &'a str,
        query: SnapshotQuery<'a>,
    ) -> Result<SnapshotQuery<'a>, CatalogError> {
        Ok(match self.core.catalog.workspaces(Some(name))?.pop() {
            Some(live) => SnapshotQuery {
                workspace: Some(live.id),
                ..query
            },
            None => SnapshotQuery {
                workspace_name: Some(name),
                ..query
            },
        })
    }

    /// Snapshots that match, newest first unless the filter says otherwise. Pages of a list are stable: what
    /// is added or deleted meanwhile moves nothing else. A name of a workspace means the live one, or if there is
    /// none, those that had it before they were deleted.
    ///
    /// # Errors
    /// [`SnapshotError::Workspace`] when the filter names a workspace that neither exists nor has
    /// left snapshots behind.
    pub fn snapshots(&self, filter: &SnapshotFilter) -> Result<Vec<SnapshotInfo>, SnapshotError> {
        let mut query = SnapshotQuery {
            name: filter.name.as_deref(),
            of_sandboxes: filter.of_sandboxes,
            template: filter.template.as_deref(),
            labels: Some(&filter.labels),
            protected: filter.protected,
            memory: filter
                .fidelity
                .map(|fidelity| fidelity == Fidelity::FilesystemMemory),
            automatic: filter.automatic,
            before: filter.before,
            since: filter.since,
            oldest_first: filter.oldest_first,
            after: filter.after.map(|cursor| (cursor.at, cursor.layer)),
            limit: filter.limit,
            ..SnapshotQuery::default()
        };
        if let Some(workspace) = &filter.workspace {
            query = self.of_workspace(workspace, query)?;
        }
        // Of nothing, or of two workspaces at once, there are none.
        let mut any = true;
        if let Some(sandbox) = &filter.sandbox {
            let of = self.core.catalog.workspace_of_sandbox(sandbox)?;
            any = of.is_some() && (query.workspace.is_none() || query.workspace == of);
            query.workspace = of;
        }
        let elapsed = self.core.elapsed.all();
        let found = match any {
            true => self.core.catalog.snapshots(&query)?,
            false => Vec::new(),
        };
        if found.is_empty()
            && let Some(workspace) = &filter.workspace
        {
            let any = SnapshotQuery {
                workspace_name: Some(workspace),
                limit: Some(1),
                ..SnapshotQuery::default()
            };
            if self.core.catalog.snapshots(&any)?.is_empty() {
                self.workspace(workspace)?;
            }
        }
        Ok(found
            .into_iter()
            .map(|found| shown(found, &elapsed))
            .collect())
    }

    /// The snapshot that a text means: an id, the unique beginning of one (four digits or more), a
    /// name that only one snapshot has, or `WORKSPACE/NAME`. Names of deleted workspaces, and of
    /// their snapshots, count only where no live workspace has them.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn find_snapshot(&self, reference: &str) -> Result<SnapshotInfo, FindError> {
        self.find(reference, true)
    }

    /// As [`Store::find_snapshot`]; whether a bare name may be that of a snapshot whose workspace
    /// was deleted is up to the caller.
    pub(super) fn find(
        &self,
        reference: &str,
        of_deleted: bool,
    ) -> Result<SnapshotInfo, FindError> {
        let search = |query: SnapshotQuery<'_>| self.core.catalog.snapshots(&query);
        let some = Some(8);
        let named = |name| SnapshotQuery {
            name: Some(name),
            limit: some,
            ..SnapshotQuery::default()
        };
        let elapsed = self.core.elapsed.all();
        let mut live = false;
        let by_name = match reference.split_once('/') {
            Some((workspace, name)) => search(self.of_workspace(workspace, named(name))?)?,
            None => {
                let of_live_ones = search(SnapshotQuery {
                    of_live_ones: true,
                    ..named(reference)
                })?;
                live = !of_live_ones.is_empty();
                if !live && of_deleted {
                    search(named(reference))?
                } else {
                    of_live_ones
                }
            }
        };
        let mut found = by_name;
        if SnapshotId::is_prefix(reference) && reference.len() >= PREFIX_MIN {
            let by_id = search(SnapshotQuery {
                id_prefix: Some(reference),
                limit: some,
                ..SnapshotQuery::default()
            })?;
            if reference.len() == SnapshotId::DIGITS && !by_id.is_empty() {
                // A full id means itself, whatever names exist.
                found = by_id;
            } else if found.is_empty() {
                found = by_id;
            }
        }
        if found.len() > 1 {
            let candidates = found.iter().map(|snapshot| match &snapshot.name {
                // Of deleted workspaces several may have the name.
                Some(name) if live && name == reference => format!("{}/{name}", snapshot.workspace),
                _ => snapshot.id.to_string(),
            });
            return Err(FindError::Ambiguous {
                reference: reference.to_owned(),
                candidates: candidates.collect(),
            });
        }
        found
            .pop()
            .map(|found| shown(found, &elapsed))
            .ok_or_else(|| FindError::NotFound {
                reference: reference.to_owned(),
            })
    }
}
