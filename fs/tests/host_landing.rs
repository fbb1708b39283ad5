//! Landing in a directory of the host: all or nothing, whoever is killed or changes what meanwhile.

#![allow(
    clippy::cast_possible_truncation,
    reason = "numbers of a test are small"
)]

#[path = "host_landing/case.rs"]
mod case;
mod common;
#[path = "host_landing/host.rs"]
mod host;
#[path = "host_landing/killed.rs"]
mod killed;
#[path = "host_landing/tree.rs"]
mod tree;

use std::cell::Cell;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use floe_fs::{HostLandError, HostPart, HostPlan, NewKind, Ours, Theirs};

use case::Contents;
use host::{Host, NOTHING, conflicts};
use tree::{Tree, assert_same, dated, file, meta, put, put_file, remove, rename, scan, set_meta};

#[test]
fn everything_that_can_change_is_landed_and_undone() {
    let host = Host::with_everything();
    let (before, after) = (host.scan(), host.expected());
    let inode = fs::metadata(host.at("old/stays")).unwrap().ino();
    let store = host.open();
    let plan = case::plan(&host.root);
    let would = store.land_on_host("w", &plan, &NOTHING, true).unwrap();
    assert_same(&host.scan(), &before, "a dry run");
    let report = store.land_on_host("w", &plan, &NOTHING, false).unwrap();
    assert_eq!(report, would);
    assert_same(&host.scan(), &after, "landed");
    // What is moved is the same file, and holes stay holes.
    assert_eq!(fs::metadata(host.at("new/stays")).unwrap().ino(), inode);
    assert!(fs::metadata(host.at("nest/more/large")).unwrap().blocks() * 512 < 1 << 20);
    assert!(host.kept() > 0);
    host.assert_sound(&store);
    let log: Vec<_> = store.log("w", Some(1)).unwrap();
    assert_eq!(log[0].kind, floe_fs::LogKind::Land);

    assert!(!store.undo_on_host("w", true).unwrap().is_empty());
    assert_same(&host.scan(), &after, "a dry run");
    store.undo_on_host("w", false).unwrap();
    assert_same(&host.scan(), &before, "undone");
    assert_eq!(host.kept(), 0);
    let again = store.undo_on_host("w", false);
    assert!(
        matches!(again, Err(HostLandError::NothingToUndo)),
        "{again:?}"
    );
    // Two names of one file are one file still.
    let ino = |path| fs::metadata(host.at(path)).unwrap().ino();
    assert_eq!(ino("one"), ino("two"));
}

#[test]
fn landings_are_undone_one_after_the_other() {
    let host = Host::new();
    file(&host.at("a"), "0", 0o644);
    let store = host.open();
    let mut states = vec![host.scan()];
    for n in 1..=3 {
        let changes = vec![
            remove(&host.root, "a"),
            put_file("a", n, case::size(n), 0o644, 5),
        ];
        store
            .land_on_host("w", &host.plan(changes), &NOTHING, false)
            .unwrap();
        states.push(host.scan());
    }
    states.pop();
    while let Some(state) = states.pop() {
        store.undo_on_host("w", false).unwrap();
        assert_same(&host.scan(), &state, states.len());
    }
}

#[test]
fn the_undo_of_the_last_landings_only_is_kept() {
    let host = Host::new();
    file(&host.at("a"), "0", 0o644);
    let store = host.open();
    for n in 1..=12 {
        let changes = vec![
            remove(&host.root, "a"),
            put_file("a", n, case::size(n), 0o644, 5),
        ];
        store
            .land_on_host("w", &host.plan(changes), &NOTHING, false)
            .unwrap();
    }
    assert_eq!(host.kept(), 8);
    for _ in 0..8 {
        store.undo_on_host("w", false).unwrap();
    }
    let mut wanted = Vec::new();
    floe_fs::Source::read(&NOTHING, 4, 0, 1000, &mut wanted).unwrap();
    assert_eq!(fs::read(host.at("a")).unwrap(), wanted);
    let again = store.undo_on_host("w", false);
    assert!(
        matches!(again, Err(HostLandError::NothingToUndo)),
        "{again:?}"
    );
}

#[test]
fn what_others_changed_is_a_conflict_and_nothing_is_touched() {
    let host = Host::with_everything();
    let plan = case::plan(&host.root);
    file(&host.at("src/changed"), "theirs", 0o644);
    dated(&host.at("old/gone"), 9);
    fs::remove_file(host.at("left/x")).unwrap();
    file(&host.at("new"), "theirs", 0o644);
    file(&host.at("empty/theirs"), "theirs", 0o644);
    fs::remove_file(host.at("src/script")).unwrap();
    // The same outcome by another's hand is none.
    fs::remove_file(host.at("src/gone")).unwrap();
    fs::create_dir(host.at("nest")).unwrap();
    let before = host.scan();
    let store = host.open();
    let found = conflicts(store.land_on_host("w", &plan, &NOTHING, false));
    let expected = [
        ("empty", Ours::Deleted, Theirs::NotEmpty),
        ("left/x", Ours::Renamed, Theirs::Absent),
        ("new", Ours::Renamed, Theirs::Added),
        ("old/gone", Ours::Deleted, Theirs::Modified),
        ("src/changed", Ours::Modified, Theirs::Modified),
        ("src/script", Ours::Metadata, Theirs::Absent),
    ]
    .map(|(path, ours, theirs)| (path.to_owned(), ours, theirs));
    assert_eq!(found, expected);
    assert_same(&host.scan(), &before, "conflicts");
}

#[test]
fn equal_contents_are_no_conflict() {
    let host = Host::new();
    file(&host.at("a"), "old", 0o644);
    let changes = vec![
        remove(&host.root, "a"),
        put_file("a", 1, case::size(1), 0o644, 5),
        put_file("b", 2, case::size(2), 0o644, 5),
        put(
            "c",
            NewKind::Symlink {
                target: b"to".into(),
            },
            meta(0o777, 5),
        ),
        put("d", NewKind::Directory, meta(0o755, 5)),
        put_file("d/e", 3, case::size(3), 0o644, 5),
    ];
    let contents = |number| {
        let mut all = Vec::new();
        floe_fs::Source::read(&NOTHING, number, 0, 1 << 20, &mut all).unwrap();
        all
    };
    file(&host.at("a"), contents(1), 0o644);
    file(&host.at("b"), contents(2), 0o644);
    symlink("to", host.at("c")).unwrap();
    fs::create_dir(host.at("d")).unwrap();
    let store = host.open();
    let plan = host.plan(changes);
    let report = store.land_on_host("w", &plan, &NOTHING, false).unwrap();
    assert_eq!((report.added, report.modified), (1, 0), "{report:?}");
    assert_eq!(fs::read(host.at("d/e")).unwrap(), contents(3));
    store.undo_on_host("w", false).unwrap();
    assert!(!host.at("d/e").exists() && host.at("b").exists());
    // With another mode it is not the same.
    fs::set_permissions(host.at("b"), fs::Permissions::from_mode(0o600)).unwrap();
    let found = conflicts(store.land_on_host("w", &plan, &NOTHING, false));
    assert_eq!(found, [("b".to_owned(), Ours::Added, Theirs::Added)]);
}

#[test]
fn an_undo_of_what_others_changed_since_is_refused() {
    let host = Host::with_everything();
    let store = host.open();
    store
        .land_on_host("w", &case::plan(&host.root), &NOTHING, false)
        .unwrap();
    file(&host.at("nest/a"), "theirs", 0o644);
    file(&host.at("nest/theirs"), "theirs", 0o644);
    let before = host.scan();
    let found = conflicts(store.undo_on_host("w", false));
    let expected = [
        ("nest", Ours::Deleted, Theirs::NotEmpty),
        ("nest/a", Ours::Deleted, Theirs::Modified),
        ("nest/b", Ours::Deleted, Theirs::Modified),
    ]
    .map(|(path, ours, theirs)| (path.to_owned(), ours, theirs));
    assert_eq!(found, expected);
    assert_same(&host.scan(), &before, "conflicts");
}

/// Between the check and the steps; each time once.
fn changed_meanwhile(change: impl Fn(&Host)) -> (Host, Tree, Vec<(String, Ours, Theirs)>) {
    let host = Host::with_everything();
    let plan = case::plan(&host.root);
    let store = host.open();
    let (done, state) = (Cell::new(false), Cell::new(Tree::new()));
    let once = || {
        if !done.replace(true) {
            change(&host);
            let mut tree = host.scan();
            tree.retain(|path, _| !path.starts_with(".floe-land-"));
            state.set(tree);
        }
    };
    let found = conflicts(store.land_on_host("w", &plan, &Contents(&once), false));
    assert_eq!(host.kept(), 0);
    host.assert_sound(&store);
    drop(store);
    (host, state.take(), found)
}

#[test]
fn a_file_that_changes_after_the_check_is_not_overwritten() {
    for path in ["src/changed", "old/gone", "left/x", "kind/dir/inside"] {
        let (host, state, found) = changed_meanwhile(|host| file(&host.at(path), "theirs", 0o644));
        assert_same(&host.scan(), &state, path);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!((found[0].0.as_str(), found[0].2), (path, Theirs::Modified));
    }
    for path in ["new", "nest", "src/came-out"] {
        let (host, state, found) = changed_meanwhile(|host| file(&host.at(path), "theirs", 0o644));
        assert_same(&host.scan(), &state, path);
        assert_eq!((found[0].0.as_str(), found[0].2), (path, Theirs::Added));
    }
    let (host, state, found) =
        changed_meanwhile(|host| file(&host.at("empty/theirs"), "theirs", 0o644));
    assert_same(
        &host.scan(),
        &state,
        "a directory that is not empty any more",
    );
    assert_eq!(
        (found[0].0.as_str(), found[0].2),
        ("empty", Theirs::NotEmpty)
    );
}

#[test]
fn a_parent_that_becomes_a_symbolic_link_leads_nowhere() {
    for dir in ["src", "left", "kind"] {
        let (host, state, found) = changed_meanwhile(|host| {
            let aside = host.root.with_file_name("aside");
            fs::rename(host.at(dir), &aside).unwrap();
            symlink(&aside, host.at(dir)).unwrap();
        });
        assert_same(&host.scan(), &state, dir);
        assert!(found[0].0.starts_with(dir), "{found:?}");
        assert_eq!(found[0].2, Theirs::Absent);
        let aside = scan(&host.root.with_file_name("aside"));
        assert!(
            aside.values().all(|what| !what.contains("new contents")),
            "{aside:?}"
        );
    }
    // As it was from the beginning.
    let host = Host::new();
    let outside = host.root.with_file_name("outside");
    fs::create_dir(&outside).unwrap();
    symlink(&outside, host.at("d")).unwrap();
    let plan = host.plan(vec![put_file("d/a", 1, case::size(1), 0o644, 5)]);
    let found = conflicts(host.open().land_on_host("w", &plan, &NOTHING, false));
    assert_eq!(found[0].2, Theirs::Absent);
    assert!(scan(&outside).is_empty());
}

#[test]
fn paths_that_lead_out_and_plans_that_contradict_themselves_are_refused() {
    let host = Host::new();
    file(&host.at("a"), "a", 0o644);
    let store = host.open();
    let before = host.scan();
    for path in ["../out", "..", ".", "", "/etc/passwd", "a/../../out"] {
        let plan = host.plan(vec![put_file(path, 1, 1, 0o644, 5)]);
        store.land_on_host("w", &plan, &NOTHING, false).unwrap_err();
    }
    let twice = vec![remove(&host.root, "a"), remove(&host.root, "a")];
    store
        .land_on_host("w", &host.plan(twice), &NOTHING, false)
        .unwrap_err();
    let moved = vec![rename(&host.root, "a", "b"), put_file("b", 1, 1, 0o644, 5)];
    store
        .land_on_host("w", &host.plan(moved), &NOTHING, false)
        .unwrap_err();
    let nested = ["", "sub"].map(|sub| HostPart {
        root: host.root.join(sub),
        changes: Vec::new(),
    });
    let nested = HostPlan {
        parts: nested.into(),
    };
    store
        .land_on_host("w", &nested, &NOTHING, false)
        .unwrap_err();
    assert_same(&host.scan(), &before, "refused");
}

#[test]
fn several_directories_change_together_or_not_at_all() {
    let host = Host::new();
    let roots = ["one", "two"].map(|name| host.at(name));
    for root in &roots {
        fs::create_dir(root).unwrap();
        file(&root.join("a"), "old", 0o644);
    }
    let plan = HostPlan {
        parts: roots
            .iter()
            .map(|root| HostPart {
                root: root.clone(),
                changes: vec![remove(root, "a"), put_file("a", 1, case::size(1), 0o644, 5)],
            })
            .collect(),
    };
    let store = host.open();
    let done = Cell::new(false);
    let once = || {
        if !done.replace(true) {
            file(&roots[1].join("a"), "theirs", 0o644);
        }
    };
    conflicts(store.land_on_host("w", &plan, &Contents(&once), false));
    assert_eq!(fs::read(roots[0].join("a")).unwrap(), b"old");
    assert_eq!(fs::read(roots[1].join("a")).unwrap(), b"theirs");
    file(&roots[1].join("a"), "old", 0o644);
    let before = host.scan();
    let changes =
        |root: &PathBuf| vec![remove(root, "a"), put_file("a", 1, case::size(1), 0o644, 5)];
    let parts = roots.iter().map(|root| HostPart {
        root: root.clone(),
        changes: changes(root),
    });
    let plan = HostPlan {
        parts: parts.collect(),
    };
    store.land_on_host("w", &plan, &NOTHING, false).unwrap();
    assert_ne!(host.scan(), before);
    store.undo_on_host("w", false).unwrap();
    assert_same(&host.scan(), &before, "undone");
}

/// The store is on another file system than the directory: what is taken away is copied.
#[test]
fn a_directory_on_another_file_system_is_landed_in() {
    let Some(other) = other_file_system() else {
        panic!("/dev/shm is on the same file system as the directory for temporary files");
    };
    let mut host = Host::new();
    host.root = other.path().join("root");
    fs::create_dir(&host.root).unwrap();
    case::make(&host.root);
    let (before, after) = (host.scan(), host.expected());
    let store = host.open();
    store
        .land_on_host("w", &case::plan(&host.root), &NOTHING, false)
        .unwrap();
    assert_same(&host.scan(), &after, "landed");
    store.undo_on_host("w", false).unwrap();
    assert_same(&host.scan(), &before, "undone");
    // Metadata alone has no originals.
    let plan = host.plan(vec![set_meta(&host.root, "one", "one", meta(0o600, 7))]);
    store.land_on_host("w", &plan, &NOTHING, false).unwrap();
    store.undo_on_host("w", false).unwrap();
    assert_same(&host.scan(), &before, "undone");
}

fn other_file_system() -> Option<tempfile::TempDir> {
    let here = fs::metadata(std::env::temp_dir()).unwrap().dev();
    let other = Path::new("/dev/shm");
    (fs::metadata(other).ok()?.dev() != here).then(|| tempfile::tempdir_in(other).unwrap())
}

/// A guard of a directory, and of a file with several names, does not tell of a change of metadata
/// alone.
#[test]
fn metadata_that_others_changed_is_not_overwritten() {
    let changed = |path: &str| {
        let host = Host::with_everything();
        let plan = host.plan(vec![set_meta(&host.root, path, path, meta(0o700, 5))]);
        fs::set_permissions(host.at(path), fs::Permissions::from_mode(0o711)).unwrap();
        (host, plan)
    };
    for path in ["empty", "one"] {
        let (host, plan) = changed(path);
        let before = host.scan();
        let found = conflicts(host.open().land_on_host("w", &plan, &NOTHING, false));
        let expected = (path.to_owned(), Ours::Metadata, Theirs::Modified);
        assert_eq!(found, [expected]);
        assert_same(&host.scan(), &before, path);
        // The same change by others is none.
        fs::set_permissions(host.at(path), fs::Permissions::from_mode(0o700)).unwrap();
        host.open()
            .land_on_host("w", &plan, &NOTHING, false)
            .unwrap();
    }
    // A file that is replaced.
    let host = Host::with_everything();
    let changes = vec![
        remove(&host.root, "one"),
        put_file("one", 1, case::size(1), 0o644, 5),
    ];
    let plan = host.plan(changes);
    fs::set_permissions(host.at("two"), fs::Permissions::from_mode(0o600)).unwrap();
    let found = conflicts(host.open().land_on_host("w", &plan, &NOTHING, false));
    assert_eq!(
        found,
        [("one".to_owned(), Ours::Modified, Theirs::Modified)]
    );
    // And one whose metadata was landed, when that is undone.
    let host = Host::with_everything();
    let store = host.open();
    let plan = host.plan(vec![set_meta(&host.root, "empty", "empty", meta(0o700, 5))]);
    store.land_on_host("w", &plan, &NOTHING, false).unwrap();
    fs::set_permissions(host.at("empty"), fs::Permissions::from_mode(0o711)).unwrap();
    let found = conflicts(store.undo_on_host("w", false));
    assert_eq!(
        found,
        [("empty".to_owned(), Ours::Metadata, Theirs::Modified)]
    );
}
