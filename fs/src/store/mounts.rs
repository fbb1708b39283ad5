//! Remembering mounts, so that a daemon started after a crash can restore them.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use super::Store;
use super::types::{MountRecord, MountTarget};
use crate::catalog::CatalogError;
use crate::change::{Change, Row};
use crate::id::{SnapshotId, WorkspaceId};

impl Store {
    /// Remembers a mount, in place of another at the same directory.
    ///
    /// # Errors
    /// When the catalog cannot be changed.
    pub fn record_mount(&self, mount: &MountRecord) -> Result<(), CatalogError> {
        let (workspace, snapshot) = columns(&mount.target);
        let dir = mount.dir.as_os_str().as_bytes().to_vec();
        self.core.catalog.apply(&Change::from(Row::PutMount {
            dir,
            workspace,
            snapshot,
            read_only: mount.read_only,
        }))
    }

    /// Forgets a mount. One that is not known is fine, and one of something else at the same
    /// directory stays: it may have been made meanwhile.
    ///
    /// # Errors
    /// When the catalog cannot be changed.
    pub fn forget_mount(&self, mount: &MountRecord) -> Result<(), CatalogError> {
        let (workspace, snapshot) = columns(&mount.target);
        let dir = mount.dir.as_os_str().as_bytes().to_vec();
        self.core.catalog.apply(&Change::from(Row::DropMount {
            dir,
            workspace,
            snapshot,
        }))
    }

    /// Mounts that were recorded and not forgotten.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn recorded_mounts(&self) -> Result<Vec<MountRecord>, CatalogError> {
        let rows = self.core.catalog.mounts()?;
        let records = rows.into_iter().filter_map(|row| {
            let target = match (row.workspace, row.snapshot) {
                (Some(id), _) => MountTarget::Workspace(id),
                (None, Some(id)) => MountTarget::Snapshot(id),
                (None, None) => return None,
            };
            Some(MountRecord {
                target,
                dir: PathBuf::from(OsStr::from_bytes(&row.dir)),
                read_only: row.read_only,
            })
        });
        Ok(records.collect())
    }
}

fn columns(target: &MountTarget) -> (Option<WorkspaceId>, Option<SnapshotId>) {
    match target {
        MountTarget::Workspace(id) => (Some(*id), None),
        MountTarget::Snapshot(id) => (None, Some(id.clone())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::id::WorkspaceName;

    fn open(dir: &std::path::Path) -> std::sync::Arc<Store> {
        Store::open(dir).unwrap()
    }

    #[test]
    fn a_record_is_forgotten_only_for_what_it_names() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("store");
        Store::init(&dir).unwrap();
        let store = open(&dir);
        let record = |name: &str| MountRecord {
            target: MountTarget::Workspace(
                store
                    .create_workspace(&WorkspaceName::parse(name).unwrap())
                    .unwrap()
                    .id,
            ),
            dir: "/somewhere".into(),
            read_only: name == "b",
        };
        let (first, second) = (record("a"), record("b"));
        store.record_mount(&first).unwrap();
        store.record_mount(&second).unwrap();
        // Once the second was gone from the catalog, too, while it was mounted.
        store.forget_mount(&first).unwrap();
        assert_eq!(
            store.recorded_mounts().unwrap(),
            std::slice::from_ref(&second)
        );
        store.forget_mount(&second).unwrap();
        assert!(store.recorded_mounts().unwrap().is_empty());
    }

    #[test]
    fn a_store_that_was_moved_has_no_mounts() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("store");
        Store::init(&dir).unwrap();
        let store = open(&dir);
        let name = WorkspaceName::parse("w").unwrap();
        let record = MountRecord {
            target: MountTarget::Workspace(store.create_workspace(&name).unwrap().id),
            dir: "/somewhere".into(),
            read_only: false,
        };
        store.record_mount(&record).unwrap();
        drop(store);
        assert_eq!(open(&dir).recorded_mounts().unwrap(), [record]);
        let moved = scratch.path().join("moved");
        std::fs::rename(&dir, &moved).unwrap();
        assert!(open(&moved).recorded_mounts().unwrap().is_empty());
    }
}
