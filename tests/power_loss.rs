//! The power fails at random moments: what was fsynced or snapshotted durably before is there, and
//! the store opens by itself.
//!
//! The store lies on ext4 on a disk that records every write and flush ([`Recorder`]). Each moment
//! is tried on an image of what the disk may have held then: everything before its last flush, and
//! a random part of what was written after it.
//!
//! `FLOE_TEST_SEED` repeats a run; `FLOE_TEST_LONG=1` tries ten times as many moments.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_harness::random::Random;
use floe_harness::{Recorder, ScanOptions, TestStore, Tree, command, long_run};
use rustix::mount::{UnmountFlags, unmount};

const DISK_BYTES: usize = 96 << 20;
const STEPS: u64 = 60;

/// What must be there from a moment on.
#[derive(Debug)]
enum Fact {
    /// A file that was fsynced and not changed afterwards.
    File(&'static str, u64, Vec<u8>),
    /// The file `state` was replaced by a rename and the directory fsynced: it holds this number
    /// or a later one.
    AtLeast(u64),
    /// A durable snapshot with what it shows.
    Snapshot(String, blake3::Hash),
}

/// Mounts an image file; unmounted when dropped.
struct Loop(PathBuf);

impl Loop {
    fn mount(image: &Path, dir: &Path) -> Self {
        let mut mount = Command::new("mount");
        mount.args(["-o", "loop"]).arg(image).arg(dir);
        command::run(&mut mount, Duration::from_secs(60)).expect_code(0);
        Self(dir.to_path_buf())
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if let Err(error) = unmount(&self.0, UnmountFlags::empty()) {
            let detached = unmount(&self.0, UnmountFlags::DETACH);
            let text = format!("unmounting {}: {error}, {detached:?}", self.0.display());
            assert!(std::thread::panicking(), "{text}");
            eprintln!("{text}");
        }
    }
}

fn sync_dir(dir: &Path) {
    File::open(dir).unwrap().sync_all().unwrap();
}

/// One step of work, and what it makes sure of.
fn step(store: &TestStore, live: &Path, number: u64, random: &mut Random) -> Option<Fact> {
    // Things that nobody syncs, so that there is something to lose.
    let loose = live.join(format!("loose{}", random.below(8)));
    let len = 1 + random.index(120_000);
    fs::write(&loose, random.bytes(len)).unwrap();
    match number % 6 {
        0 | 3 => {
            let len = [300, 9_000, 150_000, 400_000][random.index(4)];
            let name = if number.is_multiple_of(6) {
                "new"
            } else {
                "grown"
            };
            let data = random.bytes(len);
            let mut file = File::create_new(live.join(format!("{name}{number}"))).unwrap();
            if name == "new" {
                file.write_all(&data).unwrap();
            } else {
                // Over a snapshot, so that the second half copies up.
                file.write_all_at(&data, 0).unwrap();
                let _ = store.snapshot("w");
                file.write_all_at(&data[..len / 2], len as u64 / 3).unwrap();
            }
            if random.one_in(2) {
                file.sync_all().unwrap();
            } else {
                file.sync_data().unwrap();
            }
            let now = fs::read(live.join(format!("{name}{number}"))).unwrap();
            Some(Fact::File(name, number, now))
        }
        1 => {
            let draft = live.join("draft");
            let mut file = File::create(&draft).unwrap();
            file.write_all(number.to_string().as_bytes()).unwrap();
            file.sync_all().unwrap();
            fs::rename(&draft, live.join("state")).unwrap();
            sync_dir(live);
            Some(Fact::AtLeast(number))
        }
        4 => {
            let id = store.ok(["snapshot", "w", "--durable"]);
            let frozen = store.mount(&id);
            let digest = Tree::scan(&frozen, ScanOptions::ALL).digest();
            store.umount(&frozen);
            Some(Fact::Snapshot(id, digest))
        }
        2 => {
            // One that is safe becomes the same file as one that nobody synced.
            let len = [9_000, 150_000][random.index(2)];
            let data = random.bytes(len);
            let mut file = File::create_new(live.join(format!("safe{number}"))).unwrap();
            file.write_all(&data).unwrap();
            file.sync_all().unwrap();
            fs::write(live.join(format!("equal{number}")), &data).unwrap();
            let _ = store.snapshot("w");
            store.ok(["dedup"]);
            Some(Fact::File("safe", number, data))
        }
        _ => {
            let mut options = OpenOptions::new();
            let mut log = options
                .append(true)
                .create(true)
                .open(live.join("log"))
                .unwrap();
            log.write_all(&random.bytes(5_000)).unwrap();
            log.sync_data().unwrap();
            None
        }
    }
}

/// Writes over the beginning of all files with such a name, where they are.
fn overwrite(live: &Path, prefix: &str) {
    for entry in fs::read_dir(live).unwrap() {
        let entry = entry.unwrap();
        if entry.file_name().to_str().unwrap().starts_with(prefix) {
            let file = OpenOptions::new().write(true).open(entry.path()).unwrap();
            file.write_all_at(&[0xEE; 5_000], 0).unwrap();
        }
    }
}

fn check(store: &TestStore, facts: &[&Fact]) {
    // Opening needs no help.
    store.ok(["ws", "list"]);
    store.check();
    let live = store.mount("w");
    // What is one file with another must not take over what is written to that.
    overwrite(&live, "equal");
    let mut state = 0;
    for fact in facts {
        match fact {
            Fact::File(name, number, expected) => {
                let path = live.join(format!("{name}{number}"));
                let found = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
                assert!(found == *expected, "{} differs", path.display());
            }
            Fact::AtLeast(number) => state = state.max(*number),
            Fact::Snapshot(id, digest) => {
                let frozen = store.mount(id);
                let found = Tree::scan(&frozen, ScanOptions::ALL).digest();
                assert_eq!(found, *digest, "snapshot {id}");
                store.umount(&frozen);
            }
        }
    }
    if state > 0 {
        let found = fs::read_to_string(live.join("state")).unwrap();
        assert!(
            found.parse::<u64>().unwrap() >= state,
            "{found:?}, not {state}"
        );
    }
    overwrite(&live, "safe");
    for fact in facts {
        if let Fact::Snapshot(id, digest) = fact {
            let frozen = store.mount(id);
            let found = Tree::scan(&frozen, ScanOptions::ALL).digest();
            assert_eq!(found, *digest, "snapshot {id} was written to");
            store.umount(&frozen);
        }
    }
    // What survived can be used.
    fs::write(live.join("after"), vec![1; 100_000]).unwrap();
    store.snapshot("w");
    store.umount(&live);
}

#[test]
fn what_was_synced_survives_a_power_failure_at_any_moment() {
    let moments = if long_run() { 250 } else { 25 };
    let seed = Random::seed_from_env(7);
    let mut random = Random::new(seed);
    let parent = std::env::var_os("FLOE_TEST_DIR").map_or_else(std::env::temp_dir, Into::into);
    let place = tempfile::tempdir_in::<PathBuf>(parent).unwrap();
    let dir = |name: &str| {
        let dir = place.path().join(name);
        fs::create_dir(&dir).unwrap();
        dir
    };
    let recorder = Recorder::start(&dir("recorder"), DISK_BYTES);
    let mut make = Command::new("mkfs.ext4");
    make.args(["-q", "-E", "lazy_itable_init=0,nodiscard"])
        .arg(recorder.image());
    command::run(&mut make, Duration::from_secs(60)).expect_code(0);

    let mut facts: Vec<(usize, Fact)> = Vec::new();
    // Moments after this one belong to the orderly end.
    let last;
    let base = {
        let disk = Loop::mount(&recorder.image(), &dir("disk"));
        let store = TestStore::new_in(&disk.0);
        store.ok(["ws", "create", "w"]);
        let live = store.mount("w");
        for number in 0..STEPS {
            if let Some(fact) = step(&store, &live, number, &mut random) {
                facts.push((recorder.now(), fact));
            }
        }
        last = recorder.now();
        store.base().strip_prefix(&disk.0).unwrap().to_path_buf()
    };
    let first = facts[0].0;
    let (image, disk) = (place.path().join("image"), dir("after"));
    for number in 0..moments {
        let moment = first + random.index(last - first);
        eprintln!("FLOE_TEST_SEED={seed}, power failure {number} at {moment} of {last}");
        fs::write(&image, recorder.after_power_loss(moment, &mut random)).unwrap();
        let mounted = Loop::mount(&image, &disk);
        let known = facts.iter().filter(|(since, _)| *since <= moment);
        let known: Vec<&Fact> = known.map(|(_, fact)| fact).collect();
        check(&TestStore::adopt(&mounted.0.join(&base)), &known);
    }
}
