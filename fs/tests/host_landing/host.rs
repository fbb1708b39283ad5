//! What each test of landings begins with.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;

use floe_fs::{HostChange, HostLandError, HostPart, HostPlan, HostReport, Ours, Store, Theirs};

use super::case::{self, Contents};
use super::common;
use super::tree::{self, Tree, scan};

pub const NOTHING: Contents<'static> = Contents(&|| ());

/// A directory of the host, and a store with a workspace.
pub struct Host {
    _dir: tempfile::TempDir,
    pub store: PathBuf,
    pub root: PathBuf,
}

impl Host {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (store, root) = (dir.path().join("s"), dir.path().join("root"));
        fs::create_dir(&root).unwrap();
        let made = common::new_store(&store);
        made.create_workspace(&common::name("w")).unwrap();
        Self {
            _dir: dir,
            store,
            root,
        }
    }

    pub fn with_everything() -> Self {
        let host = Self::new();
        case::make(&host.root);
        host
    }

    pub fn open(&self) -> Arc<Store> {
        Store::open(&self.store).unwrap()
    }

    pub fn scan(&self) -> Tree {
        scan(&self.root)
    }

    pub fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    pub fn plan(&self, changes: Vec<HostChange>) -> HostPlan {
        let root = self.root.clone();
        HostPlan {
            parts: vec![HostPart { root, changes }],
        }
    }

    /// What the tree is after the plan, by ordinary means.
    pub fn expected(&self) -> Tree {
        let copy = self.root.with_file_name("expected");
        tree::copy(&self.root, &copy);
        case::expect(&copy);
        scan(&copy)
    }

    /// Files that the store keeps of landings.
    pub fn kept(&self) -> usize {
        let landings = fs::read_dir(self.store.join("landings"));
        landings.map_or(0, |dirs| {
            dirs.map(|dir| fs::read_dir(dir.unwrap().path()).unwrap().count())
                .sum()
        })
    }

    #[track_caller]
    pub fn assert_sound(&self, store: &Store) {
        let report = store.check().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
}

/// The conflicts that something ended with.
#[track_caller]
pub fn conflicts(done: Result<HostReport, HostLandError>) -> Vec<(String, Ours, Theirs)> {
    match done {
        Err(HostLandError::Conflicts(found)) => found
            .into_iter()
            .map(|one| (String::from_utf8(one.path).unwrap(), one.ours, one.theirs))
            .collect(),
        other => panic!("{other:?}"),
    }
}
