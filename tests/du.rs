//! Sizes as a user sees them: they add up to what the disk says, and deleting frees what was promised.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use floe_harness::TestStore;
use serde_json::Value;

const MIB: usize = 1 << 20;

/// As du(1) has it: bytes of blocks of a directory and everything in it on the same file system.
fn disk(dir: &Path) -> u64 {
    let top = dir.symlink_metadata().unwrap();
    let mut sum = top.blocks() * 512;
    let mut todo = vec![dir.to_owned()];
    let mut seen = std::collections::HashSet::new();
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let meta = path.symlink_metadata().unwrap();
            if meta.dev() != top.dev() || !seen.insert(meta.ino()) {
                continue;
            }
            sum += meta.blocks() * 512;
            if meta.is_dir() {
                todo.push(path);
            }
        }
    }
    sum
}

#[track_caller]
fn near(a: u64, b: u64) {
    let (small, large) = (a.min(b), a.max(b));
    assert!(
        large - small <= large / 100,
        "{a} and {b} differ by over 1 %"
    );
}

fn number(value: &Value) -> u64 {
    value
        .as_u64()
        .unwrap_or_else(|| panic!("no number: {value}"))
}

/// What `floe du` says, after its parts were compared with each other and with the disk.
fn usage(store: &TestStore) -> Value {
    let usage = store.json(["du"]);
    let parts = [
        "exclusive",
        "shared",
        "waiting",
        "catalog",
        "reserve",
        "landings",
        "other",
    ];
    let sum: u64 = parts.iter().map(|part| number(&usage[part])).sum();
    assert_eq!(sum, number(&usage["total"]), "{usage}");
    near(number(&usage["total"]), disk(&store.store_dir()));
    let each = usage["workspaces"].as_array().unwrap().iter();
    let exclusive: u64 = each.map(|one| number(&one["exclusive"])).sum();
    assert_eq!(exclusive, number(&usage["exclusive"]), "{usage}");
    usage
}

fn of<'a>(usage: &'a Value, name: &str) -> &'a Value {
    let all = usage["workspaces"].as_array().unwrap();
    let found = all.iter().find(|one| one["name"] == name);
    found.unwrap_or_else(|| panic!("no {name} in {usage}"))
}

/// A workspace with 8 MiB, a fork of it with 4 MiB more, and one on its own with 2 MiB.
fn three() -> (TestStore, PathBuf) {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    fs::write(live.join("a"), vec![1; 8 * MIB]).unwrap();
    store.ok(["snapshot", "w", "--name", "first"]);
    store.ok(["fork", "w/first", "f"]);
    let fork = store.mount("f");
    fs::write(fork.join("b"), vec![2; 4 * MIB]).unwrap();
    store.ok(["ws", "create", "own"]);
    let own = store.mount("own");
    fs::write(own.join("c"), vec![3; 2 * MIB]).unwrap();
    (store, live)
}

#[test]
fn the_parts_of_a_store_add_up_to_what_the_disk_says_at_each_step() {
    let store = TestStore::new();
    usage(&store);
    let (store, live) = three();
    let first = usage(&store);
    let sizes = |name: &str| {
        let one = of(&first, name);
        ["apparent", "exclusive", "shared"].map(|size| number(&one[size]) / MIB as u64)
    };
    assert_eq!(sizes("w"), [8, 0, 8]);
    assert_eq!(sizes("f"), [12, 4, 8]);
    assert_eq!(sizes("own"), [2, 2, 0]);
    // Now it differs from what the snapshot has.
    fs::write(live.join("a"), vec![4; 8 * MIB]).unwrap();
    let second = usage(&store);
    assert_eq!(number(&of(&second, "w")["exclusive"]) / MIB as u64, 8);
    assert_eq!(number(&second["shared"]) / MIB as u64, 8);
    // A deleted workspace is told as long as snapshots of it are left.
    store.ok(["snapshot", "own", "--name", "kept"]);
    let own = store.json(["ws", "show", "own"])["mounts"][0].clone();
    store.ok(["umount", own.as_str().unwrap()]);
    store.ok(["ws", "delete", "own"]);
    store.ok(["gc"]);
    let third = usage(&store);
    assert_eq!(of(&third, "own")["deleted"], true);
    assert_eq!(number(&of(&third, "own")["exclusive"]) / MIB as u64, 2);
    store.ok(["snap", "delete", "own/kept", "--wait"]);
    let fourth = usage(&store);
    // The log of the catalog has grown by it.
    let contents = |usage: &Value| {
        let parts = ["exclusive", "shared", "waiting"].iter();
        parts.map(|part| number(&usage[part])).sum::<u64>()
    };
    assert_eq!((contents(&third) - contents(&fourth)) / MIB as u64, 2);
    let text = store.ok(["du"]);
    assert!(
        text.contains("APPARENT") && text.contains("total"),
        "{text}"
    );
    store.check();
}

#[test]
fn what_a_snapshot_has_of_its_own_is_what_deleting_it_frees() {
    let (store, live) = three();
    fs::write(live.join("a"), vec![4; 8 * MIB]).unwrap();
    store.ok(["snapshot", "w", "--name", "second"]);
    fs::write(live.join("a"), vec![5; 8 * MIB]).unwrap();
    store.ok(["snapshot", "w", "--name", "third"]);
    let sizes = store.json(["du", "w/first", "w/second", "f"]);
    let mib = |value: &Value| number(value) / MIB as u64;
    // Both the fork and the second one stand on the first; the fork alone shows it.
    let first = &sizes[0];
    assert_eq!((mib(&first["apparent"]), mib(&first["exclusive"])), (8, 0));
    let held: Vec<&str> = first["held_by"]
        .as_array()
        .unwrap()
        .iter()
        .map(|by| by.as_str().unwrap())
        .collect();
    assert!(held.contains(&"f") && held.len() == 2, "{held:?}");
    let second = &sizes[1];
    assert_eq!((mib(&second["exclusive"]), mib(&second["shared"])), (8, 0));
    assert_eq!(sizes[2]["name"], "f");
    assert_eq!(mib(&sizes[2]["exclusive"]), 4);
    let shown = store.json(["snap", "show", "w/second"]);
    assert_eq!(
        (&shown["name"], mib(&shown["exclusive"])),
        (&"second".into(), 8)
    );
    let text = store.ok(["snap", "show", "w/first"]);
    assert!(
        text.contains("frees 0 B") && text.contains("8.0 MiB shared"),
        "{text}"
    );
    let why = store.ok(["du", "--why", "w/first"]);
    assert!(why.contains("f stands on it"), "{why}");
    // One that is mounted says so.
    let frozen = store.mount("w/second");
    assert_eq!(store.json(["du", "w/second"])[0]["kept_by"][0], "use");
    store.umount(&frozen);
    let before = disk(&store.store_dir().join("objects"));
    let deleted = store.json(["snap", "delete", "w/second", "--wait"]);
    assert_eq!(mib(&deleted["freed"]["bytes"]), 8, "{deleted}");
    let after = disk(&store.store_dir().join("objects"));
    assert_eq!((before - after) / MIB as u64, 8);
    // What stood on the deleted one stands on the first through it.
    let held = store.json(["du", "w/first"])[0]["held_by"].clone();
    assert_eq!(held.as_array().unwrap().len(), 2, "{held}");
    store.fails(3, ["du", "nothing"]);
    usage(&store);
}

/// Sizes are right, or at least sound, while space is being given back.
#[test]
fn sizes_can_be_asked_for_while_space_is_given_back() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    for n in 0..40_u8 {
        for file in 0..8 {
            fs::write(live.join(format!("f{file}")), vec![n; 128 << 10]).unwrap();
        }
        store.ok(["snapshot", "w"]);
    }
    std::thread::scope(|scope| {
        let delete =
            scope.spawn(|| store.ok(["snap", "delete", "--ws", "w", "--keep-last", "2", "--wait"]));
        while !delete.is_finished() {
            let usage = store.json(["du"]);
            let one = of(&usage, "w");
            assert!(number(&one["exclusive"]) >= (2 * 8 * 128) << 10, "{usage}");
            assert_eq!(number(&one["shared"]), 0, "{usage}");
        }
        delete.join().unwrap();
    });
    usage(&store);
}
