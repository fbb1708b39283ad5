//! `floe land` in the directory of the host that a workspace was made from, and back.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use floe_harness::random::Random;
use floe_harness::{TestStore, long_run};
use serde_json::Value;

/// What is in a directory, by path.
fn scan(root: &Path) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            let what = if meta.is_dir() {
                todo.push(path.clone());
                "directory".to_owned()
            } else if meta.is_symlink() {
                format!("link to {}", fs::read_link(&path).unwrap().display())
            } else {
                let contents = fs::read(&path).unwrap();
                let sum = contents.iter().fold(7_u64, |sum, byte| {
                    sum.wrapping_mul(31).wrapping_add(u64::from(*byte))
                });
                format!(
                    "{} bytes, {sum:x}, {}.{}",
                    contents.len(),
                    meta.mtime(),
                    meta.mtime_nsec()
                )
            };
            let name = path
                .strip_prefix(root)
                .unwrap()
                .to_string_lossy()
                .into_owned();
            found.insert(name, format!("{what} {:o}", meta.mode()));
        }
    }
    found
}

#[track_caller]
fn assert_same(a: &Path, b: &Path) {
    let (a, b) = (scan(a), scan(b));
    let differs = |path: &&String| a.get(*path) != b.get(*path);
    let different: Vec<_> = a.keys().chain(b.keys()).filter(differs).collect();
    let shown = different
        .iter()
        .map(|path| (path, a.get(*path), b.get(*path)));
    assert!(different.is_empty(), "{:#?}", shown.collect::<Vec<_>>());
}

fn host(store: &TestStore) -> PathBuf {
    let dir = store.base().join("host");
    fs::create_dir_all(dir.join("src/deep")).unwrap();
    fs::create_dir_all(dir.join("docs/unread")).unwrap();
    for (path, contents) in [
        ("README", "read me\n"),
        ("src/main", "fn main\n"),
        ("src/gone", "gone\n"),
        ("src/deep/large", &"l".repeat(300_000)),
        ("docs/unread/a", "a\n"),
        ("docs/b", "b\n"),
        ("script", "#!/bin/sh\n"),
    ] {
        fs::write(dir.join(path), contents).unwrap();
    }
    symlink("README", dir.join("link")).unwrap();
    dir
}

/// A workspace over the directory, mounted, and a copy of the directory as it is.
fn based(store: &TestStore) -> (PathBuf, PathBuf, PathBuf) {
    let dir = host(store);
    store.ok(["ws", "create", "w", "--from", dir.to_str().unwrap()]);
    let before = copied(store, &dir, "before");
    (store.mount("w"), dir, before)
}

fn copied(store: &TestStore, dir: &Path, name: &str) -> PathBuf {
    let copy = store.base().join(name);
    let copied = std::process::Command::new("cp")
        .arg("-a")
        .args([dir, &copy])
        .status();
    assert!(copied.unwrap().success());
    copy
}

/// Changes of every kind.
fn change(live: &Path) {
    fs::write(live.join("src/main"), "fn main, changed\n").unwrap();
    fs::remove_file(live.join("src/gone")).unwrap();
    fs::rename(live.join("docs"), live.join("manual")).unwrap();
    fs::write(live.join("manual/b"), "b, changed\n").unwrap();
    fs::set_permissions(live.join("script"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::create_dir_all(live.join("new/er")).unwrap();
    fs::write(live.join("new/er/file"), vec![b'n'; 200_000]).unwrap();
    fs::hard_link(live.join("new/er/file"), live.join("new/other")).unwrap();
    fs::remove_file(live.join("link")).unwrap();
    symlink("manual", live.join("link")).unwrap();
    fs::rename(live.join("README"), live.join("src/README")).unwrap();
}

fn append(path: &Path, text: &str) {
    let mut contents = fs::read_to_string(path).unwrap();
    contents.push_str(text);
    fs::write(path, contents).unwrap();
}

/// The conflicts that a landing is refused for.
#[track_caller]
fn conflicts(store: &TestStore, command: &[&str]) -> Vec<String> {
    let refused = store.fails(4, [command, &["--json"]].concat());
    assert_eq!(refused.json_error()["kind"], "conflict");
    let answer = refused.json();
    assert_eq!(answer["landed"], false);
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let found = answer["conflicts"].as_array().unwrap().iter();
    found
        .map(|one| {
            format!(
                "{}: {}; {}",
                text(&one["path"]),
                text(&one["ours"]),
                text(&one["theirs"])
            )
        })
        .collect()
}

#[test]
fn what_changed_is_landed_and_older_snapshots_show_what_they_did() {
    let store = TestStore::new();
    let (live, dir, before) = based(&store);
    let old = store.snapshot("w");
    change(&live);
    let would = store.json(["land", "w", "--dry-run"]);
    assert_eq!(would["landed"], false);
    assert_same(&dir, &before);
    let landed = store.json(["land", "w"]);
    assert_eq!(
        (&landed["landed"], &landed["dirs"][0]),
        (&Value::from(true), &Value::from(dir.to_str().unwrap()))
    );
    assert_eq!(landed["files"], would["files"]);
    assert_same(&dir, &live);
    let ino = |path: &str| fs::metadata(dir.join(path)).unwrap().ino();
    assert_eq!(ino("new/er/file"), ino("new/other"));
    // What was on the host only is in the store now.
    let frozen = store.mount(&old);
    assert_same(&frozen, &before);
    assert_eq!(store.json(["log", "w", "--limit", "1"])[0]["kind"], "land");
    assert!(
        store.json(["ws", "show", "w"])["base"]["changed"]
            .as_array()
            .unwrap()
            .is_empty()
    );
    store.check();

    let undone = store.json(["land", "w", "--undo"]);
    assert_eq!(undone["undone"], true);
    assert_same(&dir, &before);
    store.fails(3, ["land", "w", "--undo"]);
    assert_same(&frozen, &before);
    // And once more.
    store.ok(["land", "w"]);
    assert_same(&dir, &live);
}

#[test]
fn the_next_landing_brings_what_is_new_and_each_can_be_undone() {
    let store = TestStore::new();
    let (live, dir, before) = based(&store);
    change(&live);
    store.ok(["land", "w"]);
    let first = copied(&store, &dir, "first");
    assert_eq!(store.json(["land", "w"])["files"], Value::Array(Vec::new()));
    append(&live.join("src/main"), "again\n");
    fs::write(live.join("manual/b"), "b, changed again\n").unwrap();
    fs::remove_file(live.join("new/other")).unwrap();
    fs::rename(live.join("manual"), live.join("guide")).unwrap();
    fs::rename(live.join("src/README"), live.join("README")).unwrap();
    let landed = store.json(["land", "w"]);
    assert_eq!(landed["files"].as_array().unwrap().len(), 5, "{landed:#}");
    assert_same(&dir, &live);
    store.ok(["land", "w", "--undo"]);
    assert_same(&dir, &first);
    store.ok(["land", "w", "--undo"]);
    assert_same(&dir, &before);
    store.ok(["land", "w"]);
    assert_same(&dir, &live);
    // Back in the workspace is no landing by itself, and can be landed.
    store.ok([
        "rollback",
        "w",
        store.json(["snap", "list", "--ws", "w"])[0]["id"]
            .as_str()
            .unwrap(),
    ]);
    store.ok(["land", "w"]);
    assert_same(&dir, &live);
    store.check();
}

#[test]
fn what_others_changed_is_a_conflict_with_both_sides() {
    let store = TestStore::new();
    let (live, dir, _) = based(&store);
    change(&live);
    append(&dir.join("src/main"), "theirs\n");
    fs::write(dir.join("new"), "theirs\n").unwrap();
    // They did the same here.
    fs::remove_file(dir.join("src/gone")).unwrap();
    let theirs = copied(&store, &dir, "theirs");
    assert_eq!(
        conflicts(&store, &["land", "w"]),
        [
            "new: added it; added it",
            "src/main: changed the contents; changed it",
        ]
    );
    assert_same(&dir, &theirs);
    store.fails(4, ["land", "w", "--dry-run"]);
    // The rest can be landed.
    store.ok([
        "land", "w", "--only", "script", "--only", "./docs/", "--only", "manual",
    ]);
    assert_eq!(fs::read(dir.join("manual/b")).unwrap(), b"b, changed\n");
    assert_eq!(
        fs::metadata(dir.join("script")).unwrap().mode() & 0o777,
        0o755
    );
    // When the conflict is gone, what is left.
    fs::remove_file(dir.join("new")).unwrap();
    fs::copy(live.join("src/main"), dir.join("src/main")).unwrap();
    let landed = store.json(["land", "w"]);
    assert_eq!(landed["landed"], true, "{landed:#}");
    assert!(dir.join("new/er/file").exists() && dir.join("src/README").exists());
    store.check();
}

/// Each of the forks starts from the same state; the second to land knows nothing of the first.
#[test]
fn forks_land_one_after_the_other_unless_they_changed_the_same() {
    let store = TestStore::new();
    let (_, dir, _) = based(&store);
    store.ok(["fork", "w", "try", "--count", "3"]);
    for (fork, path) in [
        ("try-1", "script"),
        ("try-2", "docs/b"),
        ("try-3", "script"),
    ] {
        let live = store.mount(fork);
        append(&live.join(path), fork);
    }
    store.ok(["land", "try-1", "--onto", "./host"]);
    store.ok(["land", "try-2", "--onto", "host/"]);
    assert_eq!(
        conflicts(&store, &["land", "try-3", "--onto", dir.to_str().unwrap()]),
        ["script: changed the contents; changed it"]
    );
    assert!(
        fs::read_to_string(dir.join("script"))
            .unwrap()
            .ends_with("try-1")
    );
    assert!(
        fs::read_to_string(dir.join("docs/b"))
            .unwrap()
            .ends_with("try-2")
    );
    // A fork of what was landed knows of it.
    store.ok(["fork", "try-1", "more"]);
    append(&store.mount("more").join("script"), " more");
    store.ok(["land", "more", "--onto", "./host"]);
    assert!(
        fs::read_to_string(dir.join("script"))
            .unwrap()
            .ends_with("try-1 more")
    );
}

#[test]
fn several_directories_are_landed_in_together() {
    let store = TestStore::new();
    let dir = host(&store);
    let (one, two) = (dir.join("src"), dir.join("docs"));
    let from = |dir: &Path, at: &str| format!("{}={at}", dir.display());
    store.ok([
        "ws",
        "create",
        "w",
        "--from",
        &from(&one, "/a/one"),
        "--from",
        &from(&two, "/b"),
    ]);
    let live = store.mount("w");
    append(&live.join("a/one/main"), "1");
    append(&live.join("b/b"), "2");
    fs::rename(live.join("a/one/gone"), live.join("b/came")).unwrap();
    fs::write(live.join("outside"), "o").unwrap();
    let error = store.fails(4, ["land", "w"]).errors();
    assert!(error.contains("'outside'"), "{error}");
    store.ok(["land", "w", "--only", "a", "--only", "b"]);
    assert_same(&one, &live.join("a/one"));
    assert_same(&two, &live.join("b"));
    store.ok(["land", "w", "--undo"]);
    assert!(one.join("gone").exists() && !two.join("came").exists());
}

/// The daemon is killed at some instant of a landing or of its undo; the next command starts another.
#[test]
fn a_daemon_killed_in_a_landing_leaves_the_directory_before_or_after() {
    let seed = Random::seed_from_env(11);
    let mut random = Random::new(seed);
    let (mut finished, mut undone) = (0, 0);
    for round in 0..if long_run() { 200 } else { 12 } {
        let store = TestStore::new();
        let (live, dir, before) = based(&store);
        change(&live);
        for n in 0..20 {
            fs::write(live.join(format!("new/{n}")), vec![b'x'; 10_000]).unwrap();
        }
        let after = copied(&store, &live, "after");
        let undo = random.one_in(2);
        if undo {
            store.ok(["land", "w"]);
        }
        let command = if undo {
            &["land", "w", "--undo"][..]
        } else {
            &["land", "w"]
        };
        let mut asked = store.command();
        asked
            .args(command)
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        let mut child = asked.spawn().unwrap();
        std::thread::sleep(Duration::from_micros(random.below(250_000)));
        store.kill_daemon();
        // Whether it got an answer is another matter.
        child.wait().unwrap();
        store.ok(["daemon", "start"]);
        if scan(&dir) == scan(&before) {
            undone += 1;
        } else {
            assert_same(&dir, &after);
            finished += 1;
        }
        store.check();
        eprintln!("seed {seed}, round {round}: {finished} after, {undone} before");
    }
    assert!(
        finished > 0 && undone > 0,
        "seed {seed}: {finished} after, {undone} before: the kills were all on one side"
    );
}

#[test]
fn a_workspace_that_stands_on_no_directory_cannot_land_in_one() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    store.fails(2, ["land", "w"]);
    let error = store.fails(2, ["land", "w", "--onto", "/tmp"]).errors();
    assert!(
        error.contains("'w' does not depend on a directory"),
        "{error}"
    );
    let dir = host(&store);
    store.ok(["ws", "create", "v", "--from", dir.to_str().unwrap()]);
    let error = store.fails(2, ["land", "v", "--onto", "/tmp"]).errors();
    assert!(error.contains("does not stand on /tmp"), "{error}");
    store.fails(3, ["land", "nope"]);
    store.fails(3, ["land", "w", "--undo"]);
}

/// A landing of single paths was once taken for known to every workspace on the same base: the next
/// one overwrote what it had landed.
#[test]
fn single_paths_of_one_fork_are_not_overwritten_by_another() {
    let store = TestStore::new();
    let dir = store.base().join("app");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), "first\n").unwrap();
    let onto = dir.to_str().unwrap();
    store.ok(["ws", "create", "web", "--from", onto]);
    store.ok(["fork", "web", "try", "--count", "2"]);
    for (name, text) in [("try-1", "one\n"), ("try-2", "two, longer\n")] {
        let live = store.mount(name);
        fs::write(live.join("f"), text).unwrap();
        store.umount(&live);
    }
    store.ok(["land", "try-1", "--onto", onto, "--only", "f"]);
    assert_eq!(
        conflicts(&store, &["land", "try-2", "--onto", onto]),
        ["f: changed the contents; changed it"]
    );
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"one\n");
}

/// What was landed by itself is compared with its own landing, not with the one before.
#[test]
fn single_paths_that_were_landed_and_changed_back_are_landed_again() {
    let store = TestStore::new();
    let dir = store.base().join("app");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("f"), "first\n").unwrap();
    store.ok(["ws", "create", "w", "--from", dir.to_str().unwrap()]);
    let live = store.mount("w");
    fs::write(live.join("f"), "changed\n").unwrap();
    fs::write(live.join("new"), "new\n").unwrap();
    store.ok(["land", "w", "--only", "f", "--only", "new"]);
    fs::write(live.join("f"), "first\n").unwrap();
    fs::remove_file(live.join("new")).unwrap();
    store.ok(["land", "w"]);
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"first\n");
    assert!(!dir.join("new").exists());
}

#[test]
fn a_file_that_was_landed_can_make_way_for_another_and_move_with_its_directory() {
    let store = TestStore::new();
    let dir = store.base().join("app");
    fs::create_dir_all(dir.join("d")).unwrap();
    fs::write(dir.join("d/f"), "first\n").unwrap();
    store.ok(["ws", "create", "w", "--from", dir.to_str().unwrap()]);
    let live = store.mount("w");
    fs::write(live.join("d/f"), "second\n").unwrap();
    store.ok(["land", "w"]);
    fs::rename(live.join("d/f"), live.join("d/f.bak")).unwrap();
    fs::write(live.join("d/f"), "third\n").unwrap();
    store.ok(["land", "w"]);
    assert_eq!(fs::read(dir.join("d/f.bak")).unwrap(), b"second\n");
    assert_eq!(fs::read(dir.join("d/f")).unwrap(), b"third\n");
    fs::rename(live.join("d"), live.join("e")).unwrap();
    store.ok(["land", "w"]);
    fs::write(live.join("e/f"), "fourth\n").unwrap();
    store.ok(["land", "w"]);
    assert_eq!(fs::read(dir.join("e/f")).unwrap(), b"fourth\n");
    assert!(!dir.join("d").exists());
}

/// A directory that both sides made is entered; what is in it is looked at before anything is done.
#[test]
fn what_both_sides_made_in_a_new_directory_is_a_conflict_unless_it_is_equal() {
    let store = TestStore::new();
    let dir = store.base().join("app");
    fs::create_dir(&dir).unwrap();
    store.ok(["ws", "create", "w", "--from", dir.to_str().unwrap()]);
    let live = store.mount("w");
    assert_eq!(fs::read_dir(&live).unwrap().count(), 0);
    for root in [&live, &dir] {
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/f"), "same\n").unwrap();
    }
    fs::write(live.join("d/mine"), "mine\n").unwrap();
    fs::write(dir.join("d/g"), "theirs\n").unwrap();
    fs::write(live.join("d/g"), "ours, longer\n").unwrap();
    store.fails(4, ["land", "w"]);
    assert!(!dir.join("d/mine").exists());
    assert_eq!(fs::read(dir.join("d/g")).unwrap(), b"theirs\n");
    fs::remove_file(live.join("d/g")).unwrap();
    store.ok(["land", "w"]);
    assert_eq!(fs::read(dir.join("d/mine")).unwrap(), b"mine\n");
    assert_eq!(fs::read(dir.join("d/g")).unwrap(), b"theirs\n");
}

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
