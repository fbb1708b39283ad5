//! Many at once: forks, copies, links, listings; and snapshots, forks, rollbacks and unmounts that
//! race file loads and each other. A watchdog ends what hangs.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use floe_harness::process::Handle;
use floe_harness::random::Random;
use floe_harness::{
    Load, Operations, ScanOptions, TestStore, Tree, Watchdog, long_run, mounts, watchdog,
};

fn mounted() -> (TestStore, PathBuf) {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    (store, live)
}

fn watch(store: &TestStore, seconds: u64) -> Watchdog {
    Watchdog::start(store.daemon().unwrap(), Duration::from_secs(seconds))
}

fn scan(root: &Path) -> Tree {
    Tree::scan(root, ScanOptions::ALL)
}

#[test]
fn eight_forks_written_at_the_same_paths_keep_to_themselves() {
    let (store, live) = mounted();
    let _watchdog = watch(&store, 120);
    Operations::new(&live, 1).run(300);
    for name in ["small", "large"] {
        fs::write(
            live.join(name),
            vec![b'b'; if name == "small" { 50 } else { 300_000 }],
        )
        .unwrap();
    }
    let base = scan(&live);
    store.ok(["snapshot", "w", "--name", "base"]);
    store.ok(["fork", "base", "f", "--count", "8"]);
    let forks: Vec<_> = (1..=8)
        .map(|number| store.mount(&format!("f-{number}")))
        .collect();
    // Each does the same operations on the host and on its fork, by a seed of its own.
    std::thread::scope(|scope| {
        for (number, fork) in (0..).zip(&forks) {
            let (store, base) = (&store, &base);
            scope.spawn(move || {
                let host = store.base().join(format!("host{number}"));
                fs::create_dir(&host).unwrap();
                let mut here = Operations::new(fork, 1);
                let mut there = Operations::new(&host, 1);
                there.run(300);
                for name in ["small", "large"] {
                    fs::copy(fork.join(name), host.join(name)).unwrap();
                }
                scan(fork).assert_same(base);
                // Skips the shared beginning of the generator.
                let elsewhere = store.base().join(format!("skip{number}"));
                fs::create_dir(&elsewhere).unwrap();
                here.set_root(&elsewhere);
                here.run(300);
                for _ in 0..number * 10 {
                    here.step();
                    there.set_root(&elsewhere);
                    there.step();
                }
                here.set_root(fork);
                there.set_root(&host);
                assert_eq!(here.run(300), there.run(300));
                fs::write(fork.join("small"), number.to_string()).unwrap();
                fs::write(host.join("small"), number.to_string()).unwrap();
                let options = ScanOptions::NO_TIMES;
                Tree::scan(fork, options).assert_same(&Tree::scan(&host, options));
            });
        }
    });
    scan(&live).assert_same(&base);
    scan(&store.mount("base")).assert_same(&base);
}

#[test]
fn forty_processes_copy_the_same_files() {
    let (store, live) = mounted();
    let _watchdog = watch(&store, 120);
    let source = live.join("source");
    fs::create_dir(&source).unwrap();
    let mut random = Random::new(4);
    for number in 0..30 {
        let len = random.index(100_000);
        fs::write(source.join(number.to_string()), random.bytes(len)).unwrap();
    }
    let _ = store.snapshot("w");
    fs::create_dir(live.join("shared")).unwrap();
    let mut children: Vec<_> = (0..40)
        .map(|number| {
            // Half of them into directories of their own, half over each other.
            let target = if number % 2 == 0 {
                format!("copy{number}")
            } else {
                "shared".into()
            };
            // Not `cp` into "shared": it makes new files with O_EXCL and fails if another was faster.
            let script = "cd source && for f in *; do cat $f >\"$0/$f\" || exit 1; done";
            let target = live.join(&target);
            fs::create_dir_all(&target).unwrap();
            let mut command = Command::new("sh");
            command.args(["-c", script]).arg(&target).current_dir(&live);
            command.spawn().unwrap()
        })
        .collect();
    for child in &mut children {
        assert!(Handle::of_child(child).wait_for_end(Duration::from_secs(100)));
        assert!(child.wait().unwrap().success());
    }
    let contents = |dir: &str| -> BTreeMap<_, _> {
        let entries = fs::read_dir(live.join(dir)).unwrap();
        entries
            .map(|entry| entry.unwrap())
            .map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap()))
            .collect()
    };
    let expected = contents("source");
    for number in (0..40).step_by(2) {
        assert!(
            contents(&format!("copy{number}")) == expected,
            "copy {number}"
        );
    }
    assert!(contents("shared") == expected);
}

#[test]
fn a_thousand_links_and_unlinks_at_once_leave_the_right_count() {
    let (store, live) = mounted();
    let _watchdog = watch(&store, 120);
    let file = live.join("file");
    fs::write(&file, "x").unwrap();
    let _ = store.snapshot("w");
    std::thread::scope(|scope| {
        for thread in 0..8 {
            let (live, file) = (&live, &file);
            scope.spawn(move || {
                for number in 0..125 {
                    let link = live.join(format!("{thread}-{number}"));
                    fs::hard_link(file, &link).unwrap();
                    // All fight for one more name.
                    let contested = live.join("contested");
                    match fs::hard_link(file, &contested) {
                        Ok(()) => {}
                        Err(error) => assert_eq!(error.kind(), io::ErrorKind::AlreadyExists),
                    }
                    match fs::remove_file(&contested) {
                        Ok(()) => {}
                        Err(error) => assert_eq!(error.kind(), io::ErrorKind::NotFound),
                    }
                    if number % 5 != 0 {
                        fs::remove_file(&link).unwrap();
                    }
                }
            });
        }
    });
    let count = fs::read_dir(&live).unwrap().count() as u64;
    assert_eq!(count, 1 + 8 * 25);
    assert_eq!(fs::metadata(&file).unwrap().nlink(), count);
    store.stop_daemon();
    let live = store.mount("w");
    assert_eq!(fs::metadata(live.join("file")).unwrap().nlink(), count);
}

#[test]
fn an_entry_that_stays_is_listed_exactly_once_while_others_come_and_go() {
    let (store, live) = mounted();
    let _watchdog = watch(&store, 120);
    for number in 0..2000 {
        File::create(live.join(format!("stays {number:04}"))).unwrap();
        if number == 1000 {
            let _ = store.snapshot("w");
        }
    }
    let root = live.clone();
    let counter = AtomicU64::new(0);
    let load = Load::start(3, move |thread| {
        let number = counter.fetch_add(1, Ordering::Relaxed) % 500;
        // Names all over the order of names, before and after those that stay.
        let (a, b) = (
            root.join(format!("{number} {thread}")),
            root.join(format!("z{number} {thread}")),
        );
        fs::write(&a, "x").unwrap();
        fs::rename(&a, &b).unwrap();
        fs::remove_file(&b).unwrap();
    });
    for _ in 0..25 {
        let mut seen: BTreeMap<_, u32> = BTreeMap::new();
        for entry in fs::read_dir(&live).unwrap() {
            *seen.entry(entry.unwrap().file_name()).or_default() += 1;
        }
        let stays = seen
            .iter()
            .filter(|(name, _)| name.as_encoded_bytes().starts_with(b"stays"));
        assert!(stays.clone().all(|(_, &count)| count == 1), "listed twice");
        assert_eq!(stays.count(), 2000);
    }
    assert!(load.stop() > 0);
}

/// What a program may be told whose files a rollback took away.
fn lost(error: &io::Error) -> bool {
    let lost = [
        libc::ESTALE,
        libc::ENOENT,
        libc::ENOTDIR,
        libc::ENOTEMPTY,
        libc::EEXIST,
    ];
    error
        .raw_os_error()
        .is_some_and(|number| lost.contains(&number))
}

fn file_load(root: &Path, random: &mut Random) -> io::Result<()> {
    let dir = root.join(format!("d{}", random.below(4)));
    fs::create_dir_all(&dir)?;
    let path = dir.join(random.below(30).to_string());
    match random.below(6) {
        0..=2 => {
            let len = random.index(120_000);
            fs::write(&path, random.bytes(len))
        }
        3 => fs::rename(&path, dir.join("renamed")),
        4 => fs::remove_file(&path),
        _ => fs::read_dir(&dir)?.try_for_each(|entry| entry.map(drop)),
    }
}

/// Descriptors of the daemon but for the objects that it keeps open on purpose: it closes one when
/// it removes the object, and the rest past a fixed number.
fn open_descriptors(store: &TestStore, daemon: &Handle) -> usize {
    let entries = fs::read_dir(format!("/proc/{}/fd", daemon.pid())).unwrap();
    let targets: Vec<_> = entries
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .collect();
    let objects = store.store_dir().join("objects");
    let (kept, other): (Vec<_>, Vec<_>) = targets
        .iter()
        .partition(|target| target.starts_with(&objects));
    assert!(kept.len() <= 512, "{} objects are open", kept.len());
    let removed = kept
        .iter()
        .filter(|target| target.as_os_str().as_bytes().ends_with(b" (deleted)"));
    other.len() + removed.count()
}

#[test]
fn snapshots_forks_rollbacks_and_unmounts_race_each_other_and_file_loads() {
    let (store, live) = mounted();
    let length = Duration::from_secs(if long_run() { 600 } else { 10 });
    let _watchdog = watch(&store, length.as_secs() + 90);
    fs::write(live.join("base"), "base").unwrap();
    store.ok(["snapshot", "w", "--name", "base"]);
    let daemon = store.daemon().unwrap();
    let baseline = open_descriptors(&store, &daemon);
    let early_memory = AtomicU64::new(0);
    let root = live.clone();
    let seed = AtomicU64::new(1);
    let load = Load::start(4, move |_| {
        let mut random = Random::new(seed.fetch_add(1, Ordering::Relaxed));
        for _ in 0..20 {
            if let Err(error) = file_load(&root, &mut random) {
                assert!(lost(&error), "{error}");
            }
        }
    });
    let end = Instant::now() + length;
    std::thread::scope(|scope| {
        let store = &store;
        let repeat = |work: Box<dyn Fn(u64) + Send>| {
            scope.spawn(move || {
                let mut number = 0;
                while Instant::now() < end {
                    work(number);
                    number += 1;
                }
            })
        };
        repeat(Box::new(|_| {
            let _ = store.snapshot("w");
        }));
        repeat(Box::new(|_| {
            store.ok(["rollback", "w", "base"]);
        }));
        repeat(Box::new(|number| {
            let name = format!("f{number}");
            let source = if number % 2 == 0 { "base" } else { "w" };
            store.ok(["fork", source, &name]);
            let dir = store.mount(&name);
            assert_eq!(fs::read(dir.join("base")).unwrap(), b"base");
            fs::write(dir.join("mine"), name.as_bytes()).unwrap();
            fs::write(dir.join("large"), vec![b'l'; 100_000]).unwrap();
            store.umount(&dir);
            store.ok(["ws", "delete", name.as_str()]);
        }));
        repeat(Box::new(|_| {
            // Another mount of the loaded workspace comes and goes.
            let dir = store.mount("w");
            assert_eq!(fs::read(dir.join("base")).unwrap(), b"base");
            store.umount(&dir);
            let frozen = store.mount("w/base");
            assert_eq!(fs::read_dir(&frozen).unwrap().count(), 1);
            store.umount(&frozen);
        }));
        std::thread::sleep(length / 4);
        early_memory.store(memory(&daemon), Ordering::Relaxed);
    });
    assert!(load.stop() > 0);
    store.ok(["rollback", "w", "base"]);
    assert_eq!(fs::read_dir(&live).unwrap().count(), 1);
    assert!(mounts::is_mounted(&live));
    assert_eq!(
        store.daemon().unwrap().pid(),
        daemon.pid(),
        "one daemon all the while"
    );
    let left = settled(|| open_descriptors(&store, &daemon), baseline + 8);
    assert!(
        left <= baseline + 8,
        "{left} descriptors, {baseline} before"
    );
    let wrong = fs::read_to_string(store.store_dir().join("run/daemon.log")).unwrap();
    assert!(!wrong.contains("panicked"), "{wrong}");
    // Nobody waits without a way out, and nothing is kept of what came and went.
    for pid in [daemon.pid(), std::process::id()] {
        let stuck = || watchdog::stacks(pid).matches("State:\tD").count();
        assert_eq!(settled(stuck, 0), 0, "{}", watchdog::blocked());
    }
    let (early, late) = (early_memory.load(Ordering::Relaxed), memory(&daemon));
    eprintln!("memory of the daemon: {early} KiB after a quarter, {late} KiB at the end");
    assert!(
        late < early + (64 << 10),
        "{early} KiB of memory, then {late}"
    );
    // What is on its way out is gone after this.
    store.check();
    let objects = store.object_files();
    for number in 0..50 {
        fs::write(live.join(number.to_string()), vec![b'x'; 100_000]).unwrap();
    }
    assert!(store.object_files() > objects);
    for number in 0..50 {
        fs::remove_file(live.join(number.to_string())).unwrap();
    }
    // A file that somebody still refers to keeps its object.
    assert_eq!(settled(|| store.object_files(), objects), objects);
}

/// Memory of a process that no file backs, in KiB.
fn memory(process: &Handle) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", process.pid())).unwrap();
    let line = status
        .lines()
        .find(|line| line.starts_with("RssAnon:"))
        .unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// The smallest value seen within some seconds; what is closed in the background needs a moment.
fn settled(value: impl Fn() -> usize, enough: usize) -> usize {
    let deadline = Instant::now() + Duration::from_secs(10);
    let mut least = value();
    while least > enough && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
        least = least.min(value());
    }
    least
}

#[test]
fn no_descriptor_is_kept_of_what_was_unmounted_or_closed() {
    let (store, live) = mounted();
    let cycle = || {
        for number in 0..20 {
            fs::write(live.join(number.to_string()), vec![b'x'; 100_000]).unwrap();
        }
        store.ok(["snapshot", "w"]);
        store.ok(["fork", "w", "f", "--count", "3"]);
        for number in 1..=3 {
            let dir = store.mount(&format!("f-{number}"));
            fs::write(dir.join("0"), "y").unwrap();
            store.umount(&dir);
            store.ok(["ws", "delete", &format!("f-{number}")]);
        }
        for number in 0..20 {
            fs::remove_file(live.join(number.to_string())).unwrap();
        }
    };
    let daemon = store.daemon().unwrap();
    for _ in 0..3 {
        cycle();
    }
    let early = open_descriptors(&store, &daemon);
    for _ in 0..10 {
        cycle();
    }
    let late = settled(|| open_descriptors(&store, &daemon), early + 4);
    assert!(late <= early + 4, "{early} descriptors, then {late}");
}
