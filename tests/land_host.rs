//! `floe land` in the directory of the host that a workspace was made from, and back.

#[path = "land_host/host.rs"]
mod host;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use floe_harness::random::Random;
use floe_harness::{TestStore, long_run};
use serde_json::Value;

use host::{append, assert_same, based, change, conflicts, copied, host, scan};

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
    let rounds = if long_run() { 200 } else { 12 };
    // How often it took place, and how often not; and how late it is killed, so that both happen.
    let (mut done, mut not, mut round) = (0_u64, 0_u64, 0);
    let mut latest = 250_000;
    while round < rounds || done.min(not) == 0 {
        round += 1;
        assert!(round < 10 * rounds, "seed {seed}: {done} done, {not} not");
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
        std::thread::sleep(Duration::from_micros(random.below(latest)));
        store.kill_daemon();
        // Whether it got an answer is another matter.
        child.wait().unwrap();
        store.ok(["daemon", "start"]);
        let is_before = scan(&dir) == scan(&before);
        if !is_before {
            assert_same(&dir, &after);
        }
        if is_before == undo {
            done += 1;
            latest = (latest * 9 / 10).max(1_000);
        } else {
            not += 1;
            latest = (latest * 10 / 9).min(4_000_000);
        }
        store.check();
        eprintln!("seed {seed}, round {round}: {done} done, {not} not");
    }
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
