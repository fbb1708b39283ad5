//! What each test of landings begins with.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use floe_fs::{
    HostChange, HostLandError, HostPart, HostPlan, HostReport, OpenError, Ours, Store, Theirs,
};

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
        Store::init(&store).unwrap();
        let made = open(&store);
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
        open(&self.store)
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

    /// What the directory was before the plan, made anew.
    pub fn expected_before(&self) -> Tree {
        Self::with_everything().scan()
    }

    /// A staging directory that is there.
    pub fn staging(&self) -> Option<PathBuf> {
        let mut entries = fs::read_dir(&self.root).unwrap().map(|one| one.unwrap());
        let found =
            entries.find(|one| one.file_name().to_string_lossy().starts_with(".floe-land-"));
        found.map(|one| one.path())
    }

    /// Makes somebody the owner of the directory and the store.
    pub fn give_to(&self, user: u32) {
        let status = std::process::Command::new("chown")
            .args(["-Rh", &format!("{user}:{user}")])
            .arg(self._dir.path())
            .status();
        assert!(status.unwrap().success());
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

/// Opens a store. A child that another test has forked shares the lock until it runs its program.
fn open(dir: &Path) -> Arc<Store> {
    for _ in 0..1000 {
        match Store::open(dir) {
            Err(OpenError::Locked { .. }) => std::thread::sleep(Duration::from_millis(5)),
            opened => return opened.unwrap(),
        }
    }
    panic!("{} stays locked", dir.display());
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
