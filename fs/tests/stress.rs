//! Many threads on one workspace: file operations, snapshots, rollbacks and reclaiming at once.
//!
//! What must hold: nothing waits for ever (a watchdog ends the process and says what each thread
//! was doing), the store is sound afterwards, a snapshot never changes, and a snapshot is a cut:
//! everything acknowledged before it was asked for is in it, nothing begun after it returned, and
//! nothing without what came before it.
//!
//! `FLOE_STRESS_SECONDS` makes the runs longer than the few seconds that they take.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{
    Caller, Dispatch, Errno, Fallocate, NewNode, OpError, OpenMode, RenameFlags, SetAttr, Write,
    XattrMode,
};
use floe_fs::id::{Ino, SnapshotId, WorkspaceName};
use floe_fs::{ForkSource, SnapshotOptions, Store, View};

const THREADS: usize = 8;
const CALLER: Caller = Caller { uid: 0, gid: 0 };
/// Longer than any run; a deadlock ends then.
const PATIENCE: Duration = Duration::from_secs(60);

fn run_time() -> Duration {
    let seconds = std::env::var("FLOE_STRESS_SECONDS").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

/// Ends the process when a test takes too long, after saying where each thread is.
struct Watchdog {
    done: Arc<AtomicBool>,
    places: Arc<Mutex<BTreeMap<String, &'static str>>>,
}

impl Watchdog {
    fn start(test: &'static str) -> Self {
        let watchdog = Self {
            done: Arc::new(AtomicBool::new(false)),
            places: Arc::default(),
        };
        let (done, places) = (watchdog.done.clone(), watchdog.places.clone());
        let limit = PATIENCE + 2 * run_time();
        std::thread::spawn(move || {
            let started = Instant::now();
            while !done.load(Ordering::Relaxed) {
                if started.elapsed() > limit {
                    eprintln!("{test} hangs; threads are in: {:#?}", places.lock());
                    std::process::abort();
                }
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        watchdog
    }

    /// The calling thread is about to do something.
    fn at(&self, place: &'static str) {
        let thread = std::thread::current();
        let name = format!("{:?} {}", thread.id(), thread.name().unwrap_or(""));
        self.places.lock().unwrap().insert(name, place);
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.done.store(true, Ordering::Relaxed);
    }
}

/// Small, quick, and the same for the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

fn name(text: &str) -> WorkspaceName {
    WorkspaceName::parse(text).unwrap()
}

fn open_store(dir: &Path) -> Arc<Store> {
    Store::init(dir).unwrap();
    let store = Store::open(dir).unwrap();
    store.create_workspace(&name("w")).unwrap();
    store
}

fn node(kind: FileKind) -> NewNode<'static> {
    NewNode {
        kind,
        perm: 0o755,
        umask: 0,
        rdev: 0,
        target: if kind == FileKind::Symlink {
            b"to"
        } else {
            b""
        },
    }
}

fn assert_sound(store: &Store) {
    let report = store.check().unwrap();
    let problems: Vec<_> = report.problems.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{}", problems.join("\n"));
}

/// Everything that can be seen below a directory. Two views that look alike hash alike.
fn hash_tree(view: &View, directory: Ino, hasher: &mut DefaultHasher) {
    let mut names = Vec::new();
    let listed = view.readdir(directory, 0, false, &mut |entry| {
        names.push((entry.name.to_vec(), entry.ino.0, entry.cookie));
        true
    });
    listed.unwrap();
    names.hash(hasher);
    for (name, ino, _) in names {
        let ino = Ino(ino);
        let attr = view.getattr(ino).unwrap();
        format!("{attr:?}").hash(hasher);
        for xattr in view.listxattr(ino).unwrap() {
            (view.getxattr(ino, &xattr).unwrap(), xattr).hash(hasher);
        }
        match attr.kind {
            FileKind::File => {
                let mut bytes = Vec::new();
                let size = usize::try_from(attr.size).unwrap();
                view.read(ino, 0, size, &mut bytes).unwrap();
                assert_eq!(bytes.len(), size);
                bytes.hash(hasher);
            }
            FileKind::Symlink => view.readlink(ino).unwrap().hash(hasher),
            FileKind::Directory if name != b"." && name != b".." => hash_tree(view, ino, hasher),
            _ => {}
        }
    }
}

fn snapshot_hash(store: &Arc<Store>, id: &SnapshotId) -> u64 {
    let view = store.open_frozen(id).unwrap();
    let mut hasher = DefaultHasher::new();
    hash_tree(&view, Ino::ROOT, &mut hasher);
    hasher.finish()
}

/// One of the threads that do file operations, all on the same few paths.
struct Worker<'a> {
    view: &'a View,
    random: Random,
    watchdog: &'a Watchdog,
    /// References to return, as a kernel would hold them.
    held: Vec<Ino>,
    done: u64,
}

impl Worker<'_> {
    fn name(&mut self) -> [u8; 1] {
        [b'a' + u8::try_from(self.random.below(6)).unwrap()]
    }

    fn held(&mut self) -> Ino {
        match self.held.len() as u64 {
            0 => Ino::ROOT,
            count => self.held[usize::try_from(self.random.below(count)).unwrap()],
        }
    }

    /// A directory: mostly one that exists, sometimes one that was removed.
    fn directory(&mut self) -> Ino {
        let mut at = Ino::ROOT;
        for _ in 0..self.random.below(3) {
            let name = self.name();
            match self.view.lookup(at, &name) {
                Ok(Some(entry)) => {
                    self.held.push(entry.ino);
                    if entry.attr.kind == FileKind::Directory {
                        at = entry.ino;
                    }
                }
                Ok(None) => {}
                Err(error) => Self::expected(&error),
            }
        }
        if self.random.below(8) == 0 {
            self.held()
        } else {
            at
        }
    }

    /// Only what a race explains: never an error of the store itself.
    fn expected(error: &OpError) {
        let Errno(code) = Errno::from(error);
        let fine = [
            libc::ENOENT,
            libc::EEXIST,
            libc::ENOTDIR,
            libc::EISDIR,
            libc::ENOTEMPTY,
            libc::EINVAL,
            libc::EPERM,
            libc::ESTALE,
            libc::ENODATA,
            libc::ENXIO,
        ];
        assert!(fine.contains(&code), "{error:?}");
    }

    fn step(&mut self) {
        let (view, choice) = (self.view, self.random.below(100));
        let (parent, other) = (self.directory(), self.directory());
        let (from, to) = (self.name(), self.name());
        let file = self.held();
        let offset = [0, 4096, 8190, 65_530, 262_144][usize::try_from(choice % 5).unwrap()];
        let kinds = [
            FileKind::File,
            FileKind::File,
            FileKind::Directory,
            FileKind::Symlink,
        ];
        let mut made = None;
        let result = match choice {
            0..20 => {
                self.watchdog.at("make");
                let kind = kinds[usize::try_from(self.random.below(4)).unwrap()];
                view.make(CALLER, parent, &from, node(kind))
                    .map(|entry| made = Some(entry.ino))
            }
            20..30 => {
                self.watchdog.at("unlink");
                view.unlink(parent, &from)
            }
            30..35 => {
                self.watchdog.at("rmdir");
                view.rmdir(parent, &from)
            }
            35..50 => {
                self.watchdog.at("rename");
                let flags = RenameFlags {
                    no_replace: choice == 35,
                    exchange: (36..42).contains(&choice),
                    whiteout: choice == 42,
                };
                view.rename((parent, &from), (other, &to), flags)
            }
            50..55 => {
                self.watchdog.at("link");
                view.link(file, parent, &from)
                    .map(|entry| made = Some(entry.ino))
            }
            55..70 => {
                self.watchdog.at("write");
                let data = vec![u8::try_from(choice).unwrap(); 5000];
                let write = Write {
                    offset,
                    data: &data,
                    append: choice < 58,
                    kill_set_id: choice == 69,
                };
                view.write(file, write)
            }
            70..75 => {
                self.watchdog.at("truncate");
                let set = SetAttr {
                    size: Some(offset),
                    ..SetAttr::default()
                };
                view.setattr(CALLER, file, set).map(drop)
            }
            75..78 => {
                self.watchdog.at("fallocate");
                view.fallocate(CALLER, file, Fallocate::PunchHole, offset, 70_000)
            }
            78..80 => {
                self.watchdog.at("copy_range");
                let target = self.held();
                view.copy_range(CALLER, (file, 0), (target, offset), 10_000)
                    .map(drop)
            }
            80..84 => {
                self.watchdog.at("setxattr");
                view.setxattr(CALLER, file, b"user.x", &from, XattrMode::Set)
            }
            84..86 => {
                self.watchdog.at("removexattr");
                view.removexattr(CALLER, file, b"user.x")
            }
            86..92 => {
                self.watchdog.at("readdir");
                let mut taken = Vec::new();
                let listed = view.readdir(parent, 0, true, &mut |entry| {
                    if entry.attr.is_some() && !matches!(entry.name, b"." | b"..") {
                        taken.push(entry.ino);
                    }
                    true
                });
                self.held.extend(taken);
                listed
            }
            92..96 => {
                self.watchdog.at("open");
                let mode = OpenMode {
                    write: choice % 2 == 0,
                };
                view.open(file, mode).map(|()| view.release(file, mode))
            }
            _ => {
                self.watchdog.at("read");
                view.read(file, offset, 70_000, &mut Vec::new())
            }
        };
        self.held.extend(made);
        if let Err(error) = result {
            Self::expected(&error);
        }
        self.watchdog.at("forget");
        while self.held.len() > 24 {
            let at = usize::try_from(self.random.below(self.held.len() as u64)).unwrap();
            let ino = self.held.swap_remove(at);
            view.forget(ino, 1);
        }
        self.done += 1;
    }
}

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
        .map(|n| {
            let name = format!("{n}");
            let made = view.make(CALLER, Ino::ROOT, name.as_bytes(), node(FileKind::File));
            made.unwrap().ino
        })
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
                    let write = Write {
                        offset: 0,
                        data: &number.to_le_bytes(),
                        append: true,
                        kill_set_id: false,
                    };
                    view.write(*file, write).unwrap();
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
    let make = |name: &str, kind| {
        let made = view.make(CALLER, Ino::ROOT, name.as_bytes(), node(kind));
        made.unwrap().ino
    };
    let pairs: Vec<(Ino, Ino)> = (0..THREADS)
        .map(|n| {
            let file = make(&format!("log{n}"), FileKind::File);
            (file, make(&format!("dir{n}"), FileKind::Directory))
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
                    let write = Write {
                        offset: 0,
                        data: &number.to_le_bytes(),
                        append: false,
                        kill_set_id: false,
                    };
                    view.write(log, write).unwrap();
                    watchdog.at("make");
                    let name = number.to_string();
                    let made = view.make(CALLER, directory, name.as_bytes(), node(FileKind::File));
                    view.forget(made.unwrap().ino, 1);
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
