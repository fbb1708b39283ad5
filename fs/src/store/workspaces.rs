//! Making, listing, renaming and deleting workspaces.

use std::time::Duration;

use thiserror::Error;

use super::Store;
use super::types::WorkspaceInfo;
use crate::attr::{Attr, FileKind, Timestamp};
use crate::catalog::{CatalogError, WorkspaceRecord};
use crate::change::{Change, ContentKind, InodeRow, Row};
use crate::engine::now_ns;
use crate::id::{Ino, LayerId, NameError, WorkspaceName};
use crate::layers::TreeError;

/// Why a workspace could not be made, found or changed.
#[derive(Debug, Error)]
pub enum WorkspaceError {
    /// There is none of that name.
    #[error("there is no workspace '{name}'")]
    NotFound {
        /// Name asked for.
        name: String,
        /// Names much like it.
        similar: Vec<String>,
    },
    /// The name is taken.
    #[error("a workspace '{name}' exists already")]
    Exists {
        /// The name.
        name: String,
    },
    /// The name is not allowed.
    #[error(transparent)]
    Name(#[from] NameError),
    /// Something else is being done with it, and lasts longer than somebody could wait.
    #[error("another operation on the workspace '{name}' is under way")]
    Busy {
        /// The name.
        name: String,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The catalog is damaged.
    #[error(transparent)]
    Tree(#[from] TreeError),
}

/// Names from `all` that a person may have meant by `name`: equal but for case, or with one as
/// the beginning of the other.
fn similar<'a>(name: &str, all: impl Iterator<Item = &'a str>) -> Vec<String> {
    let name = name.to_lowercase();
    let mut found: Vec<(usize, String)> = all
        .filter_map(|other| {
            let lower = other.to_lowercase();
            let distance = edit_distance(&name, &lower);
            let near = distance <= 2.min(name.len() / 2)
                || (name.len() >= 3 && (lower.starts_with(&name) || name.starts_with(&lower)));
            near.then(|| (distance, other.to_owned()))
        })
        .collect();
    found.sort();
    found.into_iter().take(3).map(|(_, name)| name).collect()
}

/// Edits that lead from one to the other: a letter put in, left out or replaced, or two neighbours
/// swapped (the commonest slip, "wbe" for "web"). Names are at most 128 bytes.
fn edit_distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=b.len()).collect()];
    for i in 1..=a.len() {
        let mut row = vec![i];
        for j in 1..=b.len() {
            let replaced = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
            let mut least = replaced.min(rows[i - 1][j] + 1).min(row[j - 1] + 1);
            if i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] {
                least = least.min(rows[i - 2][j - 2] + 1);
            }
            row.push(least);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

/// A new, empty directory in the root, or the root itself.
pub(crate) fn directory_row(
    layer: LayerId,
    perm: u16,
    uid: u32,
    gid: u32,
    now: Timestamp,
) -> InodeRow {
    InodeRow {
        attr: Attr {
            kind: FileKind::Directory,
            perm,
            uid,
            gid,
            nlink: 2,
            rdev: 0,
            size: 4096,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        },
        born: layer,
        parent: Ino::ROOT,
        content: ContentKind::Empty,
        has_xattr: false,
    }
}

impl Store {
    /// Makes an empty workspace. Its root belongs to the caller's process, mode 0755.
    ///
    /// # Errors
    /// [`WorkspaceError::Exists`], or a failure of the catalog.
    pub fn create_workspace(&self, name: &WorkspaceName) -> Result<WorkspaceInfo, WorkspaceError> {
        self.check_free(name)?;
        let core = &self.core;
        let (layer, id, now) = (core.numbers.layer(), core.numbers.workspace(), now_ns());
        let uid = rustix::process::geteuid().as_raw();
        let gid = rustix::process::getegid().as_raw();
        let mut change = Change::new();
        change.push(Row::AddLayer {
            id: layer,
            parent: None,
            workspace: id,
            created_at: now,
        });
        let row = directory_row(layer, 0o755, uid, gid, Timestamp::now());
        change.push(Row::PutInode {
            ino: Ino::ROOT,
            layer,
            row: Some(row),
        });
        change.push(Row::AddUsage {
            layer,
            bytes: 0,
            inodes: 1,
        });
        change.push(Row::AddWorkspace {
            id,
            name: name.to_string(),
            layer,
            created_at: now,
            forked_from: None,
            origin: None,
        });
        // First, or somebody could find the workspace and not its layer.
        core.layers.add(layer, None)?;
        self.apply_new(&change, name)?;
        self.workspace(name.as_str())
    }

    /// Applies a change that adds a workspace; the unique index decides a race for the name.
    pub(super) fn apply_new(
        &self,
        change: &Change,
        name: &WorkspaceName,
    ) -> Result<(), WorkspaceError> {
        match self.core.catalog.apply(change) {
            Err(error) if error.is_conflict() => Err(WorkspaceError::Exists {
                name: name.to_string(),
            }),
            other => Ok(other?),
        }
    }

    /// Fails if a workspace has the name.
    pub(super) fn check_free(&self, name: &WorkspaceName) -> Result<(), WorkspaceError> {
        if self
            .core
            .catalog
            .workspaces(Some(name.as_str()))?
            .is_empty()
        {
            Ok(())
        } else {
            Err(WorkspaceError::Exists {
                name: name.to_string(),
            })
        }
    }

    /// Every workspace, by name.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn workspaces(&self) -> Result<Vec<WorkspaceInfo>, CatalogError> {
        let records = self.core.catalog.workspaces(None)?;
        records
            .into_iter()
            .map(|record| self.describe(record))
            .collect()
    }

    /// One workspace.
    ///
    /// # Errors
    /// [`WorkspaceError::NotFound`] with names much like it.
    pub fn workspace(&self, name: &str) -> Result<WorkspaceInfo, WorkspaceError> {
        Ok(self.describe(self.workspace_record(name)?)?)
    }

    fn describe(&self, record: WorkspaceRecord) -> Result<WorkspaceInfo, CatalogError> {
        let snapshot_count = self.core.catalog.snapshot_count(record.id)?;
        let base = self.base_info(record.layer)?;
        Ok(WorkspaceInfo::new(record, snapshot_count, base))
    }

    pub(crate) fn workspace_record(&self, name: &str) -> Result<WorkspaceRecord, WorkspaceError> {
        if let Some(found) = self.core.catalog.workspaces(Some(name))?.pop() {
            return Ok(found);
        }
        let all = self.core.catalog.workspaces(None)?;
        let similar = similar(name, all.iter().map(|record| record.name.as_str()));
        Err(WorkspaceError::NotFound {
            name: name.to_owned(),
            similar,
        })
    }

    /// Runs an operation on a workspace with its control mutex held, with the workspace as it is
    /// then, but for its size.
    pub(super) fn with_control<T, E: From<WorkspaceError>>(
        &self,
        name: &str,
        act: impl FnOnce(&WorkspaceRecord, &mut super::control::Control) -> Result<T, E>,
    ) -> Result<T, E> {
        self.with_control_within(name, None, act)
    }

    /// The same, but does not wait for others longer than `patience`.
    pub(super) fn with_control_within<T, E: From<WorkspaceError>>(
        &self,
        name: &str,
        patience: Option<Duration>,
        act: impl FnOnce(&WorkspaceRecord, &mut super::control::Control) -> Result<T, E>,
    ) -> Result<T, E> {
        let mut id = match self.controls.last_known(name) {
            Some(id) => id,
            None => self.workspace_record(name)?.id,
        };
        loop {
            let control = self.controls.of(id);
            let mut control = match patience {
                None => control.lock(),
                Some(patience) => {
                    let busy = || WorkspaceError::Busy {
                        name: name.to_owned(),
                    };
                    control.try_lock_for(patience).ok_or_else(busy)?
                }
            };
            // Only now: while this waited the workspace may have been deleted or renamed, and its
            // layer has moved on.
            let known = control.known.take().filter(|known| known.name == name);
            let record = match known {
                Some(known) => known,
                None => self.workspace_record(name)?,
            };
            if record.id == id && !control.deleted {
                self.controls.note(name, id);
                return act(&record, &mut control);
            }
            id = record.id;
        }
    }

    /// Gives a workspace another name. Mounts stay.
    ///
    /// # Errors
    /// [`WorkspaceError::NotFound`], [`WorkspaceError::Exists`].
    pub fn rename_workspace(
        &self,
        name: &str,
        to: &WorkspaceName,
    ) -> Result<WorkspaceInfo, WorkspaceError> {
        self.with_control(name, |record, _| {
            if record.name != to.as_str() {
                self.check_free(to)?;
                let row = Row::RenameWorkspace {
                    id: record.id,
                    name: to.to_string(),
                };
                self.apply_new(&Change::from(row), to)?;
            }
            Ok::<_, WorkspaceError>(())
        })?;
        self.workspace(to.as_str())
    }

    /// Deletes a workspace. Its snapshots stay; what was changed since the last of them is gone. While it
    /// is mounted that is still there for those who use it, until the last mount is gone. Says
    /// whether it is.
    ///
    /// # Errors
    /// [`WorkspaceError::NotFound`].
    pub fn delete_workspace(&self, name: &str) -> Result<bool, WorkspaceError> {
        self.with_control(name, |record, control| {
            let mut change = Change::new();
            change.push(Row::DeleteWorkspace {
                id: record.id,
                deleted_at: now_ns(),
            });
            let open = control.view.is_some();
            if !open {
                change.push(Row::DoomLayer { id: record.layer });
            }
            self.core.catalog.apply(&change)?;
            control.deleted = true;
            self.controls.forget_name(name);
            if !open {
                self.controls.forget(record.id);
                self.core.collect.ask();
            }
            Ok(open)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::SnapshotOptions;

    #[test]
    fn near_names_are_suggested_nearest_first() {
        let all = ["main", "mine", "feature-x", "Feature", "other"];
        let find = |name| similar(name, all.iter().copied());
        assert_eq!(find("mian"), ["main", "mine"]);
        assert_eq!(find("feature"), ["Feature", "feature-x"]);
        assert_eq!(find("zzz"), Vec::<String>::new());
        assert_eq!(find("fetaure-x"), ["feature-x"]);
        assert_eq!(edit_distance("kitten", "sitting"), 3);
        // Once two edits, and so too far from a name of three letters to be suggested.
        assert_eq!(edit_distance("wbe", "web"), 1);
    }

    #[test]
    fn who_has_no_patience_is_told_that_another_operation_is_under_way() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("store");
        Store::init(&dir).unwrap();
        let store = Store::open(&dir).unwrap();
        store
            .create_workspace(&WorkspaceName::parse("w").unwrap())
            .unwrap();
        let options = SnapshotOptions {
            patience: Some(Duration::from_millis(1)),
            ..SnapshotOptions::default()
        };
        let held = store.with_control("w", |_, _| {
            let taken = std::thread::scope(|scope| {
                let other = scope.spawn(|| store.snapshot("w", &options));
                other.join().unwrap()
            });
            let error = taken.unwrap_err();
            assert_eq!(
                error.to_string(),
                "another operation on the workspace 'w' is under way"
            );
            Ok::<_, WorkspaceError>(())
        });
        held.unwrap();
        store.snapshot("w", &options).unwrap();
    }
}
