//! Deleting snapshots as a user sees it: always accepted, nothing that is left changes, and the space
//! comes back.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use floe_harness::random::Random;
use floe_harness::{ScanOptions, TestStore, Tree, long_run};
use serde_json::Value;

const LARGE: usize = 4 << 20;

/// Bytes on the disk below a directory.
fn used(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    let mut todo = vec![dir.to_owned()];
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let meta = entry.as_ref().unwrap().path().symlink_metadata().unwrap();
            if meta.is_dir() {
                todo.push(entry.unwrap().path());
            } else {
                sum += meta.blocks() * 512;
            }
        }
    }
    sum
}

fn objects(store: &TestStore) -> u64 {
    used(&store.store_dir().join("objects"))
}

/// Waits until objects take at most so many bytes.
fn comes_to(store: &TestStore, bytes: u64) {
    let waited = Instant::now();
    while objects(store) > bytes {
        let left = objects(store);
        assert!(
            waited.elapsed() < Duration::from_secs(60),
            "{left} > {bytes}"
        );
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn scan(root: &Path) -> Tree {
    Tree::scan(root, ScanOptions::ALL)
}

/// A workspace with a large file that changes from one of three snapshots to the next.
fn written() -> (TestStore, PathBuf, Vec<String>) {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    let mut ids = Vec::new();
    for n in 0..3_u8 {
        fs::write(live.join("large"), vec![b'a' + n; LARGE]).unwrap();
        fs::write(live.join(format!("only{n}")), vec![n; LARGE]).unwrap();
        fs::write(live.join("small"), format!("{n}\n")).unwrap();
        if n > 0 {
            fs::remove_file(live.join(format!("only{}", n - 1))).unwrap();
        }
        ids.push(store.snapshot("w"));
    }
    (store, live, ids)
}

#[test]
fn what_nothing_needs_comes_back_and_the_rest_is_as_it_was() {
    let (store, live, ids) = written();
    let (of_live, of_first) = (scan(&live), scan(&store.mount(&ids[0])));
    let before = objects(&store);
    let would = store.json(["snap", "delete", &ids[1], "--dry-run"]);
    assert_eq!(would["deleted"], false);
    let size = store.json(["du", &ids[1]])[0].clone();
    assert_eq!(
        (&size["frees"], &size["held_by"][0]),
        (&would["frees"], &ids[2].as_str().into())
    );
    assert_eq!(
        would["snapshots"][0]["held_by"],
        serde_json::json!([ids[2]])
    );
    let done = store.json(["snap", "delete", &ids[1], "--wait"]);
    assert_eq!(done["snapshots"][0]["id"], ids[1].as_str());
    // Both large files of it are hidden by what came later.
    let freed = done["freed"]["bytes"].as_u64().unwrap();
    assert!(freed >= 2 * LARGE as u64, "{done:#}");
    assert_eq!(would["frees"], freed);
    assert_eq!(before - objects(&store), freed);
    scan(&live).assert_same(&of_live);
    store.umount(&store.mount(&ids[2]));
    scan(&store.mount(&ids[0])).assert_same(&of_first);
    store.fails(3, ["snap", "delete", &ids[1]]);
    store.fails(3, ["snap", "show", &ids[1]]);
    store.ok(["snap", "delete", "--if-exists", &ids[1]]);
    store.check();
    store.ok(["log", "w"]);
    store.ok(["snap", "tree"]);
    // What stands on it is shown where it was.
    let shown = store.json(["snap", "show", &ids[2]]);
    assert_eq!(shown["parent"], ids[0].as_str());
}

#[test]
fn what_is_mounted_or_forked_goes_on() {
    let (store, live, ids) = written();
    let frozen = store.mount(&ids[1]);
    store.ok(["fork", &ids[0], "f"]);
    let fork = store.mount("f");
    let before = [scan(&live), scan(&frozen), scan(&fork)];
    store.ok(["snap", "delete", "--ws", "w", "--wait"]);
    for (root, before) in [&live, &frozen, &fork].into_iter().zip(&before) {
        scan(root).assert_same(before);
    }
    assert_eq!(store.json(["snap", "list"]), Value::Array(Vec::new()));
    fs::write(fork.join("large"), "changed").unwrap();
    fs::remove_file(live.join("small")).unwrap();
    store.snapshot("w");
    store.check();
    // Now nothing shows it any more.
    let before = objects(&store);
    store.umount(&frozen);
    comes_to(&store, before - LARGE as u64);
    store.ok(["gc"]);
    store.kill_daemon();
    store.ok(["daemon", "start"]);
    store.check();
}

/// Whoever works in it is not thrown out, and its name is free.
#[test]
fn a_workspace_that_is_mounted_is_deleted_and_goes_with_its_last_mount() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    fs::write(live.join("large"), vec![b'x'; LARGE]).unwrap();
    let deleted = store.json(["ws", "delete", "w"]);
    assert_eq!(deleted[0]["mounts"][0], live.to_str().unwrap());
    fs::write(live.join("more"), vec![b'y'; LARGE]).unwrap();
    assert_eq!(
        fs::metadata(live.join("large")).unwrap().len(),
        LARGE as u64
    );
    store.fails(3, ["snapshot", "w"]);
    store.fails(3, ["ws", "show", "w"]);
    store.ok(["ws", "create", "w"]);
    assert_eq!(fs::read_dir(store.mount("w")).unwrap().count(), 0);
    assert!(objects(&store) >= 2 * LARGE as u64);
    store.check();
    store.umount(&live);
    comes_to(&store, 0);
    // One whose daemon is killed is not mounted again.
    let other = store.mount("w");
    fs::write(other.join("large"), vec![b'x'; LARGE]).unwrap();
    store.ok(["ws", "delete", "w"]);
    store.kill_daemon();
    store.ok(["daemon", "start"]);
    comes_to(&store, 0);
    assert_eq!(store.ok(["ws", "list", "-q"]), "");
    store.check();
}

/// What is taken or deleted between two pages moves nothing else.
#[test]
fn a_list_is_read_in_pages() {
    let store = TestStore::new();
    for name in ["a", "b"] {
        store.ok(["ws", "create", name]);
    }
    for n in 0..9 {
        store.snapshot(["a", "b"][n % 2]);
    }
    let ids = |arguments: &[&str]| -> Vec<(String, String)> {
        let found = store.json([&["snap", "list"], arguments].concat());
        let text = |one: &Value, key: &str| one[key].as_str().unwrap().to_owned();
        let found = found.as_array().unwrap().iter();
        found
            .map(|one| (text(one, "id"), text(one, "cursor")))
            .collect()
    };
    for arguments in [
        &[][..],
        &["--ws", "a"],
        &["--reverse"],
        &["--ws", "b", "--reverse"],
    ] {
        let all = ids(arguments);
        let mut paged = ids(&[arguments, &["--limit", "2"]].concat());
        loop {
            let after = paged.last().unwrap().1.clone();
            let page = ids(&[arguments, &["--limit", "2", "--after", &after]].concat());
            if page.is_empty() {
                break;
            }
            paged.extend(page);
        }
        assert_eq!(paged, all, "{arguments:?}");
    }
    let first = ids(&["--limit", "3"]);
    let rest = ids(&["--after", &first[2].1]);
    store.snapshot("a");
    store.ok(["snap", "delete", &first[2].0, &rest[0].0]);
    assert_eq!(ids(&["--after", &first[2].1]), rest[1..]);
    store.fails(2, ["snap", "list", "--after", "here"]);
    assert!(ids(&["--older-than", "1h"]).is_empty());
    assert_eq!(ids(&["--newer-than", "1h"]).len(), 8);
}

#[test]
fn snapshots_are_selected_by_what_they_have_in_common() {
    let store = TestStore::new();
    for name in ["a", "b"] {
        store.ok(["ws", "create", name]);
        for n in 0..4 {
            let label = format!("n={}", n % 2);
            store.ok([
                "snapshot",
                name,
                "--name",
                &format!("s{n}"),
                "--label",
                &label,
            ]);
        }
    }
    let names = |ws: &str| -> Vec<String> {
        let found = store.json(["snap", "list", "--ws", ws]);
        let names = found.as_array().unwrap().iter();
        names
            .map(|one| one["name"].as_str().unwrap().to_owned())
            .collect()
    };
    store.fails(2, ["snap", "delete"]);
    store.fails(2, ["snap", "delete", "a/s0", "--ws", "a"]);
    store.fails(2, ["snap", "delete", "--older-than", "soon"]);
    store.fails(3, ["snap", "delete", "a/s0", "a/none"]);
    store.fails(3, ["snap", "delete", "--ws", "none"]);
    assert_eq!(names("a").len(), 4);
    assert!(
        store
            .ok(["snap", "delete", "--older-than", "1h"])
            .is_empty()
    );
    let gone = store.ok(["snap", "delete", "--keep-last", "3"]);
    assert_eq!(gone.lines().count(), 2);
    assert_eq!(names("a"), ["s3", "s2", "s1"]);
    store.ok([
        "snap",
        "delete",
        "--ws",
        "a",
        "--label",
        "n=1",
        "--keep-last",
        "1",
    ]);
    assert_eq!(names("a"), ["s3", "s2"]);
    store.ok(["snap", "delete", "a/s2", "b/s1", "b/s1"]);
    assert_eq!(
        (names("a"), names("b")),
        (vec!["s3".into()], vec!["s3".into(), "s2".into()])
    );
    store.ok(["snap", "delete", "--name", "s3", "--wait"]);
    assert!(names("a").is_empty());
}

/// Landings are remembered by the layers they were of, which go when nothing comes from them any more.
#[test]
fn what_was_landed_in_a_directory_comes_back_as_well() {
    let store = TestStore::new();
    let dir = store.base().join("host");
    fs::create_dir(&dir).unwrap();
    fs::write(dir.join("large"), vec![b'h'; LARGE]).unwrap();
    store.ok(["ws", "create", "w", "--from", dir.to_str().unwrap()]);
    let live = store.mount("w");
    for n in 0..3_u8 {
        fs::write(live.join("large"), vec![b'a' + n; LARGE]).unwrap();
        store.ok(["land", "w"]);
    }
    store.umount(&live);
    store.ok(["snap", "delete", "--ws", "w", "--wait"]);
    // The next landing knows what is there.
    let live = store.mount("w");
    fs::write(live.join("large"), "small").unwrap();
    store.ok(["land", "w"]);
    assert_eq!(fs::read(dir.join("large")).unwrap(), b"small");
    store.check();
    store.umount(&live);
    store.ok(["fork", "w", "f"]);
    store.ok(["ws", "delete", "w"]);
    store.ok(["snap", "delete", "--older-than", "1 ms", "--wait"]);
    let fork = store.mount("f");
    fs::write(fork.join("large"), "of the fork").unwrap();
    store.ok(["land", "f", "--onto", dir.to_str().unwrap()]);
    assert_eq!(fs::read(dir.join("large")).unwrap(), b"of the fork");
    store.ok(["ws", "delete", "f"]);
    store.umount(&fork);
    store.ok(["snap", "delete", "--older-than", "1 ms"]);
    comes_to(&store, 0);
    let landings = fs::read_dir(store.store_dir().join("landings"));
    assert_eq!(landings.map_or(0, Iterator::count), 0);
    let info = store.json(["store", "info"]);
    assert!(info["layers"].as_u64().unwrap() <= 1, "{info:#}");
}

/// Whatever order they are deleted in, each that is left shows what it did.
#[test]
fn a_long_chain_is_deleted_in_any_order() {
    let seed = Random::seed_from_env(21);
    let mut random = Random::new(seed);
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    let count = if long_run() { 300 } else { 60 };
    let mut left = Vec::new();
    for n in 0..count {
        let file = |n| live.join(format!("f{}", n % 7));
        match n % 4 {
            0 => fs::write(file(n), vec![b'x'; 1000 * n]).unwrap(),
            1 if file(n).exists() => fs::rename(file(n), live.join(format!("g{n}"))).unwrap(),
            2 if file(n).exists() => fs::remove_file(file(n)).unwrap(),
            _ => fs::write(live.join(format!("d{n}")), format!("{n}")).unwrap(),
        }
        let id = store.snapshot("w");
        left.push((id, scan(&live)));
    }
    let of_live = scan(&live);
    while left.len() > 3 {
        for _ in 0..random.below(8) + 1 {
            if left.len() > 3 {
                let (id, _) =
                    left.swap_remove(usize::try_from(random.below(left.len() as u64)).unwrap());
                store.ok(["snap", "delete", &id]);
            }
        }
        let (id, expected) = &left[0];
        let frozen = store.mount(id);
        scan(&frozen).assert_same(expected);
        store.umount(&frozen);
    }
    store.ok(["gc"]);
    for (id, expected) in &left {
        scan(&store.mount(id)).assert_same(expected);
    }
    scan(&live).assert_same(&of_live);
    let info = store.json(["store", "info"]);
    assert!(info["layers"].as_u64().unwrap() <= 5, "{info:#}");
    store.check();
}

/// Killed anywhere in it, giving space back goes on when the store is opened again.
#[test]
fn giving_space_back_survives_kills() {
    let seed = Random::seed_from_env(5);
    let mut random = Random::new(seed);
    let kills = if long_run() { 200 } else { 12 };
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let (mut killed, mut rounds) = (0, 0);
    let mut kept: Option<(String, Tree)> = None;
    while killed < kills {
        let live = store.mount("w");
        let letter = b"abcdefghij"[rounds % 10];
        for n in 0..200 {
            let file = live.join(format!("d{}/f{n}", n % 10));
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            if random.one_in(4) && file.exists() {
                fs::remove_file(&file).unwrap();
            } else {
                let size = usize::try_from(random.below(40_000)).unwrap();
                fs::write(&file, vec![letter; size]).unwrap();
            }
            if n % 20 == 0 {
                store.snapshot("w");
            }
        }
        let now = (store.snapshot("w"), scan(&live));
        let all = store.json(["snap", "list", "--ws", "w"]);
        let keep = kept.as_ref().map(|(id, _)| id.clone());
        let mut command = vec!["snap".to_owned(), "delete".to_owned()];
        for one in all.as_array().unwrap() {
            let id = one["id"].as_str().unwrap();
            if id != now.0 && Some(id) != keep.as_deref() {
                command.push(id.to_owned());
            }
        }
        store.ok(&command);
        std::thread::sleep(Duration::from_micros(random.below(60_000)));
        store.kill_daemon();
        let busy = layers_to_collect(&store);
        killed += usize::from(busy);
        rounds += 1;
        assert!(rounds < 20 * kills, "seed {seed}: {killed} of {rounds}");
        store.ok(["daemon", "start"]);
        store.check();
        if let Some((id, expected)) = &kept {
            let frozen = store.mount(id);
            scan(&frozen).assert_same(expected);
            store.umount(&frozen);
            store.ok(["snap", "delete", id]);
        }
        scan(&store.mount("w")).assert_same(&now.1);
        kept = Some(now);
    }
    eprintln!("seed {seed}: {killed} of {rounds} kills were in the middle");
    store.ok(["gc"]);
    store.check();
    let (id, expected) = kept.unwrap();
    scan(&store.mount(&id)).assert_same(&expected);
}

/// Whether a store that no daemon has holds layers that are to go.
fn layers_to_collect(store: &TestStore) -> bool {
    let catalog = rusqlite::Connection::open(store.store_dir().join("catalog.db")).unwrap();
    let sql = "SELECT count(*) FROM layer WHERE state IN (2, 3)";
    catalog
        .query_row(sql, [], |row| row.get::<_, i64>(0))
        .unwrap()
        > 0
}

#[test]
fn a_store_that_was_emptied_takes_no_more_than_a_new_one() {
    let (store, live, _) = written();
    store.umount(&live);
    store.ok(["snap", "delete", "--ws", "w"]);
    store.ok(["ws", "delete", "w"]);
    store.ok(["gc"]);
    assert_eq!(objects(&store), 0);
    let info = store.json(["store", "info"]);
    assert_eq!(info["objects"], 0);
    // Without anybody asking as well.
    let (store, live, ids) = written();
    let before = objects(&store);
    store.ok(["snap", "delete", &ids[0], &ids[1]]);
    comes_to(&store, before - 3 * LARGE as u64);
    assert_eq!(
        fs::metadata(live.join("large")).unwrap().len(),
        LARGE as u64
    );
}

/// A fork `w` of `v`, both mounted; `v` has `kept`.
fn forked() -> (TestStore, PathBuf, PathBuf) {
    let store = TestStore::new();
    store.ok(["ws", "create", "v"]);
    let theirs = store.mount("v");
    fs::write(theirs.join("kept"), "1\n2\n3\n").unwrap();
    store.ok(["fork", "v", "w"]);
    let ours = store.mount("w");
    (store, theirs, ours)
}

/// A state that was snapshotted is not the one before that snapshot when it is deleted.
#[test]
fn what_was_changed_before_a_deleted_snapshot_still_lands() {
    let (store, theirs, ours) = forked();
    fs::write(ours.join("new"), "of w").unwrap();
    store.snapshot("w");
    store.ok(["snap", "delete", "--ws", "w", "--wait"]);
    store.ok(["snap", "delete", "--ws", "v", "--wait"]);
    store.ok(["daemon", "stop"]);
    let (theirs, ours) = (remounted(&store, "v", theirs), remounted(&store, "w", ours));
    // Nor does it forget what it was forked from.
    assert_eq!(store.json(["land", "w"])["onto"], "v");
    assert_eq!(fs::read(theirs.join("new")).unwrap(), b"of w");
    assert!(ours.join("kept").exists());
    store.check();
}

/// Mounts it where it was.
fn remounted(store: &TestStore, name: &str, dir: PathBuf) -> PathBuf {
    store.ok(["mount", name, dir.to_str().unwrap()]);
    dir
}

/// What landed is known, whatever is deleted of what tells of it.
#[test]
fn a_later_landing_does_not_bring_back_what_was_removed_since() {
    let (store, theirs, ours) = forked();
    fs::write(ours.join("new"), "of w").unwrap();
    fs::write(ours.join("kept"), "1\n2\nthree\n").unwrap();
    store.ok(["land", "w"]);
    fs::remove_file(theirs.join("new")).unwrap();
    fs::write(theirs.join("kept"), "1\n2\n3\n").unwrap();
    store.snapshot("v");
    fs::write(theirs.join("more"), "of v").unwrap();
    let last = store.snapshot("v");
    for one in store.json(["snap", "list"]).as_array().unwrap() {
        let id = one["id"].as_str().unwrap();
        if id != last {
            store.ok(["snap", "delete", id]);
        }
    }
    store.ok(["gc"]);
    store.ok(["daemon", "stop"]);
    let (theirs, ours) = (remounted(&store, "v", theirs), remounted(&store, "w", ours));
    fs::write(ours.join("later"), "of w").unwrap();
    let landed = store.json(["land", "w"]);
    assert_eq!(landed["files"].as_array().unwrap().len(), 1, "{landed:#}");
    assert!(theirs.join("later").exists() && !theirs.join("new").exists());
    assert_eq!(fs::read(theirs.join("kept")).unwrap(), b"1\n2\n3\n");
    store.check();
}

/// What somebody else landed is a beginning only as long as it is kept as it was.
#[test]
fn a_fork_of_what_landed_lands_what_it_removed() {
    let (store, theirs, ours) = forked();
    fs::write(ours.join("new"), "of w").unwrap();
    let landed = store.json(["land", "w"])["source"]
        .as_str()
        .unwrap()
        .to_owned();
    store.ok(["fork", &landed, "x"]);
    store.umount(&ours);
    store.ok(["ws", "delete", "w"]);
    store.ok(["snap", "delete", &landed, "--wait"]);
    let fork = store.mount("x");
    fs::remove_file(fork.join("new")).unwrap();
    fs::write(fork.join("kept"), "1\n2\nthree\n").unwrap();
    store.ok(["gc"]);
    // Both have it, and it is not known any more that it came from there: so it is a conflict, or it
    // goes. It is never passed over.
    let answer = store.run(["land", "x", "--onto", "v", "--json"]);
    let done = answer.json();
    let about = |list: &str| {
        let list = done[list].as_array().unwrap().iter();
        list.filter(|one| one["path"] == "new").count()
    };
    assert_eq!(about("files") + about("conflicts"), 1, "{done:#}");
    assert_eq!(theirs.join("new").exists(), about("conflicts") == 1);
    store.check();
}

/// Names of workspaces are used again; what is kept of one is not counted for another.
#[test]
fn the_last_of_each_workspace_are_kept_whatever_it_was_called() {
    let store = TestStore::new();
    for _ in 0..3 {
        store.ok(["ws", "create", "build"]);
        for _ in 0..3 {
            store.snapshot("build");
        }
        store.ok(["ws", "delete", "build"]);
    }
    store.ok(["snap", "delete", "--keep-last", "2"]);
    assert_eq!(store.json(["snap", "list"]).as_array().unwrap().len(), 6);
    store.check();
}
