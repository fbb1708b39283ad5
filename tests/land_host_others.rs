//! Landing in a directory of the host that others use as well: people, other workspaces, other bases;
//! and what is known there of earlier landings.

#[path = "land_host/host.rs"]
mod host;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use floe_harness::TestStore;
use serde_json::Value;

use host::{append, assert_same, based, change, conflicts, copied, host, scan};

/// Two workspaces that were made from one directory, each with a base of its own.
fn two_bases(store: &TestStore) -> (PathBuf, PathBuf, PathBuf) {
    let dir = host(store);
    for name in ["one", "two"] {
        store.ok(["ws", "create", name, "--from", dir.to_str().unwrap()]);
    }
    (store.mount("one"), store.mount("two"), dir)
}

#[test]
fn a_landing_leaves_other_bases_over_the_directory_as_they_were() {
    let store = TestStore::new();
    let (one, two, dir) = two_bases(&store);
    let before = copied(&store, &dir, "before");
    assert_same(&two, &before);
    change(&one);
    store.ok(["land", "one"]);
    assert_same(&dir, &one);
    // What it had in place was taken in before it changed.
    store.umount(&two);
    assert_same(&store.mount("two"), &before);
    let shown = store.json(["ws", "show", "two"]);
    assert_eq!(shown["base"]["changed"], Value::Array(Vec::new()));
    store.check();
}

/// A fork knows of what it comes from, also when that is deleted.
#[test]
fn a_fork_of_a_deleted_workspace_knows_what_that_had_landed() {
    let store = TestStore::new();
    let (live, dir, _) = based(&store);
    append(&live.join("src/main"), "landed\n");
    store.ok(["land", "w"]);
    store.ok(["fork", "w", "v"]);
    store.umount(&live);
    store.ok(["ws", "delete", "w"]);
    store.ok(["daemon", "stop"]);
    append(&store.mount("v").join("src/main"), "and more\n");
    let landed = store.json(["land", "v", "--onto", "./host"]);
    assert_eq!(landed["files"].as_array().unwrap().len(), 1, "{landed:#}");
    let text = fs::read_to_string(dir.join("src/main")).unwrap();
    assert_eq!(text, "fn main\nlanded\nand more\n");
}

/// What is in a renamed directory is where the directory is, however long ago that was landed.
#[test]
fn a_landed_rename_is_known_when_its_undo_is_not_kept_any_more() {
    let store = TestStore::new();
    let (live, dir, _) = based(&store);
    append(&live.join("src/main"), "first\n");
    store.ok(["land", "w"]);
    fs::rename(live.join("src"), live.join("source")).unwrap();
    store.ok(["land", "w"]);
    for n in 0..12 {
        append(&live.join("script"), &format!("{n}\n"));
        store.ok(["land", "w"]);
    }
    append(&live.join("source/main"), "last\n");
    store.ok(["land", "w"]);
    assert_same(&dir, &live);
    fs::remove_file(live.join("source/main")).unwrap();
    store.ok(["land", "w"]);
    assert_same(&dir, &live);
}

/// A landing looks at the host itself, whether or not something is mounted.
#[test]
fn a_new_name_of_a_file_in_place_is_landed_from_a_workspace_that_is_not_mounted() {
    let store = TestStore::new();
    let (live, dir, _) = based(&store);
    fs::hard_link(live.join("src/deep/large"), live.join("src/again")).unwrap();
    store.umount(&live);
    store.ok(["daemon", "stop"]);
    store.ok(["land", "w"]);
    let large = fs::read(dir.join("src/deep/large")).unwrap();
    assert_eq!(fs::read(dir.join("src/again")).unwrap(), large);
    assert_same(&dir, &store.mount("w"));
}

/// Modes that others set are theirs, also of directories, which change with what is in them.
#[test]
fn a_mode_that_others_set_is_a_conflict_with_one_of_ours() {
    let store = TestStore::new();
    let (live, dir, _) = based(&store);
    let mode = |path: &Path, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    mode(&live.join("docs"), 0o700);
    mode(&dir.join("docs"), 0o711);
    assert_eq!(
        conflicts(&store, &["land", "w"]),
        ["docs: changed its attributes; changed it"]
    );
    assert_eq!(
        fs::metadata(dir.join("docs")).unwrap().mode() & 0o777,
        0o711
    );
    mode(&dir.join("docs"), 0o755);
    // New entries of others change nothing of it.
    fs::write(dir.join("docs/theirs"), "theirs\n").unwrap();
    store.ok(["land", "w"]);
    assert_eq!(
        fs::metadata(dir.join("docs")).unwrap().mode() & 0o777,
        0o700
    );
    mode(&live.join("docs"), 0o755);
    store.ok(["land", "w"]);
    assert_eq!(
        fs::metadata(dir.join("docs")).unwrap().mode() & 0o777,
        0o755
    );
}

/// What the other base refers to may be what was landed before, may be undone, and may lie in
/// directories that nobody has looked into there.
#[test]
fn later_landings_and_undos_leave_other_bases_as_they_were_too() {
    let store = TestStore::new();
    let (one, two, dir) = two_bases(&store);
    let look = |path: &Path| fs::read_dir(path).unwrap().count();
    assert_eq!(look(&two), 5);
    let original = copied(&store, &dir, "original");
    // Nobody has looked into src and docs there.
    fs::rename(one.join("src"), one.join("source")).unwrap();
    append(&one.join("README"), "one\n");
    store.ok(["land", "one"]);
    assert_same(&two, &original);
    let first = copied(&store, &dir, "first");
    store.ok(["ws", "create", "three", "--from", dir.to_str().unwrap()]);
    let three = store.mount("three");
    assert_eq!((look(&three), look(&three.join("source"))), (5, 3));
    append(&one.join("README"), "again\n");
    fs::remove_dir_all(one.join("docs/unread")).unwrap();
    store.ok(["land", "one"]);
    store.ok(["land", "one", "--undo"]);
    store.ok(["land", "one", "--undo"]);
    assert_same(&dir, &original);
    assert_same(&three, &first);
    assert_same(&two, &original);
}

/// Somebody does the same on the host as in the workspace: that is known the next time.
#[test]
fn what_others_made_equal_is_known_afterwards() {
    let store = TestStore::new();
    let (live, dir, _) = based(&store);
    let mode = |path: PathBuf, mode| {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    };
    for root in [&live, &dir] {
        mode(root.join("script"), 0o755);
        fs::write(root.join("new"), "equal\n").unwrap();
        mode(root.join("new"), 0o644);
    }
    store.ok(["land", "w"]);
    append(&live.join("new"), "and more\n");
    mode(live.join("script"), 0o700);
    store.ok(["land", "w"]);
    assert_eq!(fs::read(dir.join("new")).unwrap(), b"equal\nand more\n");
    assert_eq!(
        fs::metadata(dir.join("script")).unwrap().mode() & 0o777,
        0o700
    );
}

/// Two directories that take each other's place are followed both.
#[test]
fn directories_that_are_moved_at_once_are_known_where_they_are() {
    let store = TestStore::new();
    let dir = store.base().join("app");
    for (name, text) in [("current", "1\n"), ("next", "2\n")] {
        fs::create_dir_all(dir.join(name)).unwrap();
        fs::write(dir.join(name).join("f"), text).unwrap();
    }
    store.ok(["ws", "create", "w", "--from", dir.to_str().unwrap()]);
    let live = store.mount("w");
    append(&live.join("current/f"), "landed\n");
    append(&live.join("next/f"), "landed\n");
    store.ok(["land", "w"]);
    fs::rename(live.join("current"), live.join("old")).unwrap();
    fs::rename(live.join("next"), live.join("current")).unwrap();
    store.ok(["land", "w"]);
    append(&live.join("current/f"), "more\n");
    append(&live.join("old/f"), "more\n");
    store.ok(["land", "w"]);
    assert_same(&dir, &live);
}

/// What was moved away and back is still what was seen: only its time of change is another.
#[test]
fn a_landing_that_went_back_can_be_tried_again() {
    let store = TestStore::new();
    // Nobody can rename it, which does not show before.
    let script = fs::File::open(host(&store).join("script")).unwrap();
    let flags = rustix::fs::ioctl_getflags(&script).unwrap();
    let immutable = flags | rustix::fs::IFlags::IMMUTABLE;
    rustix::fs::ioctl_setflags(&script, immutable).expect("a file system with immutable files");
    let dir = store.base().join("host");
    store.ok(["ws", "create", "w", "--from", dir.to_str().unwrap()]);
    let live = store.mount("w");
    append(&live.join("README"), "ours\n");
    fs::remove_file(live.join("docs/b")).unwrap();
    append(&live.join("script"), "ours\n");
    let before = scan(&dir);
    let refused = store.run(["land", "w"]);
    rustix::fs::ioctl_setflags(&script, flags).unwrap();
    let refused = refused.expect_code(1);
    assert!(
        refused.errors().contains("cannot replace 'script'"),
        "{refused}"
    );
    assert_eq!(scan(&dir), before);
    append(&live.join("README"), "and more\n");
    store.ok(["land", "w", "--only", "README", "--only", "docs"]);
    let text = fs::read_to_string(dir.join("README")).unwrap();
    assert_eq!(text, "read me\nours\nand more\n");
    assert!(!dir.join("docs/b").exists());
    store.ok(["land", "w", "--undo"]);
    assert_eq!(scan(&dir), before);
}
