//! Hashing frozen contents and storing equal ones once: nothing that anybody sees changes, nothing that
//! is live is touched, and space that several share comes back with the last.

mod common;
#[path = "dedup/more.rs"]
mod more;

use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use common::{make, name, read, write};
use floe_fs::attr::FileKind;
use floe_fs::dispatch::Dispatch;
use floe_fs::id::Ino;
use floe_fs::{
    CollectReport, DeleteSelection, HashReport, Problem, SnapshotInfo, SnapshotOptions, Store, View,
};

const BLOCK: usize = 64 << 10;

/// A store that hashes only when it is told to.
struct Case {
    _scratch: tempfile::TempDir,
    dir: PathBuf,
    store: Arc<Store>,
}

impl Case {
    fn new() -> Self {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("store");
        let store = common::new_store(&dir);
        store.set("hash-rate", Some("off")).unwrap();
        Self {
            _scratch: scratch,
            dir,
            store,
        }
    }

    fn reopen(mut self) -> Self {
        let (dir, scratch) = (self.dir, self._scratch);
        drop(self.store);
        self.store = Store::open(&dir).unwrap();
        Self {
            _scratch: scratch,
            dir,
            store: self.store,
        }
    }

    /// A workspace with a file, and a snapshot of it.
    fn with(&self, workspace: &str, contents: &[u8]) -> (Arc<View>, Ino, SnapshotInfo) {
        self.store.create_workspace(&name(workspace)).unwrap();
        let view = self.store.open_live(workspace).unwrap();
        let file = make(&view, Ino::ROOT, "file", FileKind::File);
        write(&view, file, 0, contents);
        let snapshot = self.snapshot(workspace);
        (view, file, snapshot)
    }

    fn snapshot(&self, workspace: &str) -> SnapshotInfo {
        let options = SnapshotOptions::default();
        self.store.snapshot(workspace, &options).unwrap()
    }

    fn hash(&self) -> HashReport {
        let report = self.store.hash_now(&mut |_| ControlFlow::Continue(()));
        report.unwrap()
    }

    fn delete(&self, snapshot: &SnapshotInfo) {
        let these = DeleteSelection::These(vec![snapshot.id.to_string()]);
        self.store.delete_snapshots(&these, false).unwrap();
    }

    /// Deletes a snapshot and gives its space back.
    fn delete_now(&self, snapshot: &SnapshotInfo) -> CollectReport {
        let these = DeleteSelection::These(vec![snapshot.id.to_string()]);
        let go_on = &mut |_: &_| ControlFlow::Continue(());
        self.store.delete_snapshots_now(&these, go_on).unwrap().1
    }

    fn collect(&self) -> CollectReport {
        let report = self.store.collect(&mut |_| ControlFlow::Continue(()));
        report.unwrap()
    }

    fn check(&self) {
        let report = self.store.check().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }

    fn frozen(&self, snapshot: &SnapshotInfo, file: Ino) -> Vec<u8> {
        let view = self.store.open_frozen(&snapshot.id).unwrap();
        read(&view, file)
    }

    /// The files in `objects/`, each with its inode, its links and the bytes that it takes.
    fn objects(&self) -> BTreeMap<u64, (u64, u64, u64)> {
        let mut found = BTreeMap::new();
        for group in fs::read_dir(self.dir.join("objects")).unwrap() {
            for file in fs::read_dir(group.unwrap().path()).unwrap() {
                let file = file.unwrap();
                let meta = file.metadata().unwrap();
                let id = u64::from_str_radix(file.file_name().to_str().unwrap(), 16).unwrap();
                found.insert(id, (meta.ino(), meta.nlink(), meta.blocks() * 512));
            }
        }
        found
    }

    /// Whether the disk shares extents: then each object keeps its own file.
    fn reflink(&self) -> bool {
        self.store.info().unwrap().reflink.unwrap()
    }
}

fn contents(seed: u8, blocks: usize) -> Vec<u8> {
    let byte = |n: usize| u8::try_from((n * 7 + n / BLOCK) % 251).unwrap() ^ seed;
    (0..blocks * BLOCK - 100).map(byte).collect()
}

#[test]
fn equal_objects_of_two_workspaces_are_stored_once_and_others_are_not() {
    let case = Case::new();
    let (one, two) = (contents(1, 5), contents(2, 5));
    let (live, a, first) = case.with("a", &one);
    let (_, b, second) = case.with("b", &one);
    let (_, c, third) = case.with("c", &two);
    let report = case.hash();
    assert_eq!((report.objects, report.shared, report.failed), (3, 1, 0));
    assert!(report.saved >= one.len() as u64);
    if !case.reflink() {
        let links: Vec<u64> = case.objects().values().map(|file| file.1).collect();
        assert_eq!(links, [2, 2, 1]);
    }
    for (snapshot, file, expected) in [(first, a, &one), (second, b, &one), (third, c, &two)] {
        assert!(case.frozen(&snapshot, file) == *expected);
    }
    case.check();
    // Whoever writes on writes elsewhere.
    write(&live, a, 10, b"changed");
    assert_eq!(&read(&live, a)[10..17], b"changed");
    case.check();
    let again = case.hash();
    assert_eq!((again.objects, again.shared), (0, 0));
    drop(live);
    let case = case.reopen();
    assert_eq!(case.hash().objects, 0);
    case.check();
}

#[test]
fn what_is_live_is_neither_hashed_nor_joined() {
    let case = Case::new();
    let data = contents(3, 3);
    let (_, frozen, snapshot) = case.with("a", &data);
    case.store.create_workspace(&name("b")).unwrap();
    let live = case.store.open_live("b").unwrap();
    let file = make(&live, Ino::ROOT, "file", FileKind::File);
    write(&live, file, 0, &data);
    let report = case.hash();
    assert_eq!((report.objects, report.shared), (1, 0));
    assert!(case.objects().values().all(|file| file.1 == 1));
    write(&live, file, 0, b"mine");
    assert!(case.frozen(&snapshot, frozen) == data);
    write(&live, file, 0, &data[..4]);
    case.snapshot("b");
    let report = case.hash();
    assert_eq!((report.objects, report.shared), (1, 1));
    case.check();
}

#[test]
fn a_file_with_holes_is_not_made_one_with_a_file_of_zeros() {
    let case = Case::new();
    let mut data = contents(4, 3);
    data[BLOCK..2 * BLOCK].fill(0);
    let (_, zeros, full) = case.with("zeros", &data);
    case.store.create_workspace(&name("holes")).unwrap();
    let live = case.store.open_live("holes").unwrap();
    let file = make(&live, Ino::ROOT, "file", FileKind::File);
    write(&live, file, 0, &data[..BLOCK]);
    write(&live, file, 2 * BLOCK as u64, &data[2 * BLOCK..]);
    let holey = case.snapshot("holes");
    let report = case.hash();
    assert_eq!((report.objects, report.shared), (2, 0));
    for (snapshot, file) in [(full, zeros), (holey.clone(), file)] {
        assert!(case.frozen(&snapshot, file) == data);
    }
    let holes = case.store.open_frozen(&holey.id);
    let hole = holes.unwrap().seek(file, 0, true).unwrap();
    assert_eq!(hole, BLOCK as u64);
    case.check();
}

#[test]
fn space_that_several_share_comes_back_with_the_last_of_them() {
    let case = Case::new();
    let data = contents(5, 8);
    let kept: Vec<_> = ["a", "b", "c"].map(|one| case.with(one, &data)).into();
    assert_eq!(case.hash().shared, 2);
    let all: Vec<_> = kept.iter().map(|(.., snapshot)| snapshot.clone()).collect();
    for (view, file, _) in &kept {
        view.unlink(Ino::ROOT, b"file").unwrap();
        view.forget(*file, u64::MAX);
    }
    // Which waits until they are gone.
    case.check();
    for (at, (_, _, snapshot)) in kept.iter().enumerate() {
        let would = case
            .store
            .would_free(std::slice::from_ref(snapshot))
            .unwrap();
        let would_all = case.store.would_free(&all[at..]).unwrap();
        let freed = case.delete_now(snapshot);
        assert_eq!(freed.objects, 1, "{at}");
        if case.reflink() {
            continue;
        }
        assert_eq!(freed.bytes, would, "{at}");
        assert_eq!(freed.bytes >= data.len() as u64, at == 2, "{at}: {freed:?}");
        assert!(would_all >= data.len() as u64, "{at}: {would_all}");
        for (_, file, snapshot) in &kept[at + 1..] {
            assert!(case.frozen(snapshot, *file) == data);
        }
    }
    assert!(case.objects().is_empty());
    case.check();
}

/// What is hidden of an object is made a hole. Of a file that another object is as well, that would
/// take what the other shows.
#[test]
fn what_is_hidden_of_a_shared_object_stays_and_of_its_own_is_given_back() {
    for shared in [true, false] {
        let case = Case::new();
        let data = contents(6, 10);
        let (view, a, first) = case.with("a", &data);
        let (_, b, other) = case.with("b", &data);
        write(&view, a, 0, &[7; 4 * BLOCK]);
        let second = case.snapshot("a");
        if shared {
            assert_eq!(case.hash().shared, 1);
        }
        let takes = |case: &Case| case.objects().values().map(|file| file.2).sum::<u64>();
        let before = takes(&case);
        let would = case.store.would_free(std::slice::from_ref(&first)).unwrap();
        let freed = case.delete_now(&first).bytes;
        assert_eq!(freed, would);
        if !case.reflink() {
            assert_eq!(freed > 0, !shared, "{freed}");
            assert_eq!(takes(&case), before - freed);
        }
        assert!(case.frozen(&other, b) == data);
        let mut expected = data.clone();
        expected[..4 * BLOCK].fill(7);
        assert!(case.frozen(&second, a) == expected);
        // An object that has lost blocks since it was hashed is not equal to one that has them.
        let (_, c, late) = case.with("c", &data);
        assert_eq!(case.hash().failed, 0);
        assert!(case.frozen(&late, c) == data);
        assert!(case.frozen(&second, a) == expected);
        case.check();
    }
}

#[test]
fn a_file_that_has_as_many_names_as_it_can_have_is_replaced_by_the_next() {
    let case = Case::new();
    if case.reflink() {
        return;
    }
    let data = contents(7, 2);
    let (_, a, first) = case.with("a", &data);
    assert_eq!(case.hash().objects, 1);
    let object = case.dir.join("objects/0/1");
    let links = case.dir.with_file_name("links");
    fs::create_dir(&links).unwrap();
    let mut full = false;
    for n in 0..70_000 {
        full = fs::hard_link(&object, links.join(n.to_string())).is_err();
        if full {
            break;
        }
    }
    let (_, b, second) = case.with("b", &data);
    // tmpfs has no such limit.
    assert_eq!(case.hash().shared, u64::from(!full));
    let (_, c, third) = case.with("c", &data);
    assert_eq!(case.hash().shared, 1);
    for (snapshot, file) in [(first, a), (second, b), (third, c)] {
        assert!(case.frozen(&snapshot, file) == data);
    }
    case.check();
}

#[test]
fn an_object_that_cannot_be_read_is_left_and_the_others_are_hashed() {
    let case = Case::new();
    case.with("a", &contents(8, 2));
    case.with("b", &contents(9, 2));
    let (object, aside) = (
        case.dir.join("objects/0/1"),
        case.dir.with_file_name("aside"),
    );
    fs::rename(&object, &aside).unwrap();
    let report = case.hash();
    assert_eq!((report.objects, report.failed), (1, 1));
    fs::rename(&aside, &object).unwrap();
    let report = case.hash();
    assert_eq!((report.objects, report.failed), (1, 0));
    case.check();
}

#[test]
fn what_an_interrupted_join_left_is_found_and_removed_when_the_store_is_opened() {
    let case = Case::new();
    let (_, file, snapshot) = case.with("a", &contents(10, 2));
    let left = case.dir.join("objects/0/dedup");
    fs::hard_link(case.dir.join("objects/0/1"), &left).unwrap();
    let found = case.store.check().unwrap().problems;
    assert!(
        matches!(&found[..], [Problem::UnexpectedFile { path }] if path.ends_with("0/dedup")),
        "{found:?}"
    );
    // One that is in the way does not keep others from being joined.
    let (_, second, other) = case.with("b", &contents(10, 2));
    assert_eq!(case.hash().shared, 1);
    if !case.reflink() {
        assert!(!left.exists());
    }
    fs::write(&left, "").unwrap();
    let case = case.reopen();
    assert!(!left.exists());
    case.check();
    for (snapshot, file) in [(snapshot, file), (other, second)] {
        assert!(case.frozen(&snapshot, file) == contents(10, 2));
    }
}

#[test]
fn a_file_that_is_written_and_synced_meanwhile_keeps_what_was_written() {
    let case = Case::new();
    let data = contents(11, 4);
    let (live, file, _) = case.with("a", &data);
    case.with("b", &data);
    let stop = AtomicBool::new(false);
    let mut expected = data.clone();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                case.hash();
            }
        });
        let mut snapshots = Vec::new();
        for round in 0..40_u8 {
            let at = usize::from(round % 4) * BLOCK + usize::from(round);
            let bytes = [round; 5000];
            write(&live, file, at as u64, &bytes);
            expected[at..at + bytes.len()].copy_from_slice(&bytes);
            live.fsync(file).unwrap();
            assert!(read(&live, file) == expected, "{round}");
            if round % 5 == 0 {
                snapshots.push((case.snapshot("a"), expected.clone()));
            }
        }
        stop.store(true, Ordering::Relaxed);
        for (snapshot, expected) in snapshots {
            assert!(case.frozen(&snapshot, file) == expected);
        }
    });
    case.hash();
    assert!(read(&live, file) == expected);
    case.check();
}

/// A generator of small numbers (splitmix64).
struct Draw(u64);

impl Draw {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % bound as u64).unwrap()
    }
}

/// What the files of a workspace hold.
type Files = BTreeMap<String, (Ino, Vec<u8>)>;

fn same(view: &View, files: &Files, what: &str) {
    for (name, (ino, expected)) in files {
        assert!(read(view, *ino) == *expected, "{what}: {name}");
    }
}

/// Few contents, so that many objects are equal, in pieces that are written, deleted, given back and
/// stored once in any order.
#[test]
fn whatever_is_written_deleted_collected_and_joined_reads_as_plain_copies_do() {
    let rounds = if std::env::var_os("FLOE_TEST_LONG").is_some() {
        200
    } else {
        8
    };
    let seed = std::env::var("FLOE_TEST_SEED").map_or(1, |seed| seed.parse().unwrap());
    for round in 0..rounds {
        eprintln!("FLOE_TEST_SEED={}", seed + round);
        random_round(&mut Draw(seed + round));
    }
}

fn random_round(draw: &mut Draw) {
    let case = Case::new();
    let mut joined = 0;
    let mut live: Vec<(String, Arc<View>, Files)> = Vec::new();
    for n in 0..3 {
        let workspace = format!("w{n}");
        case.store.create_workspace(&name(&workspace)).unwrap();
        let view = case.store.open_live(&workspace).unwrap();
        live.push((workspace, view, Files::new()));
    }
    let mut frozen: Vec<(SnapshotInfo, Files)> = Vec::new();
    for step in 0..150 {
        let at = draw.below(live.len());
        let (workspace, view, files) = &mut live[at];
        match draw.below(20) {
            0..9 => {
                let file = format!("f{}", draw.below(3));
                let (ino, held) = files
                    .entry(file.clone())
                    .or_insert_with(|| (make(view, Ino::ROOT, &file, FileKind::File), Vec::new()));
                // Whole, so that there are equal ones, or a part of it.
                let (offset, bytes) = match draw.below(3) {
                    0 => (draw.below(6) * BLOCK, contents(1, 1)),
                    _ => (0, contents(u8::try_from(draw.below(2)).unwrap(), 6)),
                };
                write(view, *ino, offset as u64, &bytes);
                let end = offset + bytes.len();
                held.resize(held.len().max(end), 0);
                held[offset..end].copy_from_slice(&bytes);
            }
            9..13 => {
                let files = files.clone();
                frozen.push((case.snapshot(workspace), files));
            }
            13..15 if !frozen.is_empty() => {
                let (snapshot, _) = frozen.swap_remove(draw.below(frozen.len()));
                case.delete(&snapshot);
            }
            15 => {
                let name = files.keys().next().cloned();
                if let Some(name) = name {
                    view.unlink(Ino::ROOT, name.as_bytes()).unwrap();
                    let (ino, _) = files.remove(&name).unwrap();
                    view.forget(ino, u64::MAX);
                }
            }
            16 => drop(case.collect()),
            17..20 => {
                let report = case.hash();
                assert_eq!(report.failed, 0, "step {step}");
                joined += report.shared;
            }
            _ => {}
        }
        if step % 25 == 24 {
            case.check();
        }
    }
    case.hash();
    case.collect();
    for (snapshot, files) in &frozen {
        let view = case.store.open_frozen(&snapshot.id).unwrap();
        same(&view, files, snapshot.id.as_str());
    }
    for (workspace, view, files) in &live {
        same(view, files, workspace);
    }
    case.check();
    assert!(joined > 0, "nothing was equal");
}

/// Runs this program again, to hash what is in the store and be killed at a step. Says whether it was.
fn is_killed(store: &Path, step: u64) -> bool {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "what_a_child_does", "--nocapture"]);
    command.env("FLOE_TEST_CHILD_STORE", store);
    command.env("FLOE_TEST_KILL_AT", step.to_string());
    let output = command.output().unwrap();
    let killed = std::os::unix::process::ExitStatusExt::signal(&output.status) == Some(9);
    assert!(killed || output.status.success(), "{output:?}");
    killed
}

/// Not a test by itself: what the children of the next one do.
#[test]
fn what_a_child_does() {
    let Some(dir) = std::env::var_os("FLOE_TEST_CHILD_STORE") else {
        return;
    };
    let store = Store::open(Path::new(&dir)).unwrap();
    store.hash_now(&mut |_| ControlFlow::Continue(())).unwrap();
}

#[test]
fn killed_at_any_step_the_store_opens_and_everything_is_as_it_was() {
    let data = contents(12, 3);
    for step in 1.. {
        let case = Case::new();
        let kept: Vec<_> = ["a", "b", "c"].map(|one| case.with(one, &data)).into();
        let kept: Vec<_> = kept
            .into_iter()
            .map(|(_, file, info)| (file, info))
            .collect();
        let Case {
            _scratch,
            dir,
            store,
        } = case;
        drop(store);
        let killed = is_killed(&dir, step);
        let store = Store::open(&dir).unwrap();
        let case = Case {
            _scratch,
            dir,
            store,
        };
        case.check();
        for (file, snapshot) in &kept {
            assert!(case.frozen(snapshot, *file) == data, "step {step}");
        }
        // What is left is done the next time.
        case.hash();
        if !case.reflink() {
            assert!(
                case.objects().values().all(|file| file.1 == 3),
                "step {step}"
            );
        }
        case.check();
        if !killed {
            assert!(step > 6, "it has only {step} steps");
            break;
        }
    }
}

#[test]
fn the_background_hashes_what_is_frozen_and_stores_it_once() {
    let case = Case::new();
    let data = contents(13, 2);
    case.with("a", &data);
    case.with("b", &data);
    let hashed = |case: &Case| case.hash().objects == 0;
    case.store.set("hash-rate", Some("1G")).unwrap();
    let one_file = |case: &Case| case.objects().values().all(|file| file.1 == 2);
    let begun = std::time::Instant::now();
    while !(one_file(&case) || case.reflink()) {
        assert!(begun.elapsed().as_secs() < 60, "{:?}", case.objects());
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(hashed(&case) || case.reflink());
    case.check();
}
