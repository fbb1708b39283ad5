//! The disk is full at each write of the store in turn: whoever asked gets an error, nothing that was
//! acknowledged is lost, the store is sound, and everything works once there is room again.
#![cfg(debug_assertions)]

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, Errno, OpError, RenameFlags, SetAttr, Write, XattrMode};
use floe_fs::id::{Ino, SnapshotId};
use floe_fs::{
    DeleteSelection, ForkSource, LandOptions, SnapshotOptions, Store, View, fail_writes,
};

use common::{ROOT_USER, list, name, new_store, node, read};

/// Files of a workspace, by name.
type Files = BTreeMap<String, Vec<u8>>;

/// A store, and what it must show.
struct World {
    store: Arc<Store>,
    view: Arc<View>,
    files: Files,
    /// Snapshots with what they hold.
    frozen: Vec<(SnapshotId, Files)>,
    /// A fork, once there is one, and what it holds.
    fork: Option<Files>,
    refused: u64,
}

/// Whether an operation succeeded; if not, the disk has to be full.
#[track_caller]
fn done<T>(result: Result<T, OpError>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(Errno::from(&error), Errno(libc::ENOSPC), "{error:?}");
            None
        }
    }
}

/// As [`done`], of operations with errors of their own.
#[track_caller]
fn settled<T, E: std::error::Error + 'static>(result: Result<T, E>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(error) => {
            let mut chain = error.to_string();
            let mut next = error.source();
            while let Some(source) = next {
                chain = format!("{chain}: {source}");
                next = source.source();
            }
            let told = chain.to_lowercase();
            assert!(
                told.contains("full") || told.contains("no space"),
                "{chain}"
            );
            None
        }
    }
}

fn bytes(len: usize, seed: u8) -> Vec<u8> {
    let pattern = (0..250_u8).flat_map(|byte| [byte ^ seed; 7]);
    pattern.cycle().take(len).collect()
}

impl World {
    fn new(dir: &Path) -> Self {
        let store = new_store(dir);
        store.create_workspace(&name("w")).unwrap();
        let view = store.open_live("w").unwrap();
        Self {
            store,
            view,
            files: Files::new(),
            frozen: Vec::new(),
            fork: None,
            refused: 0,
        }
    }

    fn note<T>(&mut self, result: Option<T>) -> Option<T> {
        self.refused += u64::from(result.is_none());
        result
    }

    fn find(&self, name: &str) -> Option<Ino> {
        let found = self.view.lookup(Ino::ROOT, name.as_bytes()).unwrap();
        found.map(|entry| entry.ino)
    }

    fn create(&mut self, name: &str) {
        let made = self
            .view
            .make(ROOT_USER, Ino::ROOT, name.as_bytes(), node(FileKind::File));
        if self.note(done(made)).is_some() {
            self.files.insert(name.to_owned(), Vec::new());
        }
    }

    fn write(&mut self, name: &str, offset: usize, data: &[u8]) {
        let Some(ino) = self.find(name) else { return };
        let write = Write {
            offset: offset as u64,
            data,
            append: false,
            kill_set_id: false,
        };
        let written = self.view.write(ino, write);
        let succeeded = self.note(done(written)).is_some();
        let known = self.files.get_mut(name).unwrap();
        let mut after = known.clone();
        after.resize(known.len().max(offset + data.len()), 0);
        after[offset..offset + data.len()].copy_from_slice(data);
        if succeeded {
            *known = after;
            return;
        }
        // As on any file system: what was to be replaced is what it was, or what it was to be.
        let found = read(&self.view, ino);
        assert_eq!(found.len(), known.len(), "{name}");
        for (at, byte) in found.iter().enumerate() {
            assert!(*byte == known[at] || *byte == after[at], "{name} at {at}");
        }
        *known = found;
    }

    fn truncate(&mut self, name: &str, size: u64) {
        let Some(ino) = self.find(name) else { return };
        let set = SetAttr {
            size: Some(size),
            ..SetAttr::default()
        };
        let result = self.view.setattr(ROOT_USER, ino, set);
        if self.note(done(result)).is_some() {
            let known = self.files.get_mut(name).unwrap();
            known.resize(usize::try_from(size).unwrap(), 0);
        }
    }

    fn rename(&mut self, from: &str, to: &str) {
        if !self.files.contains_key(from) {
            return;
        }
        let (old, new) = ((Ino::ROOT, from.as_bytes()), (Ino::ROOT, to.as_bytes()));
        let renamed = self.view.rename(old, new, RenameFlags::default());
        if self.note(done(renamed)).is_some() {
            let bytes = self.files.remove(from).unwrap();
            self.files.insert(to.to_owned(), bytes);
        }
    }

    fn unlink(&mut self, name: &str) {
        if self.files.contains_key(name) {
            let removed = self.view.unlink(Ino::ROOT, name.as_bytes());
            if self.note(done(removed)).is_some() {
                self.files.remove(name);
            }
        }
    }

    fn set_xattr(&mut self, name: &str) {
        let Some(ino) = self.find(name) else { return };
        let set = self
            .view
            .setxattr(ROOT_USER, ino, b"user.a", b"value", XattrMode::Set);
        let expected: &[u8] = match self.note(done(set)) {
            Some(()) => b"value",
            None => return assert!(self.view.getxattr(ino, b"user.a").is_err()),
        };
        assert_eq!(self.view.getxattr(ino, b"user.a").unwrap(), expected);
    }

    fn snapshot(&mut self) {
        let taken = self.store.snapshot("w", &SnapshotOptions::default());
        if let Some(info) = self.note(settled(taken)) {
            self.frozen.push((info.id, self.files.clone()));
        }
    }

    fn fork(&mut self) {
        let Some((id, files)) = self.frozen.last().cloned() else {
            return;
        };
        let forked = self.store.fork(&ForkSource::Snapshot(id), &[name("f")]);
        if self.note(settled(forked)).is_some() {
            self.fork = Some(files);
        }
    }

    /// The fork gets a file, which lands.
    fn land(&mut self) {
        let Some(files) = &mut self.fork else { return };
        let view = self.store.open_live("f").unwrap();
        let made = view.make(ROOT_USER, Ino::ROOT, b"landed", node(FileKind::File));
        let Some(entry) = done(made) else {
            self.refused += 1;
            return;
        };
        files.insert("landed".to_owned(), Vec::new());
        let data = bytes(100_000, 9);
        let write = Write {
            offset: 0,
            data: &data,
            append: false,
            kill_set_id: false,
        };
        if done(view.write(entry.ino, write)).is_none() {
            self.refused += 1;
            return;
        }
        files.insert("landed".to_owned(), data.clone());
        let landed = self.store.land("f", Some("w"), &LandOptions::default());
        if self.note(settled(landed)).is_some() {
            self.files.insert("landed".to_owned(), data);
        }
    }

    fn roll_back(&mut self) {
        let Some((id, files)) = self.frozen.first().cloned() else {
            return;
        };
        let rolled = self.store.rollback("w", id.as_str());
        if self.note(settled(rolled)).is_some() {
            self.files = files;
        }
    }

    fn delete_first(&mut self) {
        if self.frozen.is_empty() {
            return;
        }
        let these = DeleteSelection::These(vec![self.frozen[0].0.to_string()]);
        let deleted = self.store.delete_snapshots(&these, false);
        if self.note(settled(deleted)).is_some() {
            self.frozen.remove(0);
        }
    }

    fn collect(&mut self) {
        let collected = self.store.collect(&mut |_| ControlFlow::Continue(()));
        self.note(settled(collected));
    }

    fn hash(&mut self) {
        let hashed = self.store.hash_now(&mut |_| ControlFlow::Continue(()));
        self.note(settled(hashed));
    }

    /// Everything that a store does.
    fn scenario(&mut self) {
        self.create("small");
        self.write("small", 0, b"a few bytes");
        self.create("large");
        self.write("large", 0, &bytes(300_000, 1));
        self.set_xattr("small");
        self.snapshot();
        self.write("large", 70_000, &bytes(5_000, 2));
        self.write("small", 4, &bytes(20_000, 3));
        self.create("twin");
        self.write("twin", 0, &bytes(300_000, 1));
        self.truncate("twin", 150_001);
        self.truncate("twin", 400_000);
        self.rename("small", "renamed");
        self.snapshot();
        self.fork();
        self.land();
        self.write("twin", 200_000, &bytes(300_000, 4));
        self.unlink("renamed");
        self.hash();
        self.snapshot();
        self.delete_first();
        self.collect();
        self.roll_back();
        self.write("large", 0, &bytes(64 << 10, 5));
        self.collect();
    }

    fn shows(view: &View, files: &Files) {
        let names: Vec<&String> = files.keys().collect();
        assert_eq!(list(view, Ino::ROOT).iter().collect::<Vec<_>>(), names);
        for (name, bytes) in files {
            let found = view.lookup(Ino::ROOT, name.as_bytes()).unwrap().unwrap();
            assert!(read(view, found.ino) == *bytes, "{name}");
        }
    }

    fn check(&self) {
        Self::shows(&self.store.open_live("w").unwrap(), &self.files);
        for (id, files) in &self.frozen {
            Self::shows(&self.store.open_frozen(id).unwrap(), files);
        }
        if let Some(files) = &self.fork {
            Self::shows(&self.store.open_live("f").unwrap(), files);
        }
        let report = self
            .store
            .check_data(&mut |_| ControlFlow::Continue(()))
            .unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
}

/// Runs the scenario with so many writes failing, from one of them on; says how many writes there were.
fn run(first: u64, count: u64) -> (u64, u64) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let mut world = World::new(&path);
    fail_writes(first, count);
    world.scenario();
    let writes = fail_writes(0, 0);
    world.check();
    let refused = world.refused;

    // There is room again, for all of it.
    world.refused = 0;
    for name in ["again", "and again"] {
        world.create(name);
        world.write(name, 0, &bytes(100_000, 6));
        world.snapshot();
    }
    world.collect();
    world.hash();
    assert_eq!(world.refused, 0);
    world.check();
    let World {
        store,
        view,
        files,
        frozen,
        fork,
        ..
    } = world;
    drop((view, store));
    let store = Store::open(&path).unwrap();
    let view = store.open_live("w").unwrap();
    let world = World {
        store,
        view,
        files,
        frozen,
        fork,
        refused: 0,
    };
    world.check();
    (writes, refused)
}

/// One program, one disk: the writes of all threads are counted together.
#[test]
fn the_disk_is_full_at_each_write_in_turn() {
    let (writes, refused) = run(0, 0);
    assert_eq!(refused, 0);
    assert!(writes > 40, "{writes}");
    let mut any = 0;
    // For one write, and for some time.
    for count in [1, 7] {
        for first in 1..=writes {
            any += run(first, count).1;
        }
    }
    assert!(any > writes, "{any} refusals of {writes} writes");
}
