//! Changing what is said of snapshots: what they show never changes.

use std::collections::{BTreeMap, HashSet};

use thiserror::Error;

use super::types::SnapshotInfo;
use super::{FindError, Store};
use crate::catalog::CatalogError;
use crate::change::{Change, Row};
use crate::id::SnapshotName;

/// What becomes of something that may be absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Edit<T> {
    /// It stays as it is.
    #[default]
    Keep,
    /// It is absent from then on.
    Clear,
    /// It is this.
    Set(T),
}

impl<T> Edit<T> {
    /// What it is from then on, if it does not stay as it is.
    fn change(&self) -> Option<Option<&T>> {
        match self {
            Self::Keep => None,
            Self::Clear => Some(None),
            Self::Set(value) => Some(Some(value)),
        }
    }
}

/// What to change of a snapshot.
#[derive(Clone, Debug, Default)]
pub struct SnapshotEdit {
    /// Its name.
    pub name: Edit<SnapshotName>,
    /// Its message.
    pub message: Edit<String>,
    /// When it is deleted, in nanoseconds since the epoch.
    pub expires_at: Edit<i64>,
    /// Whether it is protected.
    pub protected: Option<bool>,
    /// Labels that it gets, or that get another value.
    pub labels: BTreeMap<String, String>,
    /// Labels that it loses, if it has them.
    pub without: Vec<String>,
}

/// Why no snapshot was changed.
#[derive(Debug, Error)]
pub enum EditError {
    /// One was not found.
    #[error(transparent)]
    Find(#[from] FindError),
    /// Another snapshot of the workspace has the name.
    #[error("the workspace '{workspace}' has a snapshot '{name}' already")]
    NameTaken {
        /// The workspace.
        workspace: String,
        /// The name.
        name: String,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Store {
    /// Changes snapshots, all of them or none; returns them as they are then.
    ///
    /// # Errors
    /// [`EditError`].
    pub fn edit_snapshots(
        &self,
        references: &[String],
        edit: &SnapshotEdit,
    ) -> Result<Vec<SnapshotInfo>, EditError> {
        let _deciding = self.core.deciding.lock();
        let mut infos: Vec<SnapshotInfo> = Vec::new();
        let (mut change, mut seen) = (Change::new(), HashSet::new());
        for reference in references {
            let info = self.find_snapshot(reference)?;
            if seen.insert(info.layer) {
                edit_rows(&info, edit, &mut change);
                infos.push(info);
            }
        }
        if !change.is_empty() {
            self.core.catalog.apply(&change).map_err(|error| {
                match (&edit.name, infos.first()) {
                    (Edit::Set(name), Some(first)) if error.is_conflict() => EditError::NameTaken {
                        workspace: first.workspace.clone(),
                        name: name.to_string(),
                    },
                    _ => error.into(),
                }
            })?;
        }
        self.core.retain.changed();
        // Whether that lets a rule or an expiry delete them is for the thread to find out.
        for info in &infos {
            if edit.expires_at != Edit::Keep || edit.protected == Some(false) {
                self.core.retain.expires(i64::MIN);
                self.core.retain.edited(info.workspace_id);
            }
        }
        let now = infos.iter().map(|info| {
            let found = self.find_snapshot(info.id.as_str());
            found.map_err(EditError::from)
        });
        now.collect()
    }
}

fn edit_rows(info: &SnapshotInfo, edit: &SnapshotEdit, change: &mut Change) {
    let id = || info.id.clone();
    if let Some(name) = edit.name.change() {
        change.push(Row::RenameSnapshot {
            id: id(),
            name: name.map(ToString::to_string),
        });
    }
    if let Some(message) = edit.message.change() {
        change.push(Row::SetMessage {
            id: id(),
            message: message.cloned(),
        });
    }
    if let Some(expires_at) = edit.expires_at.change() {
        change.push(Row::SetExpiry {
            id: id(),
            expires_at: expires_at.copied(),
        });
    }
    if let Some(protected) = edit.protected {
        change.push(Row::ProtectSnapshot {
            id: id(),
            protected,
        });
    }
    for key in &edit.without {
        change.push(Row::DropLabel {
            snapshot: id(),
            key: key.clone(),
        });
    }
    for (key, value) in &edit.labels {
        change.push(Row::PutLabel {
            snapshot: id(),
            key: key.clone(),
            value: value.clone(),
        });
    }
}
