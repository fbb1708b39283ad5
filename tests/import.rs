//! `floe ws create --from DIR --copy` keeps everything that a file has, or says which file it
//! cannot take and makes nothing.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use floe_harness::command::run;
use floe_harness::{Load, Operations, Output, ScanOptions, TestStore, Tree, Watchdog};
use rustix::fs::{AtFlags, CWD, FileType, Mode, Timespec, Timestamps, XattrFlags};
use rustix::mount::{UnmountFlags, mount_bind, unmount};

fn source(store: &TestStore) -> PathBuf {
    let dir = store.base().join("source");
    fs::create_dir(&dir).unwrap();
    dir
}

fn import(store: &TestStore, name: &str, dir: &Path) -> Output {
    let args = ["ws", "create", name, "--copy", "--from"].map(OsString::from);
    store.run(args.into_iter().chain([dir.as_os_str().to_owned()]))
}

/// Imports and compares everything that can be read.
fn is_same(store: &TestStore, dir: &Path) -> PathBuf {
    import(store, "w", dir).expect_code(0);
    let live = store.mount("w");
    let taken = Tree::scan(&live, ScanOptions::ALL);
    taken.assert_same(&Tree::scan(dir, ScanOptions::ALL));
    live
}

#[track_caller]
fn makes_nothing(store: &TestStore, output: &Output, words: &[&str]) {
    for word in words {
        assert!(output.errors().contains(word), "no {word:?} in\n{output}");
    }
    assert_eq!(store.ok(["ws", "list", "-q"]), "");
}

fn set_times(path: &Path, seconds: i64, nanos: i64) {
    let time = Timespec {
        tv_sec: seconds,
        tv_nsec: nanos,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

#[test]
fn kinds_modes_owners_and_times_are_kept() {
    let store = TestStore::new();
    let dir = source(&store);
    let at = |name: &str| dir.join(name);
    for (name, kind, device) in [
        ("null", FileType::CharacterDevice, rustix::fs::makedev(1, 3)),
        (
            "large minor",
            FileType::CharacterDevice,
            rustix::fs::makedev(300, 70_000),
        ),
        ("block", FileType::BlockDevice, rustix::fs::makedev(7, 250)),
        ("fifo", FileType::Fifo, 0),
    ] {
        rustix::fs::mknodat(CWD, at(name), kind, Mode::from_raw_mode(0o640), device).unwrap();
    }
    drop(UnixListener::bind(at("socket")).unwrap());
    symlink("nowhere", at("dangling")).unwrap();
    symlink("x".repeat(4095), at("long link")).unwrap();
    symlink(OsStr::from_bytes(b"\xff\n"), at("odd link")).unwrap();
    for mode in [0o000, 0o7777, 0o4711, 0o2755, 0o1777, 0o600] {
        let file = at(&format!("file {mode:o}"));
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::chown(&file, Some(1234), Some(4_000_000_000)).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(mode)).unwrap();
        let sub = at(&format!("dir {mode:o}"));
        fs::create_dir(&sub).unwrap();
        fs::set_permissions(&sub, fs::Permissions::from_mode(mode)).unwrap();
    }
    std::os::unix::fs::lchown(at("dangling"), Some(55), Some(66)).unwrap();
    for (name, seconds, nanos) in [
        ("null", -1, 999_999_999),
        ("fifo", -2_000_000_000, 1),
        ("dangling", 5_000_000_000, 123_456_789),
        ("file 600", 0, 0),
        ("dir 2755", 10_000_000_000, 1),
    ] {
        set_times(&at(name), seconds, nanos);
    }
    set_times(&dir, -5, 7);
    let live = is_same(&store, &dir);
    assert_eq!(
        fs::metadata(live.join("fifo")).unwrap().mtime(),
        -2_000_000_000
    );
    assert_eq!(
        fs::metadata(live.join("file 7777")).unwrap().mode() & 0o7777,
        0o7777
    );
    assert_eq!(
        fs::symlink_metadata(live.join("dangling")).unwrap().mtime(),
        5_000_000_000
    );
    assert_eq!(fs::metadata(&live).unwrap().mtime_nsec(), 7);
}

#[test]
fn hard_links_attributes_and_acls_are_kept() {
    let store = TestStore::new();
    let dir = source(&store);
    fs::create_dir_all(dir.join("a/b")).unwrap();
    fs::write(dir.join("one"), vec![b'1'; 100_000]).unwrap();
    for name in ["two", "a/three", "a/b/four"] {
        fs::hard_link(dir.join("one"), dir.join(name)).unwrap();
    }
    symlink("one", dir.join("link")).unwrap();
    fs::hard_link(dir.join("link"), dir.join("a/link")).unwrap();
    let flags = XattrFlags::empty();
    rustix::fs::setxattr(dir.join("one"), "user.empty", b"", flags).unwrap();
    rustix::fs::setxattr(dir.join("one"), "user.\u{fc}", &[0xff; 2000], flags).unwrap();
    rustix::fs::setxattr(dir.join("a"), "trusted.t", b"\0\n", flags).unwrap();
    rustix::fs::lsetxattr(dir.join("link"), "trusted.on-link", b"1", flags).unwrap();
    rustix::fs::setxattr(dir.join("two"), "security.s", b"1", flags).unwrap();
    let acls = "setfacl -m u:1:rwx,g:2:r,m::rx one; setfacl -m u:7:rx -d -m u:8:rwx,o::- a";
    run(
        Command::new("sh").args(["-ec", acls]).current_dir(&dir),
        Duration::from_secs(20),
    )
    .expect_code(0);
    let live = is_same(&store, &dir);
    let one = fs::metadata(live.join("one")).unwrap();
    assert_eq!(
        (one.nlink(), one.ino()),
        (4, fs::metadata(live.join("a/b/four")).unwrap().ino())
    );
    // They are one file from now on, too.
    fs::write(live.join("two"), "changed").unwrap();
    assert_eq!(fs::read(live.join("a/three")).unwrap(), b"changed");
    assert_eq!(
        fs::read(dir.join("one")).unwrap().len(),
        100_000,
        "and not the source's"
    );
}

#[test]
fn holes_stay_holes() {
    let store = TestStore::new();
    let dir = source(&store);
    let file = File::create(dir.join("sparse")).unwrap();
    file.set_len(1 << 40).unwrap();
    file.write_all_at(&[1; 5000], 500 << 20).unwrap();
    file.write_all_at(&[2; 10], (1 << 40) - 10).unwrap();
    File::create(dir.join("only a hole"))
        .unwrap()
        .set_len(10 << 20)
        .unwrap();
    fs::write(dir.join("zeros"), vec![0; 200_000]).unwrap();
    import(&store, "w", &dir).expect_code(0);
    let live = store.mount("w");
    let meta = |name: &str| fs::metadata(live.join(name)).unwrap();
    assert_eq!(meta("sparse").len(), 1 << 40);
    assert!(
        meta("sparse").blocks() * 512 <= 512 << 10,
        "{} blocks",
        meta("sparse").blocks()
    );
    assert_eq!(
        (meta("only a hole").len(), meta("only a hole").blocks()),
        (10 << 20, 0)
    );
    let file = File::open(live.join("sparse")).unwrap();
    let mut bytes = [9; 10];
    for (at, expected) in [
        (0, 0),
        (500 << 20, 1),
        ((500 << 20) + 5000, 0),
        ((1 << 40) - 10, 2),
    ] {
        file.read_exact_at(&mut bytes, at).unwrap();
        assert_eq!(bytes, [expected; 10], "at {at}");
    }
    assert_eq!(fs::read(live.join("zeros")).unwrap(), vec![0; 200_000]);
}

#[test]
fn odd_names_and_deep_trees_are_kept() {
    let store = TestStore::new();
    let dir = source(&store);
    let mut names: Vec<Vec<u8>> = [
        &b".wh.x"[..],
        b"@x",
        b"new\nline",
        b"\xff\xfe",
        b" ",
        b"-rf",
        b"*",
        b"..a",
        b".floe",
        b"\x01\x7f",
    ]
    .map(<[u8]>::to_vec)
    .to_vec();
    names.push(vec![b'n'; 255]);
    names.push(vec![0xfe; 255]);
    names.extend(
        (1..=255)
            .filter(|&byte| byte != b'/')
            .map(|byte: u8| vec![b'b', byte]),
    );
    for name in &names {
        fs::write(dir.join(OsStr::from_bytes(name)), name).unwrap();
    }
    let mut deep = dir.clone();
    // Of this depth the whole path still fits into PATH_MAX.
    for _ in 0..300 {
        deep.push("directory");
        fs::create_dir(&deep).unwrap();
    }
    fs::write(deep.join("file"), "deep").unwrap();
    let live = is_same(&store, &dir);
    let listed: Vec<_> = fs::read_dir(&live)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    for name in names {
        assert!(listed.contains(&OsString::from_vec(name)));
    }
}

#[test]
fn a_tree_of_random_operations_is_the_same() {
    let store = TestStore::new();
    let dir = source(&store);
    Operations::new(&dir, 77).run(1500);
    is_same(&store, &dir);
}

#[test]
fn a_directory_that_holds_the_store_is_refused() {
    let store = TestStore::new();
    for dir in [store.base().to_path_buf(), store.store_dir(), "/".into()] {
        let refused = import(&store, "w", &dir).expect_code(2);
        makes_nothing(&store, &refused, &["contains the store"]);
    }
    symlink(store.base(), store.base().join("link")).unwrap();
    let refused = import(&store, "w", &store.base().join("link")).expect_code(2);
    makes_nothing(&store, &refused, &["contains the store"]);
    // Nor under another name.
    let elsewhere = store.base().join("elsewhere");
    fs::create_dir(&elsewhere).unwrap();
    for part in ["", "objects"] {
        mount_bind(store.store_dir().join(part), &elsewhere).unwrap();
        let refused = import(&store, "w", &elsewhere);
        unmount(&elsewhere, UnmountFlags::empty()).unwrap();
        makes_nothing(&store, &refused.expect_code(2), &["contains the store"]);
    }
    fs::write(store.base().join("file"), "").unwrap();
    let refused = import(&store, "w", &store.base().join("file")).expect_code(1);
    makes_nothing(&store, &refused, &["file"]);
}

/// The daemon then serves what it reads itself.
#[test]
fn a_mounted_workspace_and_a_mounted_snapshot_can_be_imported() {
    let store = TestStore::new();
    store.ok(["ws", "create", "from"]);
    let live = store.mount("from");
    let _watchdog = Watchdog::start(store.daemon().unwrap(), Duration::from_secs(60));
    Operations::new(&live, 3).run(500);
    let id = store.snapshot("from");
    let frozen = store.mount(&id);
    let tree = Tree::scan(&live, ScanOptions::ALL);
    for (name, dir) in [("live", &live), ("frozen", &frozen)] {
        import(&store, name, dir).expect_code(0);
        Tree::scan(&store.mount(name), ScanOptions::ALL).assert_same(&tree);
    }
}

/// The walk goes through what is mounted in the directory. That may be the store's own.
#[test]
fn mounts_of_the_store_inside_a_directory_are_taken_once() {
    let store = TestStore::new();
    let dir = source(&store);
    let point = dir.join("point");
    fs::create_dir(&point).unwrap();
    fs::write(dir.join("file"), "base").unwrap();
    let live = is_same(&store, &dir);
    let _watchdog = Watchdog::start(store.daemon().unwrap(), Duration::from_secs(60));
    // The workspace made from the directory, mounted in it, and once more inside itself.
    fs::create_dir(live.join("point/self")).unwrap();
    for at in [&point, &live.join("point/self")] {
        let args = ["mount", "w"].map(OsString::from);
        store.ok(args.into_iter().chain([at.as_os_str().to_owned()]));
    }
    assert!(point.join("point/self").exists() && live.join("point/self/point/self").exists());
    for (name, from) in [("outer", &dir), ("inner", &live)] {
        import(&store, name, from).expect_code(0);
        let taken = store.mount(name);
        let tree = Tree::scan(&taken, ScanOptions::ALL);
        tree.assert_same(&Tree::scan(from, ScanOptions::ALL));
        let deepest = tree
            .nodes
            .keys()
            .map(|path| path.split(|&byte| byte == b'/').count());
        assert_eq!(deepest.max(), Some(if name == "outer" { 3 } else { 4 }));
    }
}

/// By another name, the store is no part of the directory's path.
#[test]
fn the_store_mounted_inside_a_directory_is_refused() {
    let store = TestStore::new();
    let dir = source(&store);
    let point = dir.join("sub/point");
    fs::create_dir_all(&point).unwrap();
    mount_bind(store.store_dir(), &point).unwrap();
    let refused = import(&store, "w", &dir);
    rustix::mount::unmount(&point, rustix::mount::UnmountFlags::DETACH).unwrap();
    makes_nothing(&store, &refused.expect_code(2), &["contains the store"]);
}

#[test]
fn nothing_but_one_line_is_printed_where_nobody_watches() {
    let store = TestStore::new();
    let dir = source(&store);
    for number in 0..2000 {
        fs::write(dir.join(number.to_string()), "x").unwrap();
    }
    let output = import(&store, "w", &dir).expect_code(0);
    assert!(output.stdout.is_empty(), "{output}");
    assert_eq!(output.errors().lines().count(), 1, "{output}");
    assert!(
        !output.stderr.contains(&b'\r') && !output.stderr.contains(&0x1b),
        "{output}"
    );
    assert!(output.errors().contains("2000 files"), "{output}");
    let mut command = store.command();
    command
        .args(["ws", "create", "v", "--json", "--copy", "--from"])
        .arg(&dir);
    let json = run(&mut command, Duration::from_secs(60)).expect_code(0);
    assert!(json.stderr.is_empty());
    let report = json.json();
    assert_eq!(
        (&report["name"], &report["import"]["files"]),
        (&"v".into(), &2000.into())
    );
    assert_eq!(report["import"]["bytes"], 2000);
}

/// A dead FUSE mount stands for a disk that cannot be read.
#[test]
fn an_entry_that_cannot_be_read_is_named() {
    let broken = TestStore::new();
    broken.ok(["ws", "create", "w"]);
    let store = TestStore::new();
    let dir = source(&store);
    fs::write(dir.join("a"), "1").unwrap();
    let point = broken.mount("w");
    let inside = point.parent().unwrap();
    broken.kill_daemon();
    let failed = import(&store, "w", inside).expect_code(1);
    makes_nothing(&store, &failed, &[point.to_str().unwrap(), "not connected"]);
    import(&store, "w", &dir).expect_code(0);
    broken.ok(["daemon", "start"]);
}

#[test]
fn files_that_come_and_go_meanwhile_are_taken_or_named() {
    let store = TestStore::new();
    let dir = source(&store);
    for number in 0..500 {
        fs::write(dir.join(format!("stays{number}")), "x").unwrap();
    }
    let moving = dir.clone();
    let load = Load::start(2, move |thread| {
        let file = moving.join(format!("comes and goes {thread}"));
        fs::write(&file, vec![b'x'; 20_000]).unwrap();
        fs::remove_file(&file).unwrap();
    });
    for round in 0..10 {
        let name = format!("w{round}");
        let output = import(&store, &name, &dir);
        if output.code == Some(0) {
            let live = store.mount(&name);
            let stays = |name: OsString| name.as_bytes().starts_with(b"stays");
            let names = fs::read_dir(&live)
                .unwrap()
                .map(|entry| entry.unwrap().file_name());
            assert_eq!(names.filter(|name| stays(name.clone())).count(), 500);
            store.umount(&live);
            store.ok(["ws", "delete", name.as_str()]);
        } else {
            makes_nothing(&store, &output.expect_code(1), &["comes and goes"]);
        }
    }
    assert!(load.stop() > 0);
}

/// Interrupts an import under way and waits until the daemon has stopped working on it.
fn interrupt_an_import(store: &TestStore) {
    const FILES: usize = 8_000;
    let source = source(store);
    for number in 0..FILES {
        fs::write(source.join(number.to_string()), [b'x'; 9000]).unwrap();
    }
    store.ok(["daemon", "start"]);
    let mut command = store.command();
    command.args(["ws", "create", "half", "--copy", "--from"]);
    let mut import = command.arg(&source).spawn().unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    while store.object_files() < 100 {
        assert!(Instant::now() < deadline, "nothing was imported");
        std::thread::sleep(Duration::from_millis(5));
    }
    let pid = rustix::process::Pid::from_child(&import);
    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
    assert_eq!(import.wait().unwrap().code(), Some(130));
    let mut before = usize::MAX;
    while store.object_files() != before {
        before = store.object_files();
        std::thread::sleep(Duration::from_millis(300));
    }
    assert!(before < FILES, "the import went on to its end");
}

/// The daemon once went on, and deleted the workspace in the end, if the client had not gone just
/// then.
#[test]
fn an_interrupted_import_stops_and_leaves_no_workspace() {
    let store = TestStore::new();
    interrupt_an_import(&store);
    assert_eq!(store.ok(["ws", "list", "-q"]), "");
    store.ok(["ws", "create", "half"]);
}

#[test]
fn an_interrupted_import_leaves_no_objects() {
    let store = TestStore::new();
    interrupt_an_import(&store);
    // They are removed by a thread that nobody waits for.
    let deadline = Instant::now() + Duration::from_secs(5);
    while store.object_files() > 0 && Instant::now() < deadline {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(store.object_files(), 0, "objects are left of nothing");
}
