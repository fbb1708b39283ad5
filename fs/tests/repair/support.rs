//! A store to damage, and what looks at it.

#![allow(dead_code, reason = "each test program uses some of it")]

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, Errno, OpError};
use floe_fs::id::{Ino, LayerId, SnapshotId, SnapshotName};
use floe_fs::{CheckReport, RepairOptions, RepairReport, SnapshotOptions, Store, View};

use crate::common::{copy_dir, make, name, new_store, write};

pub const BLOCK: usize = 64 << 10;
/// The object of the snapshot.
pub const OLD: u64 = 1;
/// That of the workspace.
pub const NEW: u64 = 2;
pub const EIO: i32 = 5;
/// Bytes of the large file: seven blocks, the last not full.
pub const LARGE: usize = 6 * BLOCK + 100;

pub const DATA: RepairOptions = RepairOptions {
    data: true,
    dry_run: false,
};
pub const METADATA: RepairOptions = RepairOptions {
    data: false,
    dry_run: false,
};

/// What the large file holds in the snapshot.
pub fn large() -> Vec<u8> {
    (0..LARGE)
        .map(|at| u8::try_from(at / BLOCK * 10 + at % 7 + 1).unwrap())
        .collect()
}

/// A closed store: the snapshot `one` of the workspace `w` has `/dir/large`, also called `/other`, and
/// `/dir/small`; in the workspace itself block 0 of the large file was written over.
pub struct Fixture {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
    pub frozen: LayerId,
    pub live: LayerId,
    pub dir: Ino,
    pub large: Ino,
    pub small: Ino,
    pub snapshot: SnapshotId,
}

pub fn fixture() -> Fixture {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = new_store(&path);
    // Only what a test asks for is hashed.
    store.set("hash-rate", Some("off")).unwrap();
    let frozen = store.create_workspace(&name("w")).unwrap().layer;
    let view = store.open_live("w").unwrap();
    let inner = make(&view, Ino::ROOT, "dir", FileKind::Directory);
    let file = make(&view, inner, "large", FileKind::File);
    let small = make(&view, inner, "small", FileKind::File);
    write(&view, file, 0, &large());
    write(&view, small, 0, b"small");
    view.link(file, Ino::ROOT, b"other").unwrap();
    let options = SnapshotOptions {
        name: Some(SnapshotName::parse("one").unwrap()),
        ..SnapshotOptions::default()
    };
    let info = store.snapshot("w", &options).unwrap();
    assert_eq!(info.layer, frozen);
    let live = store.workspace("w").unwrap().layer;
    write(&view, file, 0, &[0xee; BLOCK]);
    store.close_view(&view);
    drop(view);
    let snapshot = info.id;
    close(store);
    Fixture {
        _dir: dir,
        path,
        frozen,
        live,
        dir: inner,
        large: file,
        small,
        snapshot,
    }
}

/// Ends a store in good order.
pub fn close(store: Arc<Store>) {
    store.settle().unwrap();
    drop(store);
}

impl Fixture {
    /// A copy of the store, closed, that was open once: then it is at home where it is.
    pub fn copy(&self) -> Copy {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        copy_dir(&self.path, &path);
        close(Store::open(&path).unwrap());
        Copy { _dir: dir, path }
    }
}

/// A copy of the store, to damage.
pub struct Copy {
    _dir: tempfile::TempDir,
    pub path: PathBuf,
}

impl Copy {
    pub fn sql(&self, sql: &str) {
        let connection = rusqlite::Connection::open(self.path.join("catalog.db")).unwrap();
        connection
            .pragma_update(None, "foreign_keys", false)
            .unwrap();
        connection.execute_batch(sql).unwrap();
        assert!(connection.changes() > 0, "nothing changed: {sql}");
    }

    pub fn object(&self, id: u64) -> PathBuf {
        self.path.join(format!("objects/{:x}/{id:x}", id / 4096))
    }

    /// Has what is frozen hashed.
    pub fn hash(&self) {
        let store = self.open();
        let hashed = store.hash_now(&mut |_| ControlFlow::Continue(())).unwrap();
        assert_eq!((hashed.objects, hashed.failed), (1, 0));
        close(store);
    }

    pub fn flip(&self, id: u64, at: usize) {
        let file = std::fs::OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.object(id))
            .unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at as u64).unwrap();
        file.write_all_at(&[byte[0] ^ 0x55], at as u64).unwrap();
    }

    pub fn open(&self) -> Arc<Store> {
        Store::open(&self.path).unwrap()
    }

    /// Every file of the store with its bytes, but for what being open changes.
    pub fn files(&self) -> BTreeMap<PathBuf, Vec<u8>> {
        let mut files = BTreeMap::new();
        let mut todo = vec![self.path.clone()];
        while let Some(dir) = todo.pop() {
            for entry in std::fs::read_dir(dir).unwrap() {
                let path = entry.unwrap().path();
                if path.is_dir() {
                    todo.push(path);
                } else if !path.ends_with("lock") && !path.to_string_lossy().contains("catalog.db-")
                {
                    files.insert(path.clone(), std::fs::read(path).unwrap());
                }
            }
        }
        files
    }
}

pub fn check_data(store: &Store) -> CheckReport {
    store
        .check_data(&mut |_| ControlFlow::Continue(()))
        .unwrap()
}

pub fn repair(store: &Store, options: RepairOptions) -> RepairReport {
    store
        .repair(options, &mut |_| ControlFlow::Continue(()))
        .unwrap()
}

/// Bytes of a file, or the error that reading them gives.
pub fn read_at(view: &View, ino: Ino, at: usize, len: usize) -> Result<Vec<u8>, i32> {
    let mut out = Vec::new();
    let read = view.read(ino, at as u64, len, &mut out);
    read.map_err(|error: OpError| Errno::from(&error).0)?;
    Ok(out)
}

/// The names in a store's quarantine that are not copies of the catalog.
pub fn quarantined(path: &Path) -> Vec<String> {
    let Ok(entries) = std::fs::read_dir(path.join("quarantine")) else {
        return Vec::new();
    };
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| !name.starts_with("catalog-"))
        .collect();
    names.sort();
    names
}
