//! Who may use a store, what a store that cannot be used says, and that it is not changed by that.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::process::Child;
use std::time::Duration;

use floe_harness::process::{self, Handle};
use floe_harness::{Python, ScanOptions, TestStore, Tree, binary, mounts, python};
use rustix::mount::{MountFlags, UnmountFlags, mount_bind, mount_remount, unmount};

/// Commands of every kind that need the store.
const COMMANDS: [&[&str]; 8] = [
    &["ws", "list"],
    &["ws", "create", "x"],
    &["mount", "w"],
    &["snapshot", "w"],
    &["fork", "w", "f"],
    &["snap", "list"],
    &["daemon", "start"],
    &["daemon", "run"],
];

fn with_files() -> TestStore {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    fs::write(live.join("small"), "1").unwrap();
    fs::write(live.join("large"), vec![7; 300_000]).unwrap();
    for number in 0..500 {
        fs::write(live.join(format!("file with a long name {number}")), "x").unwrap();
    }
    let _ = store.snapshot("w");
    store.stop_daemon();
    // The tests damage the one file that everything is in after a clean end.
    assert_eq!(log_bytes(&store), 0);
    store
}

fn log_bytes(store: &TestStore) -> u64 {
    let log = store.store_dir().join("catalog.db-wal");
    fs::metadata(log).map_or(0, |meta| meta.len())
}

/// Everything of a store but the daemon's log, the id of the last process that had it, and what
/// SQLite needs beside a database to look at it.
fn state(store: &TestStore) -> Tree {
    let mut tree = Tree::scan(&store.store_dir(), ScanOptions::ALL);
    tree.nodes.retain(|path, node| {
        let empty_log = path == b"catalog.db-wal" && node.size == 0;
        let passing = path.starts_with(b"run/") || path == b"lock" || path == b"catalog.db-shm";
        !passing && !empty_log
    });
    // The times of a directory tell that something was made and removed in it, which is allowed.
    for node in tree.nodes.values_mut().filter(|node| node.kind == "dir") {
        node.mtime = (0, 0);
    }
    tree
}

/// Every command fails with `code`, says `words`, and leaves the store as it was.
#[track_caller]
fn is_refused(store: &TestStore, code: i32, words: &[&str]) {
    let before = state(store);
    for command in COMMANDS {
        let output = store.fails(code, command.iter().chain(&["--json"]));
        let error = output.json_error();
        assert!(!error["hint"].is_null(), "{output}");
        for word in words {
            assert!(error.to_string().contains(word), "no {word:?} in\n{output}");
        }
        state(store).assert_same(&before);
    }
    assert!(process::of_store(binary::floe(), &store.store_dir()).is_empty());
}

fn catalog(store: &TestStore) -> std::path::PathBuf {
    store.store_dir().join("catalog.db")
}

#[test]
fn a_store_of_a_newer_version_is_refused_and_not_changed() {
    let store = with_files();
    Python::start().ok(&format!(
        "c = sqlite3.connect({}.decode()); c.execute('PRAGMA user_version = 999'); c.close()",
        python::path(&catalog(&store))
    ));
    is_refused(&store, 1, &["999", "newer"]);
    store.fails(1, ["store", "info"]);
}

/// A newer version may have been killed before its new number reached the main file.
#[test]
fn a_newer_version_that_stands_only_in_the_log_is_refused_too() {
    let store = with_files();
    let mut killed = Python::start();
    killed.ok(&format!(
        "c = sqlite3.connect({}.decode()); c.execute('PRAGMA user_version = 999')",
        python::path(&catalog(&store))
    ));
    drop(killed);
    is_refused(&store, 1, &["999", "newer"]);
}

#[test]
fn a_damaged_catalog_is_refused_and_not_changed() {
    type Damage = fn(&Path);
    let damages: [(&str, Damage); 6] = [
        ("cut to 50 bytes", |catalog| set_len(catalog, 50)),
        ("cut to its first pages", |catalog| {
            set_len(catalog, 3 * 4096)
        }),
        ("cut to nothing", |catalog| set_len(catalog, 0)),
        ("garbage", |catalog| {
            fs::write(catalog, vec![0xa5; 100_000]).unwrap()
        }),
        ("another program's", |catalog| {
            write_at(catalog, 68, b"CUCK")
        }),
        ("garbage behind the first page", |catalog| {
            write_at(catalog, 4096, &vec![0xa5; 8 * 4096]);
        }),
    ];
    for (what, damage) in damages {
        let store = with_files();
        damage(&catalog(&store));
        eprintln!("{what}");
        is_refused(&store, 1, &["damaged"]);
    }
}

/// Closing a database copies its log into it, unless it is told not to.
#[test]
fn a_damaged_catalog_keeps_its_log() {
    let store = with_files();
    let mut killed = Python::start();
    killed.ok(&format!(
        "c = sqlite3.connect({}.decode()); c.execute('CREATE TABLE t (x)'); c.commit()",
        python::path(&catalog(&store))
    ));
    drop(killed);
    set_len(&catalog(&store), 3 * 4096);
    is_refused(&store, 1, &["damaged"]);
    let log = fs::metadata(store.store_dir().join("catalog.db-wal")).unwrap();
    assert!(log.len() > 0);
}

fn set_len(path: &Path, len: u64) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.set_len(len).unwrap();
}

fn write_at(path: &Path, at: u64, bytes: &[u8]) {
    let file = fs::OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, at).unwrap();
}

#[test]
fn a_directory_with_something_else_in_it_is_no_store() {
    let store = TestStore::without_init(&std::env::temp_dir());
    fs::create_dir(store.store_dir()).unwrap();
    fs::write(store.store_dir().join("thesis.tex"), "years of work").unwrap();
    is_refused(&store, 4, &["not empty", "not a store"]);
    store.fails(4, ["store", "init"]);
    store.fails(3, ["store", "info"]);
}

/// A bind mount that is taken away again however the test ends.
struct ReadOnly<'a>(&'a Path);

impl<'a> ReadOnly<'a> {
    fn mount(dir: &'a Path) -> Self {
        mount_bind(dir, dir).unwrap();
        let mounted = Self(dir);
        mount_remount(dir, MountFlags::BIND | MountFlags::RDONLY, "").unwrap();
        mounted
    }
}

impl Drop for ReadOnly<'_> {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.0, UnmountFlags::DETACH) {
            eprintln!("cannot unmount {}: {error}", self.0.display());
        }
    }
}

#[test]
fn a_store_that_cannot_be_written_is_refused_by_name() {
    let store = with_files();
    let dir = store.store_dir();
    let read_only = ReadOnly::mount(&dir);
    is_refused(&store, 1, &["Read-only file system", dir.to_str().unwrap()]);
    drop(read_only);
    let live = store.mount("w");
    assert_eq!(fs::read(live.join("small")).unwrap(), b"1");
}

#[test]
fn a_second_daemon_says_which_process_holds_the_store() {
    let store = with_files();
    store.ok(["daemon", "start"]);
    let pid = store.daemon().unwrap().pid().to_string();
    let error = store.fails(4, ["daemon", "run", "--json"]).json_error();
    assert_eq!(error["kind"], "conflict");
    assert!(error["error"].as_str().unwrap().contains(&pid), "{error}");
    assert!(error["hint"].as_str().unwrap().contains(&pid), "{error}");
    assert_eq!(store.daemon().unwrap().pid().to_string(), pid);
}

fn start_together(store: &TestStore, count: usize) -> Vec<Child> {
    let commands = (0..count).map(|number| {
        let mut command = store.command();
        command.args(["ws", "create", &format!("w{number}")]);
        command.spawn().unwrap()
    });
    commands.collect()
}

fn all_succeed(children: Vec<Child>) {
    for mut child in children {
        let handle = Handle::of_child(&child);
        if !handle.wait_for_end(Duration::from_secs(60)) {
            handle.kill();
        }
        assert_eq!(child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn ten_commands_at_once_start_one_daemon() {
    let store = TestStore::new();
    for _ in 0..3 {
        all_succeed(start_together(&store, 10));
        assert_eq!(store.ok(["ws", "list", "-q"]).lines().count(), 10);
        assert_eq!(
            process::of_store(binary::floe(), &store.store_dir()).len(),
            1
        );
        for number in 0..10 {
            store.ok(["ws", "delete", &format!("w{number}")]);
        }
        store.stop_daemon();
    }
}

/// A command whose daemon is told to end just as it sends its request once failed, and did not know
/// whether the request had been carried out.
#[test]
fn commands_beside_daemon_stop_all_succeed() {
    let store = TestStore::new();
    store.ok(["daemon", "start"]);
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let workers: Vec<_> = (0..4)
            .map(|worker| {
                let store = &store;
                scope.spawn(move || {
                    for number in 0..40 {
                        store.ok(["ws", "create", &format!("w{worker}-{number}")]);
                    }
                })
            })
            .collect();
        scope.spawn(|| {
            while !done.load(std::sync::atomic::Ordering::Relaxed) {
                store.ok(["daemon", "stop"]);
            }
        });
        let ended: Vec<_> = workers.into_iter().map(|worker| worker.join()).collect();
        done.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(ended.iter().all(Result::is_ok), "see above");
    });
    // Once each: a second attempt at any of them would have found the name taken.
    assert_eq!(store.ok(["ws", "list", "-q"]).lines().count(), 160);
}

#[test]
fn ten_commands_at_once_make_one_store() {
    let store = TestStore::without_init(&std::env::temp_dir());
    all_succeed(start_together(&store, 10));
    assert_eq!(store.ok(["ws", "list", "-q"]).lines().count(), 10);
    assert_eq!(
        process::of_store(binary::floe(), &store.store_dir()).len(),
        1
    );
}

#[test]
fn a_store_may_lie_deeper_than_a_socket_address_is_long_and_have_any_name() {
    for name in [&[b'x'; 200][..], b"not utf-8 \xff\n"] {
        let outer = tempfile::tempdir().unwrap();
        let parent = outer.path().join(OsStr::from_bytes(name));
        fs::create_dir(&parent).unwrap();
        let store = TestStore::new_in(&parent);
        store.ok(["ws", "create", "w"]);
        let live = store.mount("w");
        fs::write(live.join("a"), "1").unwrap();
        store.kill_daemon();
        let place = store.run(["mount", "w"]).expect_code(0);
        assert!(!place.stdout.is_empty());
        assert_eq!(fs::read(live.join("a")).unwrap(), b"1");
        assert_eq!(mounts::below(&store.store_dir()).len(), 1);
        store.ok(["store", "info"]);
        assert_eq!(store.json(["store", "info"])["workspaces"], 1);
    }
}

#[test]
fn a_store_is_private_to_its_owner() {
    let store = with_files();
    store.ok(["daemon", "start"]);
    for dir in ["", "run", "objects"] {
        let meta = fs::metadata(store.store_dir().join(dir)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o077, 0, "{dir:?}");
    }
}

/// Somebody who is neither root nor the owner of anything.
const NOBODY: u32 = 65534;
/// What is opened in a store by name.
const OPENED: [&str; 5] = ["", "run", "objects", "lock", "catalog.db"];

fn give_away(path: &Path) {
    std::os::unix::fs::lchown(path, Some(NOBODY), Some(NOBODY)).unwrap();
}

/// Whoever owns a catalog decides which set-id files and mounts root's daemon makes.
#[test]
fn a_store_of_another_user_is_refused() {
    for part in OPENED {
        let store = with_files();
        let path = store.store_dir().join(part);
        give_away(&path);
        let words = [
            "belongs to user 65534",
            path.to_str().unwrap().trim_end_matches('/'),
        ];
        is_refused(&store, 1, &words);
        let refused = store.fails(1, ["store", "info", "--json"]).json_error();
        assert_eq!(refused["kind"], "failed");
    }
}

#[test]
fn a_store_that_others_can_write_to_is_refused() {
    for part in OPENED {
        let store = with_files();
        let path = store.store_dir().join(part);
        let mode = fs::metadata(&path).unwrap().permissions().mode();
        for more in [0o020, 0o002] {
            fs::set_permissions(&path, fs::Permissions::from_mode(mode | more)).unwrap();
            is_refused(&store, 1, &["can be written by others", "chmod go-w"]);
        }
        fs::set_permissions(&path, fs::Permissions::from_mode(mode)).unwrap();
        store.ok(["ws", "list"]);
    }
}

/// Root once changed the mode of whatever directory `run` led to, and put a socket there.
#[test]
fn no_link_in_a_store_is_followed() {
    for part in &OPENED[1..] {
        let store = with_files();
        let path = store.store_dir().join(part);
        let elsewhere = store.base().join("elsewhere");
        fs::rename(&path, &elsewhere).unwrap();
        std::os::unix::fs::symlink(&elsewhere, &path).unwrap();
        let mode = if elsewhere.is_dir() { 0o755 } else { 0o644 };
        fs::set_permissions(&elsewhere, fs::Permissions::from_mode(mode)).unwrap();
        let before = Tree::scan(&elsewhere, ScanOptions::ALL);
        is_refused(&store, 1, &["symbolic link", path.to_str().unwrap()]);
        Tree::scan(&elsewhere, ScanOptions::ALL).assert_same(&before);
        let after = fs::metadata(&elsewhere).unwrap().permissions().mode();
        assert_eq!(after & 0o777, mode);
    }
}

#[test]
fn a_directory_that_another_user_made_beforehand_becomes_no_store() {
    let store = TestStore::without_init(&std::env::temp_dir());
    fs::create_dir(store.store_dir()).unwrap();
    give_away(&store.store_dir());
    is_refused(&store, 1, &["belongs to user 65534"]);
    store.fails(1, ["store", "init"]);
    assert_eq!(fs::read_dir(store.store_dir()).unwrap().count(), 0);
    // Nor if only what is to be in it was made by somebody else.
    std::os::unix::fs::chown(store.store_dir(), Some(0), Some(0)).unwrap();
    fs::create_dir(store.store_dir().join("run")).unwrap();
    give_away(&store.store_dir().join("run"));
    is_refused(&store, 1, &["belongs to user 65534"]);
}

/// Root's command on a store of a user's own: the user's commands go on working.
#[test]
fn only_its_owner_uses_a_store() {
    let store = TestStore::without_init(&std::env::temp_dir());
    let dir = store.base().join("theirs");
    fs::create_dir(&dir).unwrap();
    give_away(&dir);
    fs::set_permissions(store.base(), fs::Permissions::from_mode(0o755)).unwrap();
    // Nobody may not be able to reach the build directory.
    let program = store.base().join("floe");
    fs::copy(binary::floe(), &program).unwrap();
    let as_nobody = |args: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        command
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(&program)
            .arg("--store")
            .arg(&dir)
            .args(args)
            .current_dir("/");
        floe_harness::command::run(&mut command, Duration::from_secs(60))
    };
    as_nobody(&["store", "init"]).expect_code(0);
    as_nobody(&["ws", "create", "w"]).expect_code(0);
    let as_root = || {
        let mut command = std::process::Command::new(binary::floe());
        command.arg("--store").arg(&dir).args(["ws", "list"]);
        floe_harness::command::run(&mut command, Duration::from_secs(60))
    };
    // Nor does it believe what a daemon of somebody else's answers.
    let refused = as_root();
    as_nobody(&["daemon", "stop"]).expect_code(0);
    assert!(refused.errors().contains("runs as user 65534"), "{refused}");
    let refused = as_root();
    assert!(refused.errors().contains("user 65534"), "{refused}");
    let refused = refused.expect_code(1);
    assert!(
        refused.errors().contains(dir.to_str().unwrap()),
        "{refused}"
    );
}

#[test]
fn nobody_else_can_read_the_catalog() {
    let store = with_files();
    // As an older version left it.
    fs::set_permissions(catalog(&store), fs::Permissions::from_mode(0o644)).unwrap();
    store.ok(["daemon", "start"]);
    for file in ["catalog.db", "catalog.db-wal", "catalog.db-shm", "lock"] {
        let meta = fs::metadata(store.store_dir().join(file)).unwrap();
        assert_eq!(meta.permissions().mode() & 0o077, 0, "{file:?}");
    }
    let fresh = TestStore::new();
    let mode = fs::metadata(catalog(&fresh)).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}

#[test]
fn a_store_may_be_named_through_a_link() {
    let store = TestStore::without_init(&std::env::temp_dir());
    let real = store.base().join("real");
    fs::create_dir(&real).unwrap();
    std::os::unix::fs::symlink(&real, store.store_dir()).unwrap();
    store.ok(["ws", "create", "w"]);
    assert!(real.join("catalog.db").exists());
}

/// A directory called `objects` or `run` once counted as a store's own, whatever was in it.
#[test]
fn leftovers_of_an_init_are_taken_over_only_if_they_are_empty() {
    for part in ["objects", "run"] {
        let store = TestStore::without_init(&std::env::temp_dir());
        fs::create_dir_all(store.store_dir().join(part)).unwrap();
        fs::write(store.store_dir().join(part).join("thesis.tex"), "x").unwrap();
        is_refused(&store, 4, &["not empty", "not a store"]);
        fs::remove_file(store.store_dir().join(part).join("thesis.tex")).unwrap();
        store.ok(["store", "init"]);
    }
}

#[test]
fn stopping_with_a_busy_mount_ends_the_daemon_and_loses_nothing() {
    let store = with_files();
    let live = store.mount("w");
    let mut held = fs::File::create(live.join("held")).unwrap();
    std::io::Write::write_all(&mut held, b"acknowledged").unwrap();
    store.stop_daemon();
    let after = std::io::Write::write_all(&mut held, b"x").unwrap_err();
    assert_eq!(after.raw_os_error(), Some(libc::ENOTCONN));
    drop(held);
    let live = store.mount("w");
    assert_eq!(fs::read(live.join("held")).unwrap(), b"acknowledged");
}

#[test]
fn a_check_names_what_is_wrong_and_ends_with_status_1() {
    let store = with_files();
    store.check();
    assert_eq!(
        store.json(["check"])["problems"].as_array().unwrap().len(),
        0
    );
    store.stop_daemon();
    let object = Tree::scan(&store.store_dir().join("objects"), ScanOptions::ALL)
        .nodes
        .into_iter()
        .find(|(_, node)| node.kind == "file")
        .map(|(path, _)| path)
        .expect("the large file has an object");
    let object = store
        .store_dir()
        .join("objects")
        .join(OsStr::from_bytes(&object));
    fs::remove_file(&object).unwrap();
    fs::write(store.store_dir().join("objects/stranger"), "x").unwrap();
    let found = store.run(["check", "--json"]).expect_code(1).json();
    let mut words: Vec<&str> = found["problems"]
        .as_array()
        .unwrap()
        .iter()
        .map(|problem| problem["problem"].as_str().unwrap())
        .collect();
    words.sort_unstable();
    assert_eq!(words, ["object_file_missing", "unexpected_file"], "{found}");
    let printed = store.run(["check"]).expect_code(1);
    assert_eq!(printed.text().lines().count(), 2, "{printed}");
    assert!(printed.errors().contains("2 problems"), "{printed}");
    // Otherwise the end of this test would find them too.
    store.stop_daemon();
}
