//! What the stress tests share: a watchdog, random numbers, and hashes of whole views.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use floe_fs::attr::FileKind;
use floe_fs::dispatch::Dispatch;
use floe_fs::id::{Ino, SnapshotId};
use floe_fs::{Store, View};

use crate::common::{name, new_store};

pub const THREADS: usize = 8;
/// Longer than any run; a deadlock ends then.
pub const PATIENCE: Duration = Duration::from_secs(60);

pub fn run_time() -> Duration {
    let seconds = std::env::var("FLOE_STRESS_SECONDS").ok();
    let seconds = seconds.and_then(|seconds| seconds.parse().ok());
    Duration::from_secs(seconds.unwrap_or(4))
}

/// Ends the process when a test takes too long, after saying where each thread is.
pub struct Watchdog {
    done: Arc<AtomicBool>,
    places: Arc<Mutex<BTreeMap<String, &'static str>>>,
}

impl Watchdog {
    pub fn start(test: &'static str) -> Self {
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
    pub fn at(&self, place: &'static str) {
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
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

pub fn open_store(dir: &Path) -> Arc<Store> {
    let store = new_store(dir);
    store.create_workspace(&name("w")).unwrap();
    store
}

pub fn assert_sound(store: &Store) {
    let report = store.check().unwrap();
    let problems: Vec<_> = report.problems.iter().map(ToString::to_string).collect();
    assert!(report.is_clean(), "{}", problems.join("\n"));
}

/// Everything that can be seen below a directory. Two views that look alike hash alike.
pub fn hash_tree(view: &View, directory: Ino, hasher: &mut DefaultHasher) {
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

pub fn snapshot_hash(store: &Arc<Store>, id: &SnapshotId) -> u64 {
    let view = store.open_frozen(id).unwrap();
    let mut hasher = DefaultHasher::new();
    hash_tree(&view, Ino::ROOT, &mut hasher);
    hasher.finish()
}
