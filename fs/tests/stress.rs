//! Many threads on one workspace: file operations, snapshots, rollbacks and reclaiming at once.
//!
//! What must hold: nothing waits for ever (a watchdog ends the process and says what each thread
//! was doing), the store is sound afterwards, a snapshot never changes, and a snapshot is a cut:
//! everything acknowledged before it was asked for is in it, nothing begun after it returned, and
//! nothing without what came before it.
//!
//! `FLOE_STRESS_SECONDS` makes the runs longer than the few seconds that they take.

mod common;
mod stress {
    pub mod support;
    pub mod worker;
}

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use floe_fs::attr::FileKind;
use floe_fs::dispatch::Dispatch;
use floe_fs::id::{Ino, SnapshotId};
use floe_fs::{ForkSource, SnapshotOptions, Store, View};

use common::{append, make, name, write};
use stress::support::*;
use stress::worker::Worker;

#[test]
fn threads_snapshots_and_rollbacks_leave_a_sound_store_and_unchanged_snapshots() {
    let watchdog = Watchdog::start("stress");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = open_store(&path);
    let view = store.open_live("w").unwrap();
    let stop = AtomicBool::new(false);
    let hashes = std::thread::scope(|scope| {
        let mut workers = Vec::new();
        for number in 1..=THREADS as u64 {
            let (view, stop, watchdog) = (&view, &stop, &watchdog);
            workers.push(scope.spawn(move || {
                let mut worker = Worker {
                    view,
                    random: Random(number * 0x9e37_79b9),
                    watchdog,
                    held: Vec::new(),
                    done: 0,
                };
                while !stop.load(Ordering::Relaxed) {
                    worker.step();
                }
                for ino in worker.held {
                    view.forget(ino, 1);
                }
                watchdog.at("the end");
                worker.done
            }));
        }
        // A reader that walks all the time: what it finds must be whole, or gone meanwhile.
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                watchdog.at("walking");
                walk(&view, Ino::ROOT, 0);
            }
            watchdog.at("the end");
        });
        let mut hashes: Vec<(SnapshotId, u64)> = Vec::new();
        let started = Instant::now();
        let mut random = Random(7);
        while started.elapsed() < run_time() {
            watchdog.at("snapshot");
            let id = store.snapshot("w", &SnapshotOptions::default()).unwrap().id;
            hashes.push((id.clone(), snapshot_hash(&store, &id)));
            match random.below(8) {
                0 => {
                    watchdog.at("rollback");
                    let at = usize::try_from(random.below(hashes.len() as u64)).unwrap();
                    let report = store.rollback("w", hashes[at].0.as_str()).unwrap();
                    let hash = snapshot_hash(&store, &report.kept);
                    hashes.push((report.kept, hash));
                }
                1 => {
                    watchdog.at("fork");
                    let fork = name(&format!("f{}", hashes.len()));
                    let source = ForkSource::Workspace("w".into());
                    store.fork(&source, &[fork]).unwrap();
                }
                2 => {
                    watchdog.at("check");
                    assert_sound(&store);
                }
                _ => std::thread::sleep(Duration::from_millis(random.below(20))),
            }
        }
        stop.store(true, Ordering::Relaxed);
        let done: u64 = workers.into_iter().map(|w| w.join().unwrap()).sum();
        println!("{done} operations, {} snapshots", hashes.len());
        assert!(done > 1000, "{done} operations only");
        hashes
    });
    watchdog.at("checking");
    assert_sound(&store);
    for (id, hash) in &hashes {
        assert_eq!(snapshot_hash(&store, id), *hash, "snapshot {id} changed");
    }
    store.close_view(&view);
    drop(view);
    assert_sound(&store);
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_sound(&store);
    for (id, hash) in &hashes {
        assert_eq!(snapshot_hash(&store, id), *hash, "snapshot {id} changed");
    }
}

fn walk(view: &View, directory: Ino, depth: u32) {
    let mut found = Vec::new();
    let listed = view.readdir(directory, 0, false, &mut |entry| {
        found.push((entry.name.to_vec(), entry.ino, entry.kind, entry.cookie));
        true
    });
    if let Err(error) = listed {
        return Worker::expected(&error);
    }
    // A name may come twice, if it was removed and made again meanwhile; a place may not.
    assert!(found.windows(2).all(|pair| pair[0].3 < pair[1].3));
    for (name, ino, kind, _) in &found {
        if name == b"." || name == b".." {
            continue;
        }
        match view.getattr(*ino) {
            Ok(attr) => assert_eq!(attr.kind, *kind),
            Err(error) => Worker::expected(&error),
        }
        if *kind == FileKind::Directory && depth < 8 {
            walk(view, *ino, depth + 1);
        }
    }
}

/// What a snapshot holds of the writers' files: how many numbers each has, in order and whole.
fn counted(view: &View, files: &[Ino]) -> Vec<u64> {
    let count = |&file: &Ino| {
        let size = view.getattr(file).unwrap().size;
        assert_eq!(size % 8, 0, "half a write");
        let mut bytes = Vec::new();
        view.read(file, 0, usize::try_from(size).unwrap(), &mut bytes)
            .unwrap();
        for (number, chunk) in (1_u64..).zip(bytes.chunks_exact(8)) {
            assert_eq!(chunk, number.to_le_bytes(), "number {number}");
        }
        size / 8
    };
    files.iter().map(count).collect()
}

#[test]
fn a_snapshot_is_a_cut_through_what_eight_writers_do() {
    let watchdog = Watchdog::start("cut");
    let dir = tempfile::tempdir().unwrap();
    let store = open_store(&dir.path().join("s"));
    let view = store.open_live("w").unwrap();
    let files: Vec<Ino> = (0..THREADS)
        .map(|n| make(&view, Ino::ROOT, &n.to_string(), FileKind::File))
        .collect();
    let published: Vec<AtomicU64> = (0..THREADS).map(|_| AtomicU64::new(0)).collect();
    let stop = AtomicBool::new(false);
    let mut snapshots = 0;
    std::thread::scope(|scope| {
        for (file, published) in files.iter().zip(&published) {
            let (view, stop, watchdog) = (&view, &stop, &watchdog);
            scope.spawn(move || {
                let mut number = 0_u64;
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    watchdog.at("append");
                    append(view, *file, &number.to_le_bytes());
                    published.store(number, Ordering::SeqCst);
                }
            });
        }
        let read = || -> Vec<u64> {
            let numbers = published.iter();
            numbers
                .map(|number| number.load(Ordering::SeqCst))
                .collect()
        };
        let started = Instant::now();
        while started.elapsed() < run_time() {
            watchdog.at("snapshot");
            let before = read();
            let id = store.snapshot("w", &SnapshotOptions::default()).unwrap().id;
            let after = read();
            let frozen = store.open_frozen(&id).unwrap();
            let held = counted(&frozen, &files);
            for writer in 0..THREADS {
                let (low, high) = (before[writer], after[writer] + 1);
                assert!(
                    (low..=high).contains(&held[writer]),
                    "writer {writer}: {low} were acknowledged before, {high} begun at most, the \
                     snapshot has {}",
                    held[writer]
                );
            }
            snapshots += 1;
        }
        stop.store(true, Ordering::Relaxed);
    });
    println!("{snapshots} snapshots");
    assert!(snapshots > 5);
    assert_eq!(
        counted(&view, &files),
        published
            .iter()
            .map(|n| n.load(Ordering::SeqCst))
            .collect::<Vec<_>>()
    );
    assert_sound(&store);
}

#[test]
fn no_snapshot_shows_a_later_file_without_the_earlier_write() {
    let watchdog = Watchdog::start("order");
    let dir = tempfile::tempdir().unwrap();
    let store = open_store(&dir.path().join("s"));
    let view = store.open_live("w").unwrap();
    let make_top = |name: &str, kind| make(&view, Ino::ROOT, name, kind);
    let pairs: Vec<(Ino, Ino)> = (0..THREADS)
        .map(|n| {
            let file = make_top(&format!("log{n}"), FileKind::File);
            (file, make_top(&format!("dir{n}"), FileKind::Directory))
        })
        .collect();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for &(log, directory) in &pairs {
            let (view, stop, watchdog) = (&view, &stop, &watchdog);
            scope.spawn(move || {
                let mut number = 0_u64;
                // Writes the number to one file, then makes a file of that name.
                while !stop.load(Ordering::Relaxed) {
                    number += 1;
                    watchdog.at("write");
                    write(view, log, 0, &number.to_le_bytes());
                    watchdog.at("make");
                    let made = make(view, directory, &number.to_string(), FileKind::File);
                    view.forget(made, 1);
                }
            });
        }
        let started = Instant::now();
        let mut hashes: Vec<SnapshotId> = Vec::new();
        while started.elapsed() < run_time() {
            watchdog.at("snapshot");
            let id = store.snapshot("w", &SnapshotOptions::default()).unwrap().id;
            let frozen = store.open_frozen(&id).unwrap();
            for &(log, directory) in &pairs {
                let mut bytes = Vec::new();
                frozen.read(log, 0, 8, &mut bytes).unwrap();
                let written = bytes.try_into().map_or(0, u64::from_le_bytes);
                let mut made = 0_u64;
                let listed = frozen.readdir(directory, 2, false, &mut |entry| {
                    let name = std::str::from_utf8(entry.name).unwrap();
                    made = made.max(name.parse().unwrap());
                    true
                });
                listed.unwrap();
                assert!(
                    made == written || made + 1 == written,
                    "{written} was written and {made} made"
                );
            }
            hashes.push(id);
        }
        stop.store(true, Ordering::Relaxed);
        assert!(hashes.len() > 5);
    });
    assert_sound(&store);
}
