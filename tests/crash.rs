//! SIGKILL of the daemon at random moments under mixed load. Each worker keeps in this process what
//! was acknowledged; afterwards all of it is there, by the next command and nothing else.

mod crash {
    pub mod control;
    pub mod work;
}

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use crash::control::Control;
use crash::work::{Blocks, Files, Mapped, Names, Replace, Work};
use floe_harness::command::run;
use floe_harness::process::{self, Handle};
use floe_harness::python::{Python, path};
use floe_harness::random::Random;
use floe_harness::{ScanOptions, TestStore, Tree, binary, long_run, mounts};

fn workers(live: &Path, seed: u64) -> Vec<Box<dyn Work>> {
    let dir = |name: &str| {
        let dir = live.join(name);
        fs::create_dir(&dir).unwrap();
        dir
    };
    vec![
        Box::new(Files::new(&dir("files1"))),
        Box::new(Files::new(&dir("files2"))),
        Box::new(Replace::new(&dir("replace"), false)),
        Box::new(Replace::new(&dir("synced"), true)),
        Box::new(Blocks::new(&live.join("blocks"), seed)),
        Box::new(Names::new(&dir("names"))),
        Box::new(Mapped::new(&live.join("mapped"))),
    ]
}

/// Work as far as it came, and what stopped it.
type Outcome = (Box<dyn Work>, Option<io::Error>);

/// Runs the work on a thread each until the daemon dies or `stop` is set, and gives it back.
struct Running {
    stop: Arc<AtomicBool>,
    threads: Vec<std::thread::JoinHandle<Outcome>>,
}

impl Running {
    fn start(work: Vec<Box<dyn Work>>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let threads = work.into_iter().map(|mut work| {
            let stop = stop.clone();
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    if let Err(error) = work.step() {
                        return (work, Some(error));
                    }
                }
                (work, None)
            })
        });
        let threads = threads.collect();
        Self { stop, threads }
    }

    /// Lets everybody end after the step at work. At the moment of the kill: what begins after it could
    /// start the next daemon, or meet its mount half made.
    fn stop(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    /// The work, each with how it ended: whoever was in a call when the daemon died got an error.
    fn end(self) -> Vec<Box<dyn Work>> {
        self.stop();
        let mut all = Vec::new();
        for thread in self.threads {
            let (work, error) = thread.join().unwrap();
            if let Some(error) = error {
                let gone = [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO];
                assert!(
                    error
                        .raw_os_error()
                        .is_some_and(|number| gone.contains(&number)),
                    "{error}"
                );
            }
            all.push(work);
        }
        all
    }
}

#[track_caller]
fn check(work: &mut [Box<dyn Work>], root: &Path, whole: bool, round: usize) {
    let wrong: Vec<_> = work
        .iter_mut()
        .filter_map(|work| work.check(root, whole).err())
        .collect();
    assert!(wrong.is_empty(), "after kill {round}: {wrong:#?}");
}

#[track_caller]
fn dead_mount_says_so(live: &Path) {
    // The kernel opens a directory by itself; listing it asks the daemon.
    let listed =
        fs::read_dir(live).and_then(|entries| entries.map(|e| e.map(drop)).try_for_each(|e| e));
    let error = io::Result::<()>::unwrap_err(listed);
    assert_eq!(error.raw_os_error(), Some(libc::ENOTCONN), "{error}");
    let ls = run(
        Command::new("ls").env("LC_ALL", "C").arg(live),
        Duration::from_secs(10),
    );
    assert!(!ls.timed_out && ls.code != Some(0), "{ls}");
    assert!(ls.errors().contains("not connected"), "{ls}");
}

/// A daemon that puts a store in order after a kill is killed as well.
fn kill_while_it_starts(store: &TestStore, pause: Duration) -> bool {
    let mut killed = false;
    let mut command = store.command();
    let mut child = command.args(["daemon", "start"]).spawn().unwrap();
    std::thread::sleep(pause);
    for process in process::of_store(binary::floe(), &store.store_dir()) {
        let cmdline = fs::read(format!("/proc/{}/cmdline", process.pid())).unwrap_or_default();
        let mut arguments = cmdline.split(|&byte| byte == 0);
        if arguments.any(|argument| argument == b"--detached") {
            process.kill();
            assert!(process.wait_for_end(Duration::from_secs(30)));
            killed = true;
        }
    }
    child.wait().unwrap();
    killed
}

/// Several stores: what is checked after each kill grows with the kills. Two at a time, as most of a
/// round is waiting.
#[test]
fn nothing_acknowledged_is_lost_when_the_daemon_is_killed_under_load() {
    // README.md promises 1,000 kills, which the long run makes.
    let campaigns: usize = if long_run() { 20 } else { 4 };
    let seeds = Random::seed_from_env(1)..;
    let next = Mutex::new(seeds.take(campaigns));
    let work = || {
        while let Some(seed) = { next.lock().unwrap().next() } {
            eprintln!("FLOE_TEST_SEED={seed}");
            kill_under_load(50, seed);
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        work();
    });
}

fn kill_under_load(kills: usize, seed: u64) {
    let started = Instant::now();
    let random = &mut Random::new(seed);
    let store = Arc::new(TestStore::new());
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    let mut work = workers(&live, seed);
    let first = store.snapshot("w");
    let frozen = store.mount(&first);
    let digest = |dir: &Path| Tree::scan(dir, ScanOptions::ALL).digest();
    let digest_of = |id: &str| {
        let dir = store.mount(id);
        let found = digest(&dir);
        store.umount(&dir);
        found
    };
    let mut kept = vec![(first, digest(&frozen))];
    work.push(Box::new(Control::new(&store, seed)));
    let mut killed_early = 0;
    for round in 0..kills {
        // In some rounds nothing starts the daemon again but what comes after the kill.
        let control = (round % 5 == 4).then(|| work.pop().unwrap());
        let daemon = store.daemon().unwrap();
        let running = Running::start(work);
        std::thread::sleep(Duration::from_millis(5 + random.below(100)));
        running.stop();
        daemon.kill();
        assert!(daemon.wait_for_end(Duration::from_secs(30)));
        work = running.end();
        if let Some(control) = control {
            dead_mount_says_so(&live);
            work.push(control);
            let pause = Duration::from_millis(random.below(100));
            killed_early += u32::from(kill_while_it_starts(&store, pause));
        }
        // Any command brings everything back.
        store.check();
        assert!(mounts::is_mounted(&live) && mounts::is_mounted(&frozen));
        check(&mut work, &live, false, round);
        if round % 2 == 0 {
            let (id, expected) = &kept[random.index(kept.len())];
            assert_eq!(digest_of(id), *expected, "snapshot {id}");
        }
        if round % 5 == 0 {
            let id = store.snapshot("w");
            let dir = store.mount(&id);
            check(&mut work, &dir, false, round);
            kept.push((id, digest(&dir)));
            store.umount(&dir);
        }
        for work in &mut work {
            // A step that failed is done again: it must find its way from what it left.
            work.step().unwrap();
        }
    }
    assert!(killed_early > 0, "none was killed while it started");
    check(&mut work, &live, true, kills);
    let before = Tree::scan(&live, ScanOptions::ALL);
    store.stop_daemon();
    let live = store.mount("w");
    Tree::scan(&live, ScanOptions::ALL).assert_same(&before);
    for (id, expected) in &kept {
        assert_eq!(digest_of(id), *expected, "snapshot {id}");
    }
    eprintln!("{kills} kills in {:?}", started.elapsed());
}

#[test]
fn snapshots_acknowledged_before_a_kill_are_there() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    for round in 0..5 {
        let mut taken = Vec::new();
        for number in 0..5 {
            let text = format!("{round} {number}");
            fs::write(live.join("state"), &text).unwrap();
            taken.push((store.snapshot("w"), text));
        }
        store.ok(["fork", "w", &format!("f{round}")]);
        let kept = store.ok(["rollback", "w", taken[0].0.as_str()]);
        store.kill_daemon();
        store.check();
        taken.push((kept, taken[4].1.clone()));
        for (id, text) in &taken {
            let frozen = store.mount(id);
            assert_eq!(&fs::read_to_string(frozen.join("state")).unwrap(), text);
            store.umount(&frozen);
        }
        assert_eq!(fs::read_to_string(live.join("state")).unwrap(), taken[0].1);
        let fork = store.mount(&format!("f{round}"));
        assert_eq!(fs::read_to_string(fork.join("state")).unwrap(), taken[4].1);
    }
}

/// Each daemon ends before it would have copied the log of the catalog back. It was read as a whole
/// by each that came after, and grew for ever.
#[test]
fn the_log_does_not_grow_with_every_kill() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    let log = store.store_dir().join("catalog.db-wal");
    for round in 0..4 {
        for number in 0..150 {
            let file = live.join(format!("{round} {number}"));
            fs::write(&file, "").unwrap();
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&file, "user.large", &[7; 65_536], flags).unwrap();
        }
        store.kill_daemon();
        store.ok(["daemon", "start"]);
        let left = fs::metadata(&log).unwrap().len();
        assert!(left <= 17 << 20, "{left} bytes of log after {round} kills");
    }
    store.check();
    let mut value = vec![0; 65_536];
    let attribute = rustix::fs::getxattr(live.join("0 0"), "user.large", &mut value);
    assert_eq!((attribute, value), (Ok(65_536), vec![7; 65_536]));
}

#[test]
fn whoever_has_a_file_open_gets_an_error_and_not_a_hang() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    fs::write(live.join("a"), vec![b'a'; 200_000]).unwrap();
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(live.join("a"))
        .unwrap();
    let mut python = Python::start();
    python.ok(&format!(
        "os.chdir({}); m = mmap.mmap(os.open(b'a', os.O_RDWR), 200000)",
        path(&live)
    ));
    store.kill_daemon();
    let refused = |error: io::Error| {
        let number = error.raw_os_error().unwrap();
        assert!(
            [libc::ENOTCONN, libc::ECONNABORTED, libc::EIO].contains(&number),
            "{error}"
        );
    };
    refused(file.write_at(b"x", 0).unwrap_err());
    refused(file.sync_all().unwrap_err());
    refused(File::open(live.join("a")).unwrap_err());
    assert_eq!(python.errno("os.listdir('.')"), libc::ENOTCONN);
    dead_mount_says_so(&live);
    // Restored while the old descriptors are still held: they stay dead, new ones work.
    store.ok(["daemon", "start"]);
    assert_eq!(fs::read(live.join("a")).unwrap(), vec![b'a'; 200_000]);
    refused(file.write_at(b"x", 0).unwrap_err());
    drop(file);
}

/// The daemon has the pages of mapped files written back before a snapshot, on a mount of its own.
/// Killed while it waits for that, it must not leave others waiting for ever.
#[test]
fn a_kill_in_the_middle_of_a_snapshot_of_mapped_files_hangs_nobody() {
    let mut random = Random::new(Random::seed_from_env(5));
    for _ in 0..8 {
        let store = TestStore::new();
        store.ok(["ws", "create", "w"]);
        let live = store.mount("w");
        let mut writers: Vec<_> = (0..3)
            .map(|number| {
                let mut writer = Command::new("python3");
                let script = "import mmap, os, sys
f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
os.ftruncate(f, 32 << 20)
m = mmap.mmap(f, 32 << 20)
def store():
    for at in range(0, 32 << 20, 4096): m[at] = 1
store()
open(sys.argv[1] + '.ready', 'w').close()
while True: store()";
                writer
                    .args(["-c", script])
                    .arg(live.join(number.to_string()));
                writer.spawn().unwrap()
            })
            .collect();
        while !(0..3).all(|number| live.join(format!("{number}.ready")).exists()) {
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut command = store.command();
        command.args(["snapshot", "w"]);
        let mut snapshot = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(random.below(40)));
        store.kill_daemon();
        dead_mount_says_so(&live);
        snapshot.wait().unwrap();
        for writer in &mut writers {
            // SIGBUS has ended some; the others are not stuck.
            if writer.try_wait().unwrap().is_none() {
                writer.kill().unwrap();
            }
            assert!(Handle::of_child(writer).wait_for_end(Duration::from_secs(10)));
            writer.wait().unwrap();
        }
        store.check();
    }
}

#[test]
fn a_kill_while_a_directory_is_imported_leaves_no_half_workspace() {
    let store = TestStore::new();
    let source = store.base().join("source");
    fs::create_dir(&source).unwrap();
    for number in 0..3000 {
        fs::write(source.join(number.to_string()), vec![b'x'; 9000]).unwrap();
    }
    store.ok(["daemon", "start"]);
    for delay in [30, 80, 150] {
        let mut command = store.command();
        command
            .args(["ws", "create", "half", "--copy", "--from"])
            .arg(&source);
        let mut import = command.spawn().unwrap();
        std::thread::sleep(Duration::from_millis(delay));
        store.kill_daemon();
        let ended = import.wait().unwrap();
        let names = store.ok(["ws", "list", "-q"]);
        assert_eq!(names.is_empty(), !ended.success(), "{names:?}");
        if ended.success() {
            store.ok(["ws", "delete", "half"]);
        }
    }
    store.stop_daemon();
    store.ok(["daemon", "start"]);
    // They are removed by a thread that nobody waits for.
    let deadline = Instant::now() + Duration::from_secs(5);
    while store.object_files() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(store.object_files(), 0, "objects are left of nothing");
}
