//! Damage as a user sees it: found by `floe check --data`, named by path and snapshot, refused after
//! `--repair`, with everything else as it was; and what is left of a store that lost its catalog.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use floe_harness::{ScanOptions, TestStore, Tree};

const BLOCK: usize = 64 << 10;
const LARGE: usize = 5 * BLOCK;

fn large() -> Vec<u8> {
    (0..LARGE)
        .map(|at| u8::try_from(at / BLOCK + 1 + at % 5).unwrap())
        .collect()
}

/// A store whose workspace `w` has `/src/big.bin` and `/src/other.bin`, and a snapshot `green` of that;
/// nothing is mounted, and no daemon runs.
fn with_snapshot() -> (TestStore, String) {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    fs::create_dir(live.join("src")).unwrap();
    fs::write(live.join("src/big.bin"), large()).unwrap();
    fs::write(live.join("src/other.bin"), vec![9; LARGE]).unwrap();
    let taken = store.json(["snapshot", "w", "--name", "green", "--durable"]);
    let id = taken["id"].as_str().unwrap().to_owned();
    store.umount(&live);
    store.stop_daemon();
    (store, id)
}

/// The object that holds some bytes.
fn object_with(store: &TestStore, bytes: &[u8]) -> PathBuf {
    let dir = store.store_dir().join("objects/0");
    let paths = fs::read_dir(dir)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let mut paths = paths.filter(|path| fs::read(path).unwrap() == bytes);
    paths.next().expect("an object of these bytes")
}

fn flip(object: &Path, at: usize) {
    let file = fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open(object)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at as u64).unwrap();
    file.write_all_at(&[byte[0] ^ 1], at as u64).unwrap();
}

fn read_block(path: &Path, block: usize) -> Result<Vec<u8>, Option<i32>> {
    let mut bytes = vec![0; BLOCK];
    let file = fs::File::open(path).unwrap();
    let at = (block * BLOCK) as u64;
    let read = file.read_exact_at(&mut bytes, at);
    read.map(|()| bytes).map_err(|error| error.raw_os_error())
}

#[test]
fn damage_is_found_named_refused_and_everything_else_reads_as_before() {
    let (store, id) = with_snapshot();
    let object = object_with(&store, &large());
    store.ok(["dedup"]);
    store.stop_daemon();
    flip(&object, 2 * BLOCK + 77);
    store.check();
    let found = store.run(["check", "--data"]).expect_code(1);
    let line = format!(
        "damaged: /src/big.bin bytes {}-{} (object {}, not what it was), seen in snapshot {id} (green), \
         workspace w",
        2 * BLOCK,
        3 * BLOCK - 1,
        object.file_name().unwrap().to_str().unwrap(),
    );
    assert_eq!(found.text().trim(), line, "{found}");
    let json = store
        .run(["check", "--data", "--json"])
        .expect_code(1)
        .json();
    let problem = &json["problems"][0];
    assert_eq!(problem["problem"], "damaged", "{json:#}");
    assert_eq!(problem["start"], 2 * BLOCK);
    assert_eq!(problem["places"][0]["path"], "/src/big.bin");
    assert_eq!(problem["places"][0]["snapshots"][0]["id"], id.as_str());
    assert_eq!(problem["places"][0]["workspaces"][0], "w");
    assert!(json["data"]["verified"].as_u64().unwrap() >= 4, "{json:#}");

    let would = store.run(["check", "--repair", "--data", "--dry-run"]);
    let would = would.expect_code(1);
    assert!(
        would.text().starts_with("to repair: damaged: /src/big.bin"),
        "{would}"
    );
    assert!(!store.store_dir().join("quarantine").exists());

    let done = store.json(["check", "--repair", "--data"]);
    assert_eq!(done["clean"], true, "{done:#}");
    assert_eq!(done["steps"].as_array().unwrap().len(), 1);
    let copy = done["catalog_copy"].as_str().unwrap();
    assert!(Path::new(copy).starts_with(store.store_dir().join("quarantine")));
    // It is known now, and wrong no more.
    let known = store.ok(["check", "--data"]);
    assert!(known.contains("known, reading it fails"), "{known}");
    for restart in [false, true] {
        if restart {
            store.stop_daemon();
        }
        for root in [store.mount("w"), store.mount(&id)] {
            let big = root.join("src/big.bin");
            for block in [0, 1, 3, 4] {
                let expected = large()[block * BLOCK..][..BLOCK].to_vec();
                assert_eq!(read_block(&big, block), Ok(expected), "{block}");
            }
            assert_eq!(read_block(&big, 2), Err(Some(libc::EIO)));
            assert_eq!(
                fs::read(root.join("src/other.bin")).unwrap(),
                vec![9; LARGE]
            );
            store.umount(&root);
        }
    }
    // Whoever has the bytes puts them back.
    let live = store.mount("w");
    let file = fs::OpenOptions::new()
        .write(true)
        .open(live.join("src/big.bin"))
        .unwrap();
    let block = &large()[2 * BLOCK..3 * BLOCK];
    file.write_all_at(block, (2 * BLOCK) as u64).unwrap();
    drop(file);
    assert_eq!(fs::read(live.join("src/big.bin")).unwrap(), large());
    store.check();
}

#[test]
fn a_store_that_is_mounted_is_not_repaired_but_checked() {
    let (store, id) = with_snapshot();
    for target in ["w", &id] {
        let root = store.mount(target);
        let refused = store.fails(4, ["check", "--repair", "--data"]);
        assert!(refused.errors().contains(" umount`"), "{refused}");
        store.ok(["check", "--data"]);
        store.umount(&root);
    }
    store.ok(["check", "--repair"]);
    store.fails(2, ["check", "--dry-run"]);
}

#[test]
fn files_that_belong_to_nothing_go_to_quarantine() {
    let (store, _) = with_snapshot();
    let stray = store.store_dir().join("objects/0/3fe");
    fs::write(&stray, "stray").unwrap();
    store.run(["check"]).expect_code(1);
    let done = store.ok(["check", "--repair"]);
    assert!(done.contains("quarantine"), "{done}");
    store.check();
    let kept = store.store_dir().join("quarantine/3fe");
    assert_eq!(fs::read_to_string(kept).unwrap(), "stray");
    assert!(!stray.exists());
    let sound = store.run(["check", "--repair"]).expect_code(0);
    assert!(sound.errors().contains("the store is sound"), "{sound}");
}

#[test]
fn what_is_left_without_a_catalog_is_listed_and_copied() {
    let (store, _) = with_snapshot();
    let object = object_with(&store, &large());
    let name = object.file_name().unwrap().to_str().unwrap();
    let listed = store.json(["store", "objects"]);
    let first = &listed["objects"][0];
    assert_eq!(first["path"], "/src/big.bin", "{listed:#}");
    assert_eq!(listed["catalog"], serde_json::Value::Null);
    fs::remove_file(store.store_dir().join("catalog.db")).unwrap();
    let before = Tree::scan(&store.store_dir(), ScanOptions::ALL);
    for command in [
        &["ws", "list"][..],
        &["check"],
        &["store", "info"],
        &["store", "init"],
    ] {
        let refused = store.run(command).expect_code(1);
        assert!(refused.errors().contains(" store objects`"), "{refused}");
    }
    let listed = store.json(["store", "objects"]);
    let objects = listed["objects"].as_array().unwrap();
    assert_eq!(objects.len(), 2, "{listed:#}");
    assert_eq!(
        (&objects[0]["id"], &objects[0]["size"]),
        (&name.into(), &LARGE.into())
    );
    let table = store.ok(["store", "objects"]);
    assert_eq!(table.lines().count(), 3, "{table}");
    let to = store.base().join("rescued");
    store.ok(["store", "objects", "--copy-to", to.to_str().unwrap()]);
    assert_eq!(fs::read(to.join(name)).unwrap(), large());
    let refused = store.fails(4, ["store", "objects", "--copy-to", to.to_str().unwrap()]);
    assert!(refused.errors().contains("exists already"), "{refused}");
    Tree::scan(&store.store_dir(), ScanOptions::ALL).assert_same(&before);
    fs::write(store.store_dir().join("catalog.db"), "no catalog").unwrap();
    let refused = store.run(["ws", "list"]).expect_code(1);
    assert!(
        refused.errors().contains(" store objects --copy-to"),
        "{refused}"
    );
    store.ok(["store", "objects"]);
}
