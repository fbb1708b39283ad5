//! Storing equal contents once, as a user sees it: less space, the same files, whatever kills the daemon.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use floe_harness::{Disk, ScanOptions, TestStore, Tree};

const LARGE: usize = 1 << 20;
const FILES: usize = 4;

/// A directory with files, two of which are equal.
fn source(store: &TestStore) -> PathBuf {
    let dir = store.base().join("source");
    fs::create_dir(&dir).unwrap();
    for n in 0..FILES {
        let seed = u8::try_from(n.max(1)).unwrap();
        let byte = |at: usize| u8::try_from(at % 241).unwrap() ^ seed;
        let bytes: Vec<u8> = (0..LARGE + 10).map(byte).collect();
        fs::write(dir.join(format!("file{n}")), bytes).unwrap();
    }
    fs::write(dir.join("small"), "small").unwrap();
    dir
}

/// Two workspaces with a copy of the directory and a snapshot each; the background does nothing.
fn filled(store: &TestStore) -> Vec<String> {
    store.ok(["store", "config", "hash-rate", "off"]);
    let dir = source(store);
    let import = |name: &str| {
        store.ok([
            "ws",
            "create",
            name,
            "--copy",
            "--from",
            dir.to_str().unwrap(),
        ]);
        store.snapshot(name)
    };
    vec![import("a"), import("b")]
}

/// Bytes that objects take on the disk; a file with several names takes them once.
fn used(store: &TestStore) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut files = std::collections::BTreeMap::new();
    for group in fs::read_dir(store.store_dir().join("objects")).unwrap() {
        for file in fs::read_dir(group.unwrap().path()).unwrap() {
            let meta = file.unwrap().metadata().unwrap();
            files.insert(meta.ino(), meta.blocks() * 512);
        }
    }
    files.values().sum()
}

fn scan(root: &Path) -> Tree {
    Tree::scan(root, ScanOptions::ALL)
}

#[test]
fn a_directory_that_was_imported_twice_is_stored_once() {
    let store = TestStore::new();
    let ids = filled(&store);
    let roots: Vec<PathBuf> = ids.iter().map(|id| store.mount(id)).collect();
    let live = store.mount("a");
    let before: Vec<Tree> = roots.iter().chain([&live]).map(|root| scan(root)).collect();
    let full = used(&store);
    let done = store.json(["dedup"]);
    // Three different files, of which there were eight.
    let count = |key: &str| done[key].as_u64().unwrap();
    assert_eq!(
        (count("objects"), count("shared"), count("failed")),
        (8, 5, 0)
    );
    assert_eq!(full - used(&store), count("saved"));
    assert_eq!(used(&store), full / 8 * 3);
    for (root, before) in roots.iter().chain([&live]).zip(&before) {
        scan(root).assert_same(before);
    }
    store.check();
    fs::write(live.join("file1"), "changed").unwrap();
    scan(&roots[0]).assert_same(&before[0]);
    scan(&roots[1]).assert_same(&before[1]);
    assert_eq!(store.json(["dedup"])["objects"], 0);
    // What one of them had comes back only where nothing else is it.
    for root in &roots {
        store.umount(root);
    }
    let kept = used(&store);
    store.ok(["ws", "delete", "b"]);
    let freed = store.json(["snap", "delete", &ids[1], "--wait"]);
    assert_eq!(freed["freed"]["bytes"], 0);
    assert_eq!(used(&store), kept);
    scan(&store.mount(&ids[0])).assert_same(&before[0]);
    store.check();
}

#[test]
fn on_a_disk_with_reflink_extents_are_shared() {
    let scratch = tempfile::tempdir().unwrap();
    let disk = Disk::xfs(scratch.path(), "disk", 512 << 20);
    let store = TestStore::new_in(disk.dir());
    store.ok(["store", "config", "hash-rate", "off"]);
    // Elsewhere, or the import would share extents already.
    let elsewhere = TestStore::without_init(scratch.path());
    let dir = source(&elsewhere);
    let mut ids = Vec::new();
    for name in ["a", "b"] {
        store.ok([
            "ws",
            "create",
            name,
            "--copy",
            "--from",
            dir.to_str().unwrap(),
        ]);
        ids.push(store.snapshot(name));
    }
    let roots: Vec<PathBuf> = ids.iter().map(|id| store.mount(id)).collect();
    let before: Vec<Tree> = roots.iter().map(|root| scan(root)).collect();
    let sync = || rustix::fs::syncfs(fs::File::open(disk.dir()).unwrap()).unwrap();
    sync();
    let full = disk.used();
    let done = store.json(["dedup"]);
    sync();
    assert_eq!((&done["objects"], &done["shared"]), (&8.into(), &5.into()));
    let saved = full.saturating_sub(disk.used());
    assert!(saved > 4 * LARGE as u64, "{saved}");
    for (root, before) in roots.iter().zip(&before) {
        scan(root).assert_same(before);
    }
    store.check();
}

#[test]
fn settings_are_shown_set_and_taken_back() {
    let store = TestStore::new();
    let all = store.json(["store", "config"]);
    let names: Vec<&str> = all
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["name"].as_str().unwrap())
        .collect();
    assert!(
        names.contains(&"dedup") && names.contains(&"hash-rate"),
        "{all}"
    );
    assert_eq!(
        store.json(["store", "config", "hash-rate", "16M"])[0]["value"],
        16 << 20
    );
    store.stop_daemon();
    let shown = store.json(["store", "config", "hash-rate"]);
    assert_eq!(
        (&shown[0]["text"], &shown[0]["is_default"]),
        (&"16M".into(), &false.into())
    );
    assert!(store.ok(["store", "config"]).contains("16M"));
    store.ok(["store", "config", "hash-rate", "--unset"]);
    assert_eq!(
        store.json(["store", "config", "hash-rate"])[0]["is_default"],
        true
    );
    store.fails(2, ["store", "config", "hash-rate", "fast"]);
    store.fails(3, ["store", "config", "none"]);
    store.fails(2, ["store", "config", "--unset"]);
}

#[test]
fn a_store_can_be_made_without() {
    let scratch = tempfile::tempdir().unwrap();
    let store = TestStore::without_init(scratch.path());
    store.ok(["store", "init", "--no-dedup"]);
    let shown = store.json(["store", "config", "dedup"]);
    assert_eq!(
        (&shown[0]["text"], &shown[0]["is_default"]),
        (&"off".into(), &false.into())
    );
}

/// The daemon is killed at each step in turn, while it stores equal contents once.
#[test]
fn a_daemon_killed_at_any_step_leaves_everything_as_it_was() {
    let store = TestStore::new();
    let ids = filled(&store);
    let before: Vec<Tree> = ids
        .iter()
        .map(|id| {
            let root = store.mount(id);
            let tree = scan(&root);
            store.umount(&root);
            tree
        })
        .collect();
    let full = used(&store);
    let mut kills = 0;
    for step in 1.. {
        store.stop_daemon();
        let mut command = store.command();
        command
            .arg("dedup")
            .env("FLOE_TEST_KILL_AT", step.to_string());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let done = command.status().unwrap().success();
        if !done {
            kills += 1;
            // Its end may come a little after that of the connection.
            std::thread::sleep(Duration::from_millis(20));
        }
        store.check();
        for (id, before) in ids.iter().zip(&before) {
            let root = store.mount(id);
            scan(&root).assert_same(before);
            store.umount(&root);
        }
        if done {
            break;
        }
        // Each time a little more is done, so that later steps are those of the rest.
    }
    assert!(kills >= 3, "{kills}");
    assert_eq!(used(&store), full / 8 * 3);
}
