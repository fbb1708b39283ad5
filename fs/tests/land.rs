//! Landings of renames that meet, and onto a workspace that never rests.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, RenameFlags};
use floe_fs::id::Ino;
use floe_fs::{FileChange, ForkSource, LandOptions, LandReport, Store, View};

use common::{append, list, make, name, new_store, read, write};

struct World {
    _dir: tempfile::TempDir,
    store: Arc<Store>,
    ours: Arc<View>,
    theirs: Arc<View>,
}

impl World {
    /// A workspace `t` with directories `a` and `b` and a file in each, and a fork `w` of it.
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = new_store(&dir.path().join("store"));
        store.create_workspace(&name("t")).unwrap();
        let theirs = store.open_live("t").unwrap();
        for directory in ["a", "b"] {
            let made = make(&theirs, Ino::ROOT, directory, FileKind::Directory);
            write(
                &theirs,
                make(&theirs, made, "file", FileKind::File),
                0,
                b"1\n2\n3\n",
            );
        }
        let source = ForkSource::Workspace("t".into());
        store.fork(&source, &[name("w")]).unwrap();
        let ours = store.open_live("w").unwrap();
        Self {
            _dir: dir,
            store,
            ours,
            theirs,
        }
    }

    fn land(&self, only: &[&str]) -> LandReport {
        let options = LandOptions {
            only: only.iter().map(|path| path.as_bytes().to_vec()).collect(),
            ..LandOptions::default()
        };
        let report = self.store.land("w", None, &options).unwrap();
        let checked = self.store.check().unwrap();
        assert!(checked.is_clean(), "{:?}", checked.problems);
        report
    }
}

fn find(view: &View, path: &str) -> Ino {
    let names = path.split('/').filter(|name| !name.is_empty());
    names.fold(Ino::ROOT, |at, name| {
        let found = view.lookup(at, name.as_bytes()).unwrap();
        found.unwrap_or_else(|| panic!("{path}: no {name}")).ino
    })
}

fn rename(view: &View, from: &str, to: &str) {
    let split = |path: &str| {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        (find(view, parent), name.to_owned())
    };
    let (from, to) = (split(from), split(to));
    view.rename(
        (from.0, from.1.as_bytes()),
        (to.0, to.1.as_bytes()),
        RenameFlags::default(),
    )
    .unwrap();
}

#[test]
fn directories_that_were_moved_into_each_other_conflict() {
    let world = World::new();
    rename(&world.ours, "a", "b/a");
    rename(&world.theirs, "b", "a/b");
    let report = world.land(&[]);
    assert!(!report.landed && report.conflicts.len() == 1, "{report:?}");
    assert_eq!(list(&world.theirs, Ino::ROOT), ["a"]);
}

#[test]
fn the_same_rename_on_both_sides_is_one() {
    let world = World::new();
    for view in [&world.ours, &world.theirs] {
        rename(view, "a/file", "b/moved");
    }
    write(&world.ours, find(&world.ours, "b/moved"), 0, b"ours");
    let report = world.land(&[]);
    assert!(report.landed, "{report:?}");
    assert_eq!(report.entries[0].change, FileChange::Modified);
    assert_eq!(
        read(&world.theirs, find(&world.theirs, "b/moved")),
        b"ours3\n"
    );
}

#[test]
fn a_renamed_file_takes_its_contents_from_the_side_that_changed_them() {
    let world = World::new();
    rename(&world.ours, "a/file", "b/renamed");
    let file = find(&world.theirs, "a/file");
    append(&world.theirs, file, b"theirs\n");
    assert!(world.land(&[]).landed);
    // The inode is the same, so whoever has the file open goes on.
    assert_eq!(find(&world.theirs, "b/renamed"), file);
    assert_eq!(read(&world.theirs, file), b"1\n2\n3\ntheirs\n");
    assert!(list(&world.theirs, find(&world.theirs, "a")).is_empty());
}

#[test]
fn some_paths_land_with_the_directories_they_need_and_the_rest_later() {
    let world = World::new();
    let (view, file) = (&world.ours, FileKind::File);
    let made = make(view, find(view, "a"), "new", FileKind::Directory);
    let deep = make(view, made, "deep", FileKind::Directory);
    write(view, make(view, deep, "wanted", file), 0, b"wanted");
    write(view, make(view, deep, "later", file), 0, b"later");
    write(view, find(view, "b/file"), 0, b"later");
    let report = world.land(&["a/new/deep/wanted"]);
    let paths: Vec<_> = report.entries.iter().map(|entry| &entry.path[..]).collect();
    assert_eq!(paths, [&b"a/new"[..], b"a/new/deep", b"a/new/deep/wanted"]);
    let there = find(&world.theirs, "a/new/deep");
    assert_eq!(list(&world.theirs, there), ["wanted"]);
    assert_eq!(
        read(&world.theirs, find(&world.theirs, "b/file")),
        b"1\n2\n3\n"
    );
    let report = world.land(&[]);
    assert_eq!(report.entries.len(), 2, "{report:?}");
    assert_eq!(list(&world.theirs, there), ["later", "wanted"]);
    assert_eq!(
        read(&world.theirs, find(&world.theirs, "b/file")),
        b"later\n"
    );
}

#[test]
fn a_file_that_became_a_directory_lands_unless_it_was_changed() {
    for changed in [false, true] {
        let world = World::new();
        world.ours.unlink(find(&world.ours, "a"), b"file").unwrap();
        let made = make(
            &world.ours,
            find(&world.ours, "a"),
            "file",
            FileKind::Directory,
        );
        make(&world.ours, made, "in it", FileKind::Symlink);
        if changed {
            append(&world.theirs, find(&world.theirs, "a/file"), b"4\n");
        }
        let report = world.land(&[]);
        assert_eq!(report.landed, !changed, "{report:?}");
        if !changed {
            find(&world.theirs, "a/file/in it");
        }
    }
}

#[test]
fn a_landing_comes_to_an_end_however_busy_the_other_workspace_is() {
    let world = World::new();
    let stop = AtomicBool::new(false);
    let made: Vec<Ino> = ["x", "y"]
        .iter()
        .map(|name| make(&world.theirs, Ino::ROOT, name, FileKind::File))
        .collect();
    let written = std::thread::scope(|scope| {
        let writers: Vec<_> = made
            .iter()
            .map(|&ino| {
                let (view, stop) = (&world.theirs, &stop);
                scope.spawn(move || {
                    let mut written = 0_u64;
                    while !stop.load(Ordering::Relaxed) {
                        write(view, ino, written * 8, &written.to_le_bytes());
                        written += 1;
                    }
                    written
                })
            })
            .collect();
        for round in 0..10 {
            let text = format!("round {round}\n");
            write(&world.ours, find(&world.ours, "a/file"), 0, text.as_bytes());
            assert!(world.land(&[]).landed);
        }
        stop.store(true, Ordering::Relaxed);
        let ended = writers.into_iter().map(|writer| writer.join().unwrap());
        ended.collect::<Vec<u64>>()
    });
    assert!(read(&world.theirs, find(&world.theirs, "a/file")).starts_with(b"round 9\n"));
    for (&ino, written) in made.iter().zip(written) {
        let bytes = read(&world.theirs, ino);
        assert_eq!(bytes.len() as u64, written * 8);
        for (at, found) in bytes.chunks(8).enumerate() {
            assert_eq!(found, (at as u64).to_le_bytes());
        }
    }
}
