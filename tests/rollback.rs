//! A rollback of a mounted workspace, in place: everything shows the old state at once, open files
//! go on or fail as docs/posix.md says, and the state before is kept.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::Duration;

use floe_harness::command::run;
use floe_harness::python::{Failure, Python, path};
use floe_harness::{Load, Operations, ScanOptions, TestStore, Tree, mounts};

const LARGE: usize = 300_000;
const LIMIT: Duration = Duration::from_secs(60);

fn mounted() -> (TestStore, PathBuf) {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    (store, live)
}

fn scan(root: &Path) -> Tree {
    Tree::scan(root, ScanOptions::ALL)
}

#[track_caller]
fn errno<T>(result: io::Result<T>) -> i32 {
    let error = result.err().expect("an error");
    error.raw_os_error().expect("an error of the system")
}

/// State with every kind of thing that the kernel caches; `change` then makes it another.
fn before(root: &Path) {
    fs::create_dir_all(root.join("dir/sub")).unwrap();
    fs::write(root.join("dir/small"), "old").unwrap();
    fs::write(root.join("dir/large"), vec![b'o'; LARGE]).unwrap();
    fs::write(root.join("removed"), "was here").unwrap();
    fs::hard_link(root.join("removed"), root.join("dir/linked")).unwrap();
    std::os::unix::fs::symlink("old target", root.join("link")).unwrap();
    fs::write(root.join("moved"), "moved").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("dir/small"), "user.k", b"old", flags).unwrap();
}

fn change(root: &Path) {
    fs::write(root.join("dir/small"), "newer and longer").unwrap();
    let large = OpenOptions::new()
        .write(true)
        .open(root.join("dir/large"))
        .unwrap();
    large.write_all_at(b"NEW", 100_000).unwrap();
    large.set_len(200_000).unwrap();
    fs::set_permissions(root.join("dir"), fs::Permissions::from_mode(0o700)).unwrap();
    fs::remove_file(root.join("removed")).unwrap();
    fs::remove_file(root.join("link")).unwrap();
    std::os::unix::fs::symlink("new target", root.join("link")).unwrap();
    fs::rename(root.join("moved"), root.join("dir/sub/moved")).unwrap();
    fs::create_dir(root.join("fresh")).unwrap();
    fs::write(root.join("fresh/file"), "fresh").unwrap();
    fs::write(root.join("new"), "new").unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(root.join("dir/small"), "user.k", b"new", flags).unwrap();
}

#[test]
fn names_attributes_pages_and_absent_names_show_the_old_state_at_once() {
    let (store, live) = mounted();
    let second = store.mount("w");
    before(&live);
    let old = scan(&live);
    store.ok(["snapshot", "w", "--name", "old"]);
    change(&live);
    let new = scan(&live);
    // Everything of the new state is cached, on both mounts: the absence of names, too.
    scan(&second).assert_same(&new);
    for name in ["removed", "moved", "never"] {
        assert!(!second.join(name).exists());
    }
    let kept = store.ok(["rollback", "w", "old"]);
    // Single looks first, each at something else that the kernel may have kept.
    assert_eq!(fs::read(live.join("dir/small")).unwrap(), b"old");
    assert_eq!(fs::read(second.join("removed")).unwrap(), b"was here");
    assert!(!live.join("new").exists() && !second.join("fresh/file").exists());
    assert_eq!(
        fs::metadata(live.join("dir/large")).unwrap().len(),
        LARGE as u64
    );
    assert_eq!(fs::metadata(live.join("removed")).unwrap().nlink(), 2);
    assert_eq!(
        fs::read_link(live.join("link")).unwrap(),
        Path::new("old target")
    );
    for root in [&live, &second] {
        scan(root).assert_same(&old);
    }
    assert_eq!(scan(&live).inos, old.inos);

    scan(&store.mount(&kept)).assert_same(&new);
    // And back, and back again.
    let again = store.ok(["rollback", "w", kept.as_str()]);
    scan(&live).assert_same(&new);
    assert_eq!(scan(&live).inos, new.inos);
    store.ok(["rollback", "w", again.as_str()]);
    scan(&live).assert_same(&old);
    fs::write(live.join("dir/small"), "goes on").unwrap();
    store.stop_daemon();
    let live = store.mount("w");
    assert_eq!(fs::read(live.join("dir/small")).unwrap(), b"goes on");
}

#[test]
fn open_files_go_on_with_the_old_contents_or_are_stale() {
    let (store, live) = mounted();
    before(&live);
    store.ok(["snapshot", "w", "--name", "old"]);
    change(&live);
    let open = |name: &str| {
        let mut options = OpenOptions::new();
        options
            .read(true)
            .write(true)
            .open(live.join(name))
            .unwrap()
    };
    let (small, large, moved) = (open("dir/small"), open("dir/large"), open("dir/sub/moved"));
    let (fresh, new) = (open("fresh/file"), open("new"));
    let mut appender = OpenOptions::new()
        .append(true)
        .open(live.join("dir/small"))
        .unwrap();
    let mut cached = [0; 5];
    fresh.read_exact_at(&mut cached, 0).unwrap();
    store.ok(["rollback", "w", "old"]);

    let mut bytes = vec![0; LARGE];
    assert_eq!(small.read_at(&mut bytes, 0).unwrap(), 3);
    assert_eq!(&bytes[..3], b"old");
    large.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|&byte| byte == b'o'));
    assert_eq!(large.metadata().unwrap().len(), LARGE as u64);
    assert_eq!(moved.read_at(&mut bytes, 0).unwrap(), 5);
    for stale in [&fresh, &new] {
        assert_eq!(errno(stale.read_at(&mut cached, 0)), libc::ESTALE);
        assert_eq!(errno(stale.write_at(b"x", 0)), libc::ESTALE);
        assert_eq!(errno(stale.metadata()), libc::ESTALE);
        assert_eq!(errno(stale.set_len(0)), libc::ESTALE);
        assert_eq!(errno(stale.sync_all()), libc::ESTALE);
    }
    // A descriptor that goes on writes into the old state.
    appender.write_all(b"+").unwrap();
    large.write_all_at(b"L", LARGE as u64).unwrap();
    assert_eq!(fs::read(live.join("dir/small")).unwrap(), b"old+");
    assert_eq!(
        fs::metadata(live.join("dir/large")).unwrap().len(),
        LARGE as u64 + 1
    );
    assert_eq!(
        fs::read(store.mount("w/old").join("dir/small")).unwrap(),
        b"old"
    );
}

#[test]
fn directories_in_use_go_on_or_are_stale() {
    let (store, live) = mounted();
    before(&live);
    store.ok(["snapshot", "w", "--name", "old"]);
    change(&live);
    let mut stays = Python::start();
    stays.ok(&format!("os.chdir({})", path(&live.join("dir"))));
    let mut goes = Python::start();
    goes.ok(&format!(
        "os.chdir({}); d = os.open('.', os.O_RDONLY)",
        path(&live.join("fresh"))
    ));
    assert_eq!(
        goes.ok("result = os.listdir(d)"),
        serde_json::json!(["file"])
    );
    stays.ok("d = os.open('.', os.O_RDONLY); os.listdir(d)");
    store.ok(["rollback", "w", "old"]);
    let listed = stays.ok("result = sorted(os.listdir(d))");
    assert_eq!(
        listed,
        serde_json::json!(["large", "linked", "small", "sub"])
    );
    assert_eq!(stays.text("result = open('small', 'rb').read()"), "old");
    stays.ok("open('made', 'w').write('x')");
    assert_eq!(fs::read(live.join("dir/made")).unwrap(), b"x");
    for code in [
        "os.listdir(d)",
        "os.stat('file')",
        "os.open('y', os.O_CREAT | os.O_WRONLY)",
    ] {
        let number = goes.errno(code);
        assert!(
            [libc::ESTALE, libc::ENOENT].contains(&number),
            "{code}: {number}"
        );
    }
}

#[test]
fn mappings_show_the_old_contents_or_raise_sigbus_and_dirty_pages_are_kept() {
    let (store, live) = mounted();
    fs::write(live.join("stays"), vec![b'o'; LARGE]).unwrap();
    store.ok(["snapshot", "w", "--name", "old"]);
    fs::write(live.join("goes"), vec![b'n'; LARGE]).unwrap();
    let mut python = Python::start();
    python.ok(&format!(
        "maps = []
for name in (b'stays', b'goes'):
    maps.append(mmap.mmap(os.open({} + b'/' + name, os.O_RDWR), {LARGE}))
stays, goes = maps
stays[0:5] = b'dirty'
stays[200000:200005] = b'dirty'
goes[0:5] = b'dirty'",
        path(&live)
    ));
    let kept = store.ok(["rollback", "w", "old"]);
    assert_eq!(
        python.text("result = stays[0:5] + stays[200000:200005]"),
        "oooooooooo"
    );
    python.ok("stays[0:5] = b'later'; stays.flush()");
    assert_eq!(&fs::read(live.join("stays")).unwrap()[..6], b"latero");
    assert_eq!(
        python.run("result = goes[250000]"),
        Err(Failure::Signal(libc::SIGBUS))
    );
    let kept = store.mount(&kept);
    let stays = fs::read(kept.join("stays")).unwrap();
    assert_eq!(
        (&stays[..5], &stays[200_000..200_005]),
        (&b"dirty"[..], &b"dirty"[..])
    );
    assert_eq!(&fs::read(kept.join("goes")).unwrap()[..5], b"dirty");
    let old = store.mount("old");
    assert_eq!(fs::read(old.join("stays")).unwrap(), vec![b'o'; LARGE]);
}

/// Each reader sees only whole states, and the old one from the rollback's return on.
#[test]
fn fifty_readers_that_hold_files_see_one_state_or_the_other() {
    let (store, live) = mounted();
    let name = |number: usize| format!("f{number}");
    let fill = |byte: u8| {
        for number in 0..50 {
            let mut options = OpenOptions::new();
            let file = options
                .create(true)
                .truncate(false)
                .write(true)
                .open(live.join(name(number)));
            file.unwrap().write_all_at(&[byte; 8000], 0).unwrap();
        }
    };
    fill(b'A');
    store.ok(["snapshot", "w", "--name", "a"]);
    fill(b'B');
    store.ok(["snapshot", "w", "--name", "b"]);
    let files: Vec<_> = (0..50)
        .map(|number| File::open(live.join(name(number))).unwrap())
        .collect();
    let files = Arc::new(files);
    let looks = Arc::new(AtomicU64::new(0));
    let (shared, count) = (files.clone(), looks.clone());
    let readers = Load::start(50, move |reader| {
        let mut bytes = [0; 8000];
        shared[reader].read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[0] == b'A' || bytes[0] == b'B', "{}", bytes[0]);
        count.fetch_add(1, Ordering::Relaxed);
    });
    for round in 0..10 {
        let (target, byte) = if round % 2 == 0 {
            ("a", b'A')
        } else {
            ("b", b'B')
        };
        store.ok(["rollback", "w", target]);
        for file in files.iter() {
            let mut bytes = [0; 8000];
            file.read_exact_at(&mut bytes, 0).unwrap();
            assert!(bytes.iter().all(|&seen| seen == byte), "round {round}");
        }
    }
    assert!(readers.stop() >= 50 && looks.load(Ordering::Relaxed) >= 50);
}

/// Writers go on through rollbacks; what they get is success or an error that names a lost file.
#[test]
fn rollbacks_under_a_write_load_leave_one_whole_state() {
    let (store, live) = mounted();
    Operations::new(&live, 5).run(300);
    let base = scan(&live);
    store.ok(["snapshot", "w", "--name", "base"]);
    let root = live.clone();
    let load = Load::start(4, move |writer| {
        let dir = root.join(format!("w{writer}"));
        let result = fs::create_dir_all(&dir)
            .and_then(|()| fs::write(dir.join("a"), vec![b'x'; 100_000]))
            .and_then(|()| fs::rename(dir.join("a"), dir.join("b")))
            .and_then(|()| fs::remove_dir_all(&dir));
        if let Err(error) = result {
            let number = error.raw_os_error();
            let lost = [libc::ESTALE, libc::ENOENT, libc::ENOTDIR];
            assert!(
                number.is_some_and(|number| lost.contains(&number)),
                "{error}"
            );
        }
    });
    let mut kept = Vec::new();
    for _ in 0..20 {
        kept.push(store.ok(["rollback", "w", "base"]));
    }
    assert!(load.stop() > 0);
    store.ok(["rollback", "w", "base"]);
    scan(&live).assert_same(&base);
    let digests = |store: &TestStore| -> Vec<_> {
        let digest = |id: &String| scan(&store.mount(id)).digest();
        kept.iter().step_by(5).map(digest).collect()
    };
    let first = digests(&store);
    store.stop_daemon();
    assert_eq!(digests(&store), first);
    scan(&store.mount("w")).assert_same(&base);
}

#[test]
fn a_rollback_and_snapshots_at_the_same_moment_are_each_whole() {
    let (store, live) = mounted();
    fs::write(live.join("a"), "base").unwrap();
    store.ok(["snapshot", "w", "--name", "base"]);
    fs::write(live.join("a"), "later").unwrap();
    let barrier = Barrier::new(4);
    let taken: Vec<String> = std::thread::scope(|scope| {
        let take = || {
            barrier.wait();
            (0..5).map(|_| store.snapshot("w")).collect::<Vec<_>>()
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(take)).collect();
        barrier.wait();
        store.ok(["rollback", "w", "base"]);
        threads
            .into_iter()
            .flat_map(|thread| thread.join().unwrap())
            .collect()
    });
    assert_eq!(fs::read(live.join("a")).unwrap(), b"base");
    for id in taken {
        let text = fs::read(store.mount(&id).join("a")).unwrap();
        assert!(text == b"base" || text == b"later");
    }
}

#[test]
fn an_unmounted_workspace_and_a_workspace_with_a_fork_roll_back_alone() {
    let (store, live) = mounted();
    fs::write(live.join("a"), "1").unwrap();
    let first = store.snapshot("w");
    fs::write(live.join("a"), "2").unwrap();
    store.ok(["fork", "w", "f"]);
    let fork = store.mount("f");
    store.umount(&live);
    store.ok(["rollback", "w", first.as_str()]);
    let live = store.mount("w");
    assert_eq!(fs::read(live.join("a")).unwrap(), b"1");
    assert_eq!(fs::read(fork.join("a")).unwrap(), b"2");
    // A fork may go back to what its origin was.
    store.ok(["rollback", "f", first.as_str()]);
    assert_eq!(fs::read(fork.join("a")).unwrap(), b"1");
    fs::write(fork.join("a"), "3").unwrap();
    assert_eq!(fs::read(live.join("a")).unwrap(), b"1");
}

#[test]
fn a_rollback_that_would_detach_what_is_mounted_inside_is_refused() {
    // Once the kernel dropped all names of the workspace, and with them what was mounted there.
    let (store, live) = mounted();
    store.ok(["ws", "create", "v"]);
    fs::create_dir(live.join("a dir")).unwrap();
    fs::create_dir(live.join("v")).unwrap();
    store.ok(["snapshot", "w", "--name", "s"]);
    fs::write(live.join("later"), "").unwrap();
    let (tmpfs, inner) = (live.join("a dir"), live.join("v"));
    let mut mount = Command::new("mount");
    mount.args(["-t", "tmpfs", "none"]).arg(&tmpfs);
    run(&mut mount, LIMIT).expect_code(0);
    store.ok(["mount", "v", inner.to_str().unwrap()]);
    let snapshots = store.json(["snap", "list"]);

    let refused = store.fails(4, ["rollback", "w", "s"]).errors();
    for dir in [&tmpfs, &inner] {
        assert!(refused.contains(dir.to_str().unwrap()), "{refused}");
        assert!(mounts::is_mounted(dir), "{}", dir.display());
    }
    let hint = format!("`umount {} '{}'`", inner.display(), tmpfs.display());
    assert!(refused.contains(&hint), "{refused}");
    assert_eq!(store.json(["snap", "list"]), snapshots);
    assert!(live.join("later").exists());

    // The hint is all it takes.
    let mut umount = Command::new("umount");
    run(umount.arg(&inner).arg(&tmpfs), LIMIT).expect_code(0);
    store.ok(["rollback", "w", "s"]);
    assert!(!live.join("later").exists());
}

#[test]
fn locks_stay_with_their_descriptors() {
    let (store, live) = mounted();
    fs::write(live.join("lock"), "").unwrap();
    store.ok(["snapshot", "w", "--name", "s"]);
    let mut held = OpenOptions::new()
        .read(true)
        .write(true)
        .open(live.join("lock"))
        .unwrap();
    held.lock().unwrap();
    held.write_all(b"changed").unwrap();
    store.ok(["rollback", "w", "s"]);
    let other = File::open(live.join("lock")).unwrap();
    assert!(other.try_lock().is_err());
    drop(held);
    other.try_lock().unwrap();
    let mut text = String::new();
    (&other).read_to_string(&mut text).unwrap();
    assert_eq!(text, "");
}

/// A rollback once silently took the state of a deleted workspace of the same name.
#[test]
fn a_deleted_workspace_leaves_nothing_to_one_of_its_name() {
    let store = TestStore::new();
    store.ok(["ws", "create", "w"]);
    let old = store.ok(["snapshot", "w", "--name", "base"]);
    // While nobody has the name, what it left can be found by it.
    store.ok(["ws", "delete", "w"]);
    assert_eq!(store.json(["snap", "show", "w/base"])["id"], old);
    assert_eq!(store.json(["snap", "show", "base"])["id"], old);
    store.ok(["ws", "create", "w"]);
    for reference in ["base", "w/base"] {
        store.fails(3, ["rollback", "w", reference]);
    }
    store.fails(3, ["snap", "show", "w/base"]);
    assert_eq!(
        store
            .json(["snap", "list", "--ws", "w"])
            .as_array()
            .unwrap()
            .len(),
        0
    );
    assert!(store.json(["ws", "show", "w"])["parent"].is_null());
    let drawn = store.ok(["snap", "tree", "--ws", "w"]);
    assert!(!drawn.contains(&old), "{drawn}");

    // Two of the name: the live one's is meant.
    let new = store.ok(["snapshot", "w", "--name", "base"]);
    for reference in ["base", "w/base"] {
        assert_eq!(store.json(["snap", "show", reference])["id"], new);
        store.ok(["rollback", "w", reference]);
    }
    assert_eq!(store.json(["ws", "show", "w"])["parent"], new);
    // Whoever names the other one gets it.
    store.ok(["rollback", "w", old.as_str()]);
    assert_eq!(store.json(["ws", "show", "w"])["parent"], old);
}
