//! Frozen means frozen, and a snapshot holds what it must: everything acknowledged before it was
//! asked for, nothing begun after it returned, pages of shared mappings included.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_harness::command::run;
use floe_harness::python::{Python, path};
use floe_harness::{Operations, ScanOptions, TestStore, Tree};

/// Larger than what is kept inline and than one block.
const LARGE: usize = 300_000;

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
fn sh(script: &str, args: &[&Path]) -> String {
    let mut command = Command::new("sh");
    command.args(["-ec", script, "sh"]).args(args);
    run(&mut command, Duration::from_secs(60))
        .expect_code(0)
        .text()
}

#[test]
fn a_snapshot_is_the_tree_at_that_moment_and_stays_so() {
    let (store, live) = mounted();
    let mut operations = Operations::new(&live, 11);
    let mut taken: Vec<(String, Tree)> = Vec::new();
    for _ in 0..6 {
        operations.run(150);
        let id = store.snapshot("w");
        taken.push((id, scan(&live)));
    }
    for (id, tree) in &taken {
        let frozen = store.mount(id);
        scan(&frozen).assert_same(tree);
    }
    operations.run(300);
    store.stop_daemon();
    for (id, tree) in &taken {
        let frozen = store.mount(id);
        scan(&frozen).assert_same(tree);
        assert_eq!(scan(&frozen).inos, tree.inos, "inode numbers stay");
    }
}

#[test]
fn a_mounted_snapshot_refuses_every_change_by_root() {
    let (store, live) = mounted();
    fs::write(live.join("a"), "1").unwrap();
    fs::create_dir(live.join("d")).unwrap();
    let id = store.snapshot("w");
    let frozen = store.mount(&id);
    let before = scan(&frozen);
    let (a, d, new) = (frozen.join("a"), frozen.join("d"), frozen.join("new"));
    let mode = fs::Permissions::from_mode(0o600);
    let refused = [
        fs::write(&a, "2").err(),
        fs::write(&new, "2").err(),
        fs::create_dir(&new).err(),
        fs::remove_file(&a).err(),
        fs::remove_dir(&d).err(),
        fs::rename(&a, &new).err(),
        fs::hard_link(&a, &new).err(),
        std::os::unix::fs::symlink("x", &new).err(),
        fs::set_permissions(&a, mode).err(),
        OpenOptions::new().write(true).open(&a).err(),
        std::os::unix::fs::chown(&a, Some(1), Some(1)).err(),
    ];
    for (number, error) in refused.into_iter().enumerate() {
        let error = error.unwrap_or_else(|| panic!("change {number} succeeded"));
        assert_eq!(error.raw_os_error(), Some(libc::EROFS), "change {number}");
    }
    scan(&frozen).assert_same(&before);
}

/// What a test holds open across a freeze, and what it does to it afterwards.
#[test]
fn descriptors_held_across_a_freeze_never_reach_the_frozen_layer() {
    for len in [100, LARGE] {
        let (store, live) = mounted();
        let names = ["ro", "rw", "append", "direct", "trunc"];
        for name in names {
            fs::write(live.join(name), vec![b'a'; len]).unwrap();
        }
        let open = |name: &str, options: &mut OpenOptions| options.open(live.join(name)).unwrap();
        let mut rw_options = OpenOptions::new();
        rw_options.read(true).write(true);
        let mut ro = open("ro", OpenOptions::new().read(true));
        let ro_other = open("ro", &mut rw_options.clone());
        let rw = open("rw", &mut rw_options.clone());
        let append = open("append", OpenOptions::new().append(true));
        let direct = open("direct", rw_options.clone().custom_flags(libc::O_DIRECT));
        let trunc = open("trunc", &mut rw_options.clone());
        let mut start = [0; 10];
        ro.read_exact(&mut start).unwrap();

        let id = store.snapshot("w");
        let frozen = store.mount(&id);
        let before = scan(&frozen);
        ro_other.write_all_at(b"LATER", 0).unwrap();
        rw.write_all_at(b"LATER", 50).unwrap();
        (&append).write_all(b"LATER").unwrap();
        direct.write_all_at(&[b'L'; 4096], 0).unwrap();
        trunc.set_len(10).unwrap();
        // A descriptor that was opened read-only before the copy-up sees what is written after it.
        let mut seen = Vec::new();
        ro.rewind().unwrap();
        ro.read_to_end(&mut seen).unwrap();
        assert_eq!(&seen[..6], b"LATERa");
        assert_eq!(seen.len(), len);
        for (name, expected) in [("ro", 0), ("rw", 50), ("append", len)] {
            let bytes = fs::read(live.join(name)).unwrap();
            assert_eq!(&bytes[expected..expected + 5], b"LATER", "{name}");
        }
        scan(&frozen).assert_same(&before);
        store.umount(&frozen);
        store.stop_daemon();
        let frozen = store.mount(&id);
        scan(&frozen).assert_same(&before);
        for name in names {
            assert_eq!(
                fs::read(frozen.join(name)).unwrap(),
                vec![b'a'; len],
                "{name}"
            );
        }
    }
}

#[test]
fn mappings_held_across_a_freeze_never_reach_the_frozen_layer() {
    let (store, live) = mounted();
    for name in ["shared", "private", "reader"] {
        fs::write(live.join(name), vec![b'a'; LARGE]).unwrap();
    }
    let mut python = Python::start();
    python.ok(&format!(
        "def m(name, access):
    f = os.open({} + b'/' + name, os.O_RDWR)
    return mmap.mmap(f, {LARGE}, access=access)
shared = m(b'shared', mmap.ACCESS_WRITE)
private = m(b'private', mmap.ACCESS_COPY)
reader = m(b'reader', mmap.ACCESS_READ)
shared[0:6] = b'BEFORE'
private[0:6] = b'BEFORE'
result = reader[0:6]",
        path(&live)
    ));
    let id = store.snapshot("w");
    let frozen = store.mount(&id);
    let before = scan(&frozen);
    let start = |root: &Path, name: &str| fs::read(root.join(name)).unwrap()[..6].to_vec();
    assert_eq!(
        start(&frozen, "shared"),
        b"BEFORE",
        "a dirty page is in the snapshot"
    );
    assert_eq!(start(&frozen, "private"), b"aaaaaa", "a private one is not");

    python.ok("shared[0:6] = b'AFTER!'; shared[200000:200006] = b'AFTER!'; private[9:12] = b'xyz'");
    fs::write(live.join("reader"), vec![b'Z'; LARGE]).unwrap();
    assert_eq!(
        python.text("result = reader[0:6]"),
        "ZZZZZZ",
        "one page cache"
    );
    python.ok("shared.flush()");
    assert_eq!(start(&live, "shared"), b"AFTER!");
    scan(&frozen).assert_same(&before);
    let later = store.snapshot("w");
    store.stop_daemon();
    drop(python);
    scan(&store.mount(&id)).assert_same(&before);
    assert_eq!(start(&store.mount(&later), "shared"), b"AFTER!");
}

#[test]
fn dirty_pages_of_open_closed_and_mapped_files_are_in_the_snapshot() {
    let (store, live) = mounted();
    let mut python = Python::start();
    python.ok(&format!(
        "maps = []
for name in (b'open', b'closed', b'unlinked'):
    f = os.open({} + b'/' + name, os.O_RDWR | os.O_CREAT)
    os.ftruncate(f, {LARGE})
    maps.append(mmap.mmap(f, {LARGE}))
    if name == b'closed': os.close(f)
os.unlink({0} + b'/unlinked')
for m in maps:
    m[100:105] = b'dirty'
    m[250000:250005] = b'dirty'",
        path(&live)
    ));
    let id = store.snapshot("w");
    let frozen = store.mount(&id);
    for name in ["open", "closed"] {
        let bytes = fs::read(frozen.join(name)).unwrap();
        assert_eq!(bytes.len(), LARGE);
        for at in [100, 250_000] {
            assert_eq!(&bytes[at..at + 5], b"dirty", "{name} at {at}");
        }
    }
    assert!(!frozen.join("unlinked").exists());
    // What a snapshot relies on when it asks only for files that are open for reading as well.
    let refused = python.text(&format!(
        "try: mmap.mmap(os.open({} + b'/open', os.O_WRONLY), {LARGE}); result = 'mapped'
except PermissionError: result = 'refused'",
        path(&live)
    ));
    assert_eq!(refused, "refused");
    assert_eq!(python.text("result = maps[2][100:105]"), "dirty");
    assert_eq!(
        python.text("maps[2][0:3] = b'new'; result = maps[2][0:3]"),
        "new"
    );
}

#[test]
fn a_file_that_was_removed_while_open_survives_snapshots() {
    let (store, live) = mounted();
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(live.join("a"))
        .unwrap();
    file.write_all(&vec![b'a'; LARGE]).unwrap();
    fs::remove_file(live.join("a")).unwrap();
    let id = store.snapshot("w");
    file.write_all_at(b"after", 70_000).unwrap();
    let _ = store.snapshot("w");
    let mut back = [0; 5];
    file.read_exact_at(&mut back, 70_000).unwrap();
    assert_eq!(&back, b"after");
    assert_eq!(file.metadata().unwrap().len(), LARGE as u64);
    drop(file);
    let frozen = store.mount(&id);
    assert_eq!(fs::read_dir(frozen).unwrap().count(), 0);
}

#[test]
fn two_mounts_of_a_workspace_are_one_file_system() {
    let (store, one) = mounted();
    let two = store.mount("w");
    fs::write(one.join("a"), "first").unwrap();
    assert_eq!(fs::read(two.join("a")).unwrap(), b"first");
    let mut held = File::open(two.join("a")).unwrap();
    fs::write(one.join("a"), "second").unwrap();
    let mut seen = String::new();
    held.read_to_string(&mut seen).unwrap();
    assert_eq!(seen, "second");
    fs::remove_file(two.join("a")).unwrap();
    assert!(!one.join("a").exists());

    // flock, and a record lock of another process.
    let lock = File::create(one.join("lock")).unwrap();
    lock.lock().unwrap();
    let other = File::open(two.join("lock")).unwrap();
    assert!(other.try_lock().is_err(), "the other mount sees the flock");
    lock.unlock().unwrap();
    other.try_lock().unwrap();
    let (mut a, mut b) = (Python::start(), Python::start());
    let lockf = |dir: &Path| {
        format!(
            "f = open({}, 'r+'); fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 5)",
            path(&dir.join("lock"))
        )
    };
    a.ok(&lockf(&one));
    assert_eq!(b.errno(&lockf(&two)), libc::EAGAIN);
    drop(a);
    b.ok(&lockf(&two));
}

#[test]
fn a_mapping_on_one_mount_shows_writes_on_the_other() {
    let (store, one) = mounted();
    let two = store.mount("w");
    fs::write(one.join("a"), vec![b'a'; 10_000]).unwrap();
    let mut python = Python::start();
    python.ok(&format!(
        "f = os.open({}, os.O_RDWR); m = mmap.mmap(f, 10000)",
        path(&two.join("a"))
    ));
    let file = OpenOptions::new().write(true).open(one.join("a")).unwrap();
    file.write_all_at(b"write", 5000).unwrap();
    assert_eq!(python.text("result = m[5000:5005]"), "write");
    python.ok("m[0:5] = b'store'");
    assert_eq!(&fs::read(one.join("a")).unwrap()[..5], b"store");
}

#[test]
fn snapshots_back_to_back_differ_by_what_was_done_between_them() {
    let (store, live) = mounted();
    let mut taken = Vec::new();
    for number in 0..30 {
        fs::write(live.join("counter"), number.to_string()).unwrap();
        fs::write(live.join(format!("file{number}")), "x").unwrap();
        taken.push(store.snapshot("w"));
        taken.push(store.snapshot("w"));
    }
    for (index, id) in taken.iter().enumerate().step_by(7) {
        let frozen = store.mount(id);
        let number = index / 2;
        assert_eq!(
            fs::read_to_string(frozen.join("counter")).unwrap(),
            number.to_string()
        );
        assert_eq!(fs::read_dir(&frozen).unwrap().count(), number + 2);
    }
}

#[test]
fn modes_follow_umask_and_default_acls_and_are_kept() {
    let (store, live) = mounted();
    sh(
        "cd $1; umask 027; : >plain; mkdir dir; umask 077
         mkdir shared; setfacl -d -m u:1234:rwx,g::r-x,o::- shared
         umask 022; : >shared/file; mkdir shared/dir; setfacl -m u:99:r plain",
        &[&live],
    );
    let mode = |root: &Path, name: &str| {
        fs::metadata(root.join(name)).unwrap().permissions().mode() & 0o7777
    };
    let id = store.snapshot("w");
    sh(
        "setfacl -b $1/plain; setfacl -R -b $1/shared; chmod 777 $1/dir",
        &[&live],
    );
    let frozen = store.mount(&id);
    assert_eq!(mode(&frozen, "dir"), 0o750);
    assert_eq!(mode(&frozen, "plain"), 0o640);
    assert_eq!(mode(&live, "dir"), 0o777);
    let acls = sh(
        "cd $1; getfacl -np plain shared/file shared/dir",
        &[&frozen],
    );
    assert!(acls.contains("user:99:r--"), "{acls}");
    // A default ACL takes the place of the umask.
    assert_eq!(acls.matches("user:1234:rwx").count(), 3, "{acls}");
    assert!(acls.contains("default:user:1234:rwx"), "{acls}");
    assert_eq!(mode(&frozen, "shared/file") & 0o007, 0, "{acls}");
    let gone = sh("cd $1; getfacl -np plain shared/file shared/dir", &[&live]);
    assert!(
        !gone.contains("1234") && !gone.contains("user:99"),
        "{gone}"
    );
}

#[test]
fn a_deep_chain_shows_old_and_new_files_alike() {
    let (store, live) = mounted();
    fs::write(live.join("oldest"), vec![b'o'; LARGE]).unwrap();
    for number in 0..200_u64 {
        let name = live.join("each");
        let file = OpenOptions::new()
            .create(true)
            .write(true)
            .truncate(false)
            .open(name)
            .unwrap();
        file.write_all_at(&[b'x'; 10], number * 1000).unwrap();
        let _ = store.snapshot("w");
    }
    store.stop_daemon();
    let live = store.mount("w");
    assert_eq!(fs::read(live.join("oldest")).unwrap(), vec![b'o'; LARGE]);
    let each = fs::read(live.join("each")).unwrap();
    assert_eq!(each.len(), 199_010);
    assert_eq!(each.iter().filter(|&&byte| byte == b'x').count(), 2000);
}
