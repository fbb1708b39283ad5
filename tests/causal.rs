//! The cut that a snapshot makes through concurrent work is causal: with eight writers, what
//! returned before the snapshot was asked for is in it, what began after it returned is not, and
//! nothing is in it without all that happened before.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use floe_harness::python::{Python, path};
use floe_harness::{Load, ScanOptions, TestStore, Tree, Watchdog, long_run};

const WRITERS: usize = 8;
/// Bytes of one record.
const RECORD: usize = 8;

fn snapshots() -> usize {
    if long_run() { 300 } else { 40 }
}

/// Numbers of what was begun and what has returned, one pair a writer.
#[derive(Default)]
struct Progress {
    begun: AtomicU64,
    returned: AtomicU64,
}

fn all(progress: &[Progress], which: impl Fn(&Progress) -> &AtomicU64) -> Vec<u64> {
    let load = |one: &Progress| which(one).load(Ordering::SeqCst);
    progress.iter().map(load).collect()
}

struct Cut {
    id: String,
    at_least: Vec<u64>,
    at_most: Vec<u64>,
}

/// Takes a snapshot, with what must and what may be in it.
fn cut(store: &TestStore, progress: &[Progress]) -> Cut {
    let at_least = all(progress, |one| &one.returned);
    let id = store.snapshot("w");
    let at_most = all(progress, |one| &one.begun);
    Cut {
        id,
        at_least,
        at_most,
    }
}

fn append(file: &Path, number: u64) {
    let mut file = OpenOptions::new()
        .append(true)
        .create(true)
        .open(file)
        .unwrap();
    file.write_all(&number.to_le_bytes()).unwrap();
}

/// All records below a directory, in order of number.
fn records(dir: &Path) -> Vec<u64> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        assert_eq!(
            bytes.len() % RECORD,
            0,
            "half a record in {}",
            dir.display()
        );
        let numbers = bytes.chunks_exact(RECORD);
        found.extend(numbers.map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap())));
    }
    found.sort_unstable();
    found
}

/// How many there are, of which none may be missing.
#[track_caller]
fn count_without_gap(dir: &Path) -> u64 {
    let found = records(dir);
    for (expected, number) in (0..).zip(&found) {
        assert_eq!(*number, expected, "a gap in {}", dir.display());
    }
    found.len() as u64
}

fn mounted(dirs: usize) -> (TestStore, PathBuf) {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    for number in 0..dirs {
        fs::create_dir(live.join(number.to_string())).unwrap();
    }
    (store, live)
}

/// Each writer appends its numbers to seven files in turn, some of them synced: whatever the cut,
/// the numbers in it have no gap.
#[test]
fn each_of_eight_writers_is_cut_between_two_of_its_calls() {
    let (store, live) = mounted(WRITERS);
    let progress: Arc<Vec<Progress>> =
        Arc::new((0..WRITERS).map(|_| Progress::default()).collect());
    let (shared, root) = (progress.clone(), live.clone());
    let load = Load::start(WRITERS, move |writer| {
        let number = shared[writer].begun.fetch_add(1, Ordering::SeqCst);
        let file = root.join(format!("{writer}/{}", number % 7));
        append(&file, number);
        if number.is_multiple_of(31) {
            fs::File::open(&file).unwrap().sync_all().unwrap();
        }
        shared[writer].returned.fetch_add(1, Ordering::SeqCst);
    });
    let mut cuts = Vec::new();
    while cuts.len() < snapshots() {
        cuts.push(cut(&store, &progress));
    }
    assert!(load.stop() > 0);
    for cut in cuts.iter().step_by(3) {
        let frozen = store.mount(&cut.id);
        for writer in 0..WRITERS {
            let found = count_without_gap(&frozen.join(writer.to_string()));
            let range = cut.at_least[writer]..=cut.at_most[writer];
            assert!(
                range.contains(&found),
                "writer {writer}: {found} not in {range:?}"
            );
        }
        store.umount(&frozen);
    }
    let last = all(&progress, |one| &one.returned);
    for (writer, count) in last.into_iter().enumerate() {
        assert_eq!(count_without_gap(&live.join(writer.to_string())), count);
    }
}

/// The writers take turns, so that all calls are in one order, across threads and files.
#[test]
fn calls_of_different_writers_that_follow_each_other_are_never_seen_out_of_order() {
    let (store, live) = mounted(1);
    let turn = Arc::new(Mutex::new(0));
    let progress = Arc::new([Progress::default()]);
    let (shared, root, turns) = (progress.clone(), live.join("0"), turn.clone());
    let load = Load::start(WRITERS, move |writer| {
        let mut next = turns.lock().unwrap();
        shared[0].begun.store(*next + 1, Ordering::SeqCst);
        append(&root.join(writer.to_string()), *next);
        *next += 1;
        shared[0].returned.store(*next, Ordering::SeqCst);
    });
    let cuts: Vec<_> = (0..snapshots())
        .map(|_| cut(&store, &progress[..]))
        .collect();
    assert!(load.stop() > 0);
    for cut in cuts.iter().step_by(3) {
        let frozen = store.mount(&cut.id);
        let found = count_without_gap(&frozen.join("0"));
        let range = cut.at_least[0]..=cut.at_most[0];
        assert!(range.contains(&found), "{found} not in {range:?}");
        store.umount(&frozen);
    }
}

/// Pages that a writer changed through a mapping before the snapshot was asked for are in it.
#[test]
fn stores_to_shared_mappings_are_on_the_right_side_of_the_cut() {
    let (store, live) = mounted(4);
    let _watchdog = Watchdog::start(store.daemon().unwrap(), Duration::from_secs(100));
    let progress: Arc<Vec<Progress>> = Arc::new((0..4).map(|_| Progress::default()).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let offsets = [0, 70_000, 199_992];
    let writers: Vec<_> = (0..4)
        .map(|writer| {
            let file = live.join(format!("{writer}/mapped"));
            let (progress, stop) = (progress.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut python = Python::start();
                python.ok(&format!(
                    "f = os.open({}, os.O_RDWR | os.O_CREAT); os.ftruncate(f, 200000)
m = mmap.mmap(f, 200000)
def put(n):
    for at in {offsets:?}: m[at:at + 8] = struct.pack('<Q', n)",
                    path(&file)
                ));
                while !stop.load(Ordering::SeqCst) {
                    let number = progress[writer].begun.fetch_add(1, Ordering::SeqCst) + 1;
                    python.ok(&format!("put({number})"));
                    progress[writer].returned.store(number, Ordering::SeqCst);
                    // Without a pause four of these leave two processors to nobody else: the kernel's own
                    // threads (Linux 6.18) were seen not to run for a minute.
                    std::thread::sleep(Duration::from_micros(500));
                }
            })
        })
        .collect();
    while all(&progress, |one| &one.returned).contains(&0) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let cuts: Vec<_> = (0..snapshots()).map(|_| cut(&store, &progress)).collect();
    stop.store(true, Ordering::SeqCst);
    for writer in writers {
        writer.join().unwrap();
    }
    for cut in cuts.iter().step_by(3) {
        let frozen = store.mount(&cut.id);
        for writer in 0..4 {
            let bytes = fs::read(frozen.join(format!("{writer}/mapped"))).unwrap();
            let range = cut.at_least[writer]..=cut.at_most[writer];
            for at in offsets {
                let found = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
                assert!(
                    range.contains(&found),
                    "writer {writer} at {at}: {found} not in {range:?}"
                );
            }
        }
        store.umount(&frozen);
    }
}

/// Readers hold files open all the while. A read may see the write that runs beside it in part, as
/// on any local file system, but nothing that was never written; the snapshots are exact.
#[test]
fn fifty_readers_neither_delay_a_cut_for_ever_nor_see_what_was_never_written() {
    let (store, live) = mounted(0);
    let file = live.join("record");
    let record = |number: u64| number.to_le_bytes().repeat(512);
    fs::write(&file, record(0)).unwrap();
    let readers = {
        let file = file.clone();
        Load::start(50, move |_| {
            let bytes = fs::read(&file).unwrap();
            assert_eq!(bytes.len(), 4096);
            for part in bytes.chunks_exact(RECORD) {
                let number = u64::from_le_bytes(part.try_into().unwrap());
                assert!(number <= 20, "{number} was never written");
            }
        })
    };
    let writer = OpenOptions::new().write(true).open(&file).unwrap();
    let mut taken = Vec::new();
    for number in 1..=20 {
        std::os::unix::fs::FileExt::write_all_at(&writer, &record(number), 0).unwrap();
        taken.push((number, store.snapshot("w")));
    }
    assert!(readers.stop() >= 50);
    for (number, id) in taken {
        let frozen = store.mount(&id);
        assert_eq!(fs::read(frozen.join("record")).unwrap(), record(number));
    }
}

/// Snapshots taken back to back under load are each whole and each unchanged at the end.
#[test]
fn snapshots_back_to_back_under_load_keep_their_hashes() {
    let (store, live) = mounted(0);
    let load = Load::writers(&live, 4);
    let taken: Vec<_> = (0..snapshots()).map(|_| store.snapshot("w")).collect();
    let digest = |id: &String| {
        let frozen = store.mount(id);
        let digest = Tree::scan(&frozen, ScanOptions::ALL).digest();
        store.umount(&frozen);
        digest
    };
    let sample: Vec<_> = taken.iter().step_by(7).collect();
    let first: Vec<_> = sample.iter().map(|id| digest(id)).collect();
    assert!(load.stop() > 0);
    store.stop_daemon();
    let last: Vec<_> = sample.iter().map(|id| digest(id)).collect();
    assert_eq!(first, last);
}
