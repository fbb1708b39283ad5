//! A panic in the daemon while it serves a request: that request fails with EIO, the log names it,
//! and everything else goes on. Whatever locks were held, nothing hangs, and neither memory nor
//! catalog is left with half a change: the operation has happened or not, for everybody alike.
//!
//! The daemon of a debug build panics where this asks it to (`fs/src/fault.rs`). One of a release
//! build must not know how.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use floe_harness::command::run;
use floe_harness::{Faults, ScanOptions, TestStore, Tree, Watchdog};

/// Where a request can panic: before the operation, with locks held and contents prepared, in the
/// middle of the transaction, after it.
const POINTS: [&str; 4] = ["begin", "apply", "rows", "done"];

struct Panics {
    store: TestStore,
    faults: Faults,
    live: PathBuf,
    other: PathBuf,
    _watchdog: Watchdog,
}

impl Panics {
    /// A mounted workspace on a snapshot of `fill`'s, beside a mounted fork of it.
    fn new(fill: impl FnOnce(&Path)) -> Self {
        let store = TestStore::new();
        let faults = Faults::new(store.base());
        let mut start = store.command();
        start.args(["daemon", "start"]);
        faults.allow(&mut start);
        run(&mut start, Duration::from_secs(60)).expect_code(0);
        store.ok(["ws", "create", "w"]);
        let live = store.mount("w");
        fill(&live);
        store.ok(["fork", "w", "other"]);
        let other = store.mount("other");
        let watchdog = Watchdog::start(store.daemon().unwrap(), Duration::from_secs(120));
        Self {
            store,
            faults,
            live,
            other,
            _watchdog: watchdog,
        }
    }

    fn log(&self) -> String {
        fs::read_to_string(self.store.store_dir().join("run/daemon.log")).unwrap()
    }

    /// Has the next request of a kind panic at a point, and makes it with `act`.
    #[track_caller]
    fn at<T>(&self, operation: &str, point: &str, act: impl FnOnce() -> io::Result<T>) {
        let known = self.log().len();
        self.faults.ask(operation, point);
        let result = act();
        if !cfg!(debug_assertions) {
            assert!(self.faults.is_asked(), "a release build panics on request");
            self.faults.take_back();
            return;
        }
        let error = result
            .err()
            .unwrap_or_else(|| panic!("{operation} {point} did not fail"));
        assert_eq!(
            error.raw_os_error(),
            Some(libc::EIO),
            "{operation} {point}: {error}"
        );
        assert!(!self.faults.is_asked());
        let log = &self.log()[known..];
        let named = |line: &str| line.contains("panic while serving") && line.contains(operation);
        assert!(log.lines().any(named), "{operation} is not named in\n{log}");
    }

    /// Everything goes on: this mount, the other, commands; and what is in the catalog is what this
    /// mount shows now, by a daemon that remembers nothing.
    #[track_caller]
    fn goes_on(self, what: &str) {
        for root in [&self.live, &self.other] {
            fs::create_dir(root.join("after")).unwrap();
            fs::write(root.join("after/small"), "small").unwrap();
            fs::write(root.join("after/large"), vec![b'l'; 300_000]).unwrap();
            fs::rename(root.join("after/small"), root.join("after/moved")).unwrap();
            assert_eq!(fs::read(root.join("after/moved")).unwrap(), b"small");
            File::open(root.join("after/large"))
                .unwrap()
                .sync_all()
                .unwrap();
            fs::remove_file(root.join("after/large")).unwrap();
        }
        let snapshot = self.store.snapshot("w");
        self.store.ok(["fork", "w", "new"]);
        self.store.check();
        let shown = Tree::scan(&self.live, ScanOptions::ALL);
        self.store.stop_daemon();
        for target in ["w", &snapshot, "new"] {
            let after = Tree::scan(&self.store.mount(target), ScanOptions::ALL);
            assert!(
                after.differences(&shown).is_empty(),
                "{what}, {target}: {:#?}",
                after.differences(&shown)
            );
        }
    }
}

/// The kernel is told what it must not believe any more after the request was answered.
#[track_caller]
fn soon(what: &str, holds: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn listed(dir: &Path, name: &str) -> bool {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap());
    entries
        .into_iter()
        .any(|entry| entry.file_name() == OsStr::new(name))
}

/// Whether the operation has happened is all that is open; names and listing agree on it.
#[track_caller]
fn agree(dir: &Path, name: &str) -> bool {
    let there = || fs::symlink_metadata(dir.join(name)).is_ok();
    soon(name, || listed(dir, name) == there());
    there()
}

#[test]
fn a_panic_while_a_name_is_made_or_removed_leaves_it_whole_or_absent() {
    for point in POINTS {
        let panics = Panics::new(|root| {
            for name in ["file", "moved", "replaced", "linked"] {
                fs::write(root.join(name), name).unwrap();
            }
            fs::create_dir(root.join("dir")).unwrap();
        });
        let live = panics.live.clone();
        let happened = point == "done" || !cfg!(debug_assertions);
        // The kernel knows that they are not there.
        for name in ["made", "newdir", "link", "to"] {
            assert!(!live.join(name).exists());
        }
        panics.at("create", point, || File::create(live.join("made")));
        assert_eq!(agree(&live, "made"), happened, "create {point}");
        panics.at("mkdir", point, || fs::create_dir(live.join("newdir")));
        assert_eq!(agree(&live, "newdir"), happened, "mkdir {point}");
        panics.at("unlink", point, || fs::remove_file(live.join("file")));
        assert_eq!(agree(&live, "file"), !happened, "unlink {point}");
        panics.at("rmdir", point, || fs::remove_dir(live.join("dir")));
        assert_eq!(agree(&live, "dir"), !happened, "rmdir {point}");
        panics.at("link", point, || {
            fs::hard_link(live.join("linked"), live.join("link"))
        });
        assert_eq!(agree(&live, "link"), happened, "link {point}");
        let links = if happened { 2 } else { 1 };
        assert_eq!(fs::metadata(live.join("linked")).unwrap().nlink(), links);
        panics.at("rename", point, || {
            fs::rename(live.join("moved"), live.join("replaced"))
        });
        assert_eq!(agree(&live, "moved"), !happened, "rename {point}");
        let expected = if happened { "moved" } else { "replaced" };
        assert_eq!(fs::read_to_string(live.join("replaced")).unwrap(), expected);
        // Again: what did not happen can, and what did says so.
        assert_eq!(File::create_new(live.join("made")).is_ok(), !happened);
        assert_eq!(fs::remove_file(live.join("file")).is_ok(), !happened);
        panics.goes_on(point);
    }
}

#[test]
fn a_panic_is_known_in_every_directory_and_file_that_the_request_concerned() {
    for point in ["apply", "done"] {
        let panics = Panics::new(|root| {
            for dir in ["a", "b"] {
                fs::create_dir(root.join(dir)).unwrap();
            }
            fs::write(root.join("a/x"), "x").unwrap();
            fs::write(root.join("one"), "one").unwrap();
            fs::hard_link(root.join("one"), root.join("a/two")).unwrap();
        });
        let live = panics.live.clone();
        let happened = point == "done" || !cfg!(debug_assertions);
        let (a, b) = (live.join("a"), live.join("b"));
        // The second listing comes from what the kernel keeps, attributes included.
        let warm = || {
            for dir in [&live, &a, &b, &live, &a, &b] {
                assert!(!listed(dir, "nothing"));
            }
        };
        let open = File::open(live.join("one")).unwrap();
        assert_eq!(open.metadata().unwrap().nlink(), 2);
        warm();
        panics.at("rename", point, || fs::rename(a.join("x"), b.join("x")));
        assert_eq!(agree(&a, "x"), !happened, "rename {point}");
        assert_eq!(agree(&b, "x"), happened, "rename {point}");
        warm();
        panics.at("link", point, || {
            fs::hard_link(live.join("one"), b.join("three"))
        });
        assert_eq!(agree(&b, "three"), happened, "link {point}");
        let links = if happened { 3 } else { 2 };
        soon("links are known", || {
            open.metadata().unwrap().nlink() == links
        });
        warm();
        panics.at("unlink", point, || fs::remove_file(a.join("two")));
        assert_eq!(agree(&a, "two"), !happened, "unlink {point}");
        soon("links are known", || open.metadata().unwrap().nlink() == 2);
        panics.goes_on(point);
    }
}

#[test]
fn a_panic_while_contents_change_shows_the_old_or_the_new_ones() {
    let old = vec![b'o'; 500_000];
    for point in POINTS {
        let panics = Panics::new(|root| {
            fs::write(root.join("frozen"), &old).unwrap();
            fs::write(root.join("small"), "small").unwrap();
        });
        let live = panics.live.clone();
        fs::write(live.join("own"), &old).unwrap();
        let happened = point == "done" || !cfg!(debug_assertions);
        let open = |name: &str| {
            let mut options = OpenOptions::new();
            options.read(true).write(true);
            options.open(live.join(name)).unwrap()
        };
        for name in ["frozen", "small", "own"] {
            let file = open(name);
            let before = fs::read(live.join(name)).unwrap();
            let mut after = before.clone();
            after.resize(after.len().max(70_100), 0);
            after[70_000..70_100].fill(b'n');
            panics.at("write", point, || file.write_at(&[b'n'; 100], 70_000));
            soon("the size is known", || {
                file.metadata().unwrap().len()
                    == if happened { &after } else { &before }.len() as u64
            });
            let found = fs::read(live.join(name)).unwrap();
            // Bytes that were there and are overwritten go into place before the catalog is told.
            assert!(
                found == after || (found == before && !happened),
                "{name}, write {point}"
            );
            // The same blocks again: they must not count as owned by what never was committed.
            file.write_all_at(&[b'm'; 100], 70_050).unwrap();
            let mut after = found;
            after.resize(after.len().max(70_150), 0);
            after[70_050..70_150].fill(b'm');
            assert!(
                fs::read(live.join(name)).unwrap() == after,
                "{name}, write after {point}"
            );
            panics.at("setattr", point, || file.set_len(1000));
            if happened {
                after.truncate(1000);
            }
            soon("the size is known", || {
                file.metadata().unwrap().len() == after.len() as u64
            });
            assert!(
                fs::read(live.join(name)).unwrap() == after,
                "{name}, truncate {point}"
            );
            let flags = rustix::fs::XattrFlags::CREATE;
            panics.at("setxattr", point, || {
                Ok(rustix::fs::fsetxattr(&file, "user.a", b"1", flags)?)
            });
            let again = rustix::fs::fsetxattr(&file, "user.a", b"2", flags);
            assert_eq!(again.is_ok(), !happened, "{name}, setxattr {point}");
        }
        assert!(fs::read(panics.other.join("frozen")).unwrap() == old);
        panics.goes_on(point);
    }
}

#[test]
fn a_panic_while_something_is_read_costs_that_request_only() {
    let panics = Panics::new(|root| fs::write(root.join("file"), vec![b'x'; 100_000]).unwrap());
    // Of the fork the kernel knows nothing yet.
    let root = panics.other.clone();
    panics.at("lookup", "begin", || fs::metadata(root.join("file")));
    panics.at("readdirplus", "begin", || {
        fs::read_dir(&root)?.next().unwrap()
    });
    panics.at("open", "begin", || File::open(root.join("file")));
    // The kernel asks again for what it only read ahead.
    let mut direct = OpenOptions::new();
    let direct = direct.read(true).custom_flags(libc::O_DIRECT);
    let file = direct.open(root.join("file")).unwrap();
    panics.at("read", "begin", || file.read_at(&mut [0; 4096], 0));
    panics.at("fsync", "begin", || {
        File::open(root.join("file"))?.sync_all()
    });
    assert!(fs::read(root.join("file")).unwrap() == vec![b'x'; 100_000]);
    panics.goes_on("read");
}
