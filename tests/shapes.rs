//! File systems of hostile shapes: names and paths at their limits, deep trees, large directories,
//! many links, sparse files and files in many pieces. Each is made on what a snapshot holds, then
//! snapshotted and forked itself: the fork shows it and can be changed, and what is frozen stays.

use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{DirEntryExt, FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use floe_harness::command::run;
use floe_harness::{ScanOptions, TestStore, Tree, Watchdog, long_run};
use rustix::fs::{Advice, AtFlags, Mode, OFlags, SeekFrom, fadvise, openat, renameat, seek};
use rustix::io::Errno;

/// Longest path of a system call, without the NUL.
const PATH_MAX: usize = 4095;

#[track_caller]
fn errno<T>(result: std::io::Result<T>) -> Errno {
    let error = result.err().expect("an error");
    Errno::from_io_error(&error).expect("an error of the system")
}

/// Snapshots `f` and forks that. `look` says what there is to see, and must say the same of the
/// mounted `f`, of its snapshot and of the fork; and of the snapshot after both were changed, by a
/// daemon and a kernel that remember nothing.
#[track_caller]
fn is_kept<T: PartialEq>(
    store: &TestStore,
    live: &Path,
    look: impl Fn(&Path) -> T,
    change: impl Fn(&Path),
) {
    let id = store.snapshot("f");
    let seen = look(live);
    let frozen = store.mount(&id);
    assert!(look(&frozen) == seen, "the snapshot shows something else");
    store.ok(["fork", &id, "g"]);
    let fork = store.mount("g");
    assert!(look(&fork) == seen, "the fork shows something else");
    change(&fork);
    assert!(look(&fork) != seen, "the fork did not change");
    assert!(look(live) == seen, "what is changed in a fork shows");
    change(live);
    store.stop_daemon();
    assert!(
        look(&store.mount(&id)) == seen,
        "the snapshot was changed by its forks"
    );
    store.check();
}

fn digest(root: &Path) -> String {
    Tree::scan(root, ScanOptions::ALL).digest().to_string()
}

#[test]
fn names_have_up_to_255_bytes_of_any_value() {
    let mut names: Vec<Vec<u8>> = (1..=255)
        .filter(|&byte| byte != b'/')
        .map(|byte: u8| vec![byte; 255])
        .filter(|name| name[0] != b'.')
        .collect();
    names.extend([&b".wh.x"[..], b".wh..wh..opq", b"@id", b"...", b"a\nb"].map(<[u8]>::to_vec));
    let made = names.clone();
    let (store, live) = TestStore::fork_of(move |root| {
        for name in &made {
            fs::write(root.join(OsStr::from_bytes(name)), name).unwrap();
        }
    });
    let listed = |live: &Path| {
        let entries = fs::read_dir(live).unwrap();
        let mut listed: Vec<_> = entries.map(|e| e.unwrap().file_name().into_vec()).collect();
        listed.sort();
        listed
    };
    names.sort();
    assert_eq!(listed(&live), names);
    let remove_all = |live: &Path| {
        for name in &names {
            assert_eq!(&fs::read(live.join(OsStr::from_bytes(name))).unwrap(), name);
            fs::remove_file(live.join(OsStr::from_bytes(name))).unwrap();
        }
        assert!(listed(live).is_empty());
        let long = live.join(OsString::from_vec(vec![b'x'; 256]));
        assert_eq!(errno(File::create(&long)), Errno::NAMETOOLONG);
        assert_eq!(errno(fs::metadata(&long)), Errno::NAMETOOLONG);
    };
    is_kept(&store, &live, digest, remove_all);
}

/// `root` and below it directories with long names, to exactly `len` bytes.
fn path_of(root: &Path, len: usize) -> PathBuf {
    let mut path = root.as_os_str().as_bytes().to_vec();
    while path.len() < len {
        // A slash and at least one byte must be left for the last name.
        let mut name = (len - path.len() - 1).min(255);
        if len - path.len() - 1 - name == 1 {
            name -= 1;
        }
        path.push(b'/');
        path.resize(path.len() + name, b'p');
    }
    OsString::from_vec(path).into()
}

#[test]
fn a_path_has_up_to_4095_bytes_and_goes_on_relative_to_a_directory() {
    let (store, live) = TestStore::fork_of(|_| ());
    let path = path_of(&live, PATH_MAX);
    assert_eq!(path.as_os_str().len(), PATH_MAX);
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "longest").unwrap();
    let longer = path_of(&live, PATH_MAX + 1);
    assert_eq!(errno(fs::metadata(&longer)), Errno::NAMETOOLONG);
    assert_eq!(errno(File::create(&longer)), Errno::NAMETOOLONG);
    // Below what a path can say.
    let below = path.strip_prefix(&live).unwrap().parent().unwrap();
    let bottom = |root: &Path| -> OwnedFd {
        let mut at = File::open(root).unwrap().into();
        for name in below {
            at = open_dir(&at, name);
        }
        at
    };
    let mut at = bottom(&live);
    for _ in 0..20 {
        rustix::fs::mkdirat(&at, &*"d".repeat(255), Mode::RWXU).unwrap();
        at = open_dir(&at, OsStr::new(&"d".repeat(255)));
    }
    let flags = OFlags::CREATE | OFlags::WRONLY;
    drop(openat(&at, "deeper", flags, Mode::RUSR).unwrap());
    drop(at);
    let look = |root: &Path| {
        let mut at = bottom(root);
        let mut inos = Vec::new();
        while let Ok(next) = openat(&at, &*"d".repeat(255), OFlags::RDONLY, Mode::empty()) {
            inos.push(rustix::fs::fstat(&next).unwrap().st_ino);
            at = next;
        }
        (
            inos,
            rustix::fs::statat(&at, "deeper", AtFlags::empty())
                .ok()
                .map(|stat| stat.st_ino),
        )
    };
    assert_eq!(look(&live).0.len(), 20);
    is_kept(&store, &live, look, |root| {
        let mut at = bottom(root);
        for _ in 0..20 {
            at = open_dir(&at, OsStr::new(&"d".repeat(255)));
        }
        rustix::fs::unlinkat(&at, "deeper", AtFlags::empty()).unwrap();
    });
}

fn open_dir(at: &OwnedFd, name: &OsStr) -> OwnedFd {
    openat(at, name, OFlags::RDONLY | OFlags::DIRECTORY, Mode::empty()).unwrap()
}

#[test]
fn a_symbolic_link_has_up_to_4095_bytes() {
    let (store, live) =
        TestStore::fork_of(|root| symlink("f".repeat(4095), root.join("old")).unwrap());
    assert_eq!(
        fs::read_link(live.join("old")).unwrap().as_os_str().len(),
        4095
    );
    for len in [1, 60, 4094, 4095] {
        let target = OsString::from_vec(vec![0xff; len]);
        symlink(&target, live.join(len.to_string())).unwrap();
        assert_eq!(fs::read_link(live.join(len.to_string())).unwrap(), target);
        assert_eq!(
            fs::symlink_metadata(live.join(len.to_string()))
                .unwrap()
                .len(),
            len as u64
        );
    }
    assert_eq!(
        errno(symlink("x".repeat(4096), live.join("long"))),
        Errno::NAMETOOLONG
    );
    is_kept(&store, &live, digest, |root| {
        fs::remove_file(root.join("4095")).unwrap();
        fs::rename(root.join("old"), root.join("4095")).unwrap();
    });
}

#[test]
fn a_file_has_ten_thousand_names() {
    let (store, live) = TestStore::fork_of(|root| fs::write(root.join("file"), "one").unwrap());
    fs::create_dir(live.join("names")).unwrap();
    let name = |root: &Path, number: u32| root.join(format!("names/{number}"));
    for number in 0..10_000 {
        fs::hard_link(live.join("file"), name(&live, number)).unwrap();
    }
    assert_eq!(fs::metadata(name(&live, 9_999)).unwrap().nlink(), 10_001);
    fs::write(name(&live, 5_000), "two").unwrap();
    is_kept(&store, &live, digest, |root| {
        for number in 0..9_999 {
            fs::remove_file(name(root, number)).unwrap();
        }
        fs::remove_file(root.join("file")).unwrap();
        assert_eq!(fs::metadata(name(root, 9_999)).unwrap().nlink(), 1);
        assert_eq!(fs::read(name(root, 9_999)).unwrap(), b"two");
    });
}

#[test]
fn a_directory_holds_a_hundred_thousand_entries() {
    let count: u32 = if long_run() { 1_000_000 } else { 100_000 };
    let (store, live) = TestStore::fork_of(|_| ());
    fs::create_dir(live.join("dir")).unwrap();
    let each = |dir: &Path, from: u32, work: &(dyn Fn(PathBuf) + Sync)| {
        std::thread::scope(|scope| {
            for thread in 0..2 {
                scope.spawn(move || {
                    let numbers = (from..count).filter(|number| number % 2 == thread);
                    numbers.for_each(|number| work(dir.join(format!("entry {number}"))));
                });
            }
        });
    };
    each(&live.join("dir"), 0, &|path| {
        drop(File::create(path).unwrap())
    });
    let look = |root: &Path| {
        let entries = fs::read_dir(root.join("dir")).unwrap().map(|e| e.unwrap());
        let mut found: Vec<_> = entries.map(|e| (e.file_name(), e.ino())).collect();
        found.sort_unstable();
        let listed = found.len();
        found.dedup();
        assert_eq!(found.len(), listed, "listed twice");
        found
    };
    assert_eq!(look(&live).len(), count as usize);
    is_kept(&store, &live, look, |root| {
        let dir = root.join("dir");
        each(&dir, count - count / 10, &|path| {
            fs::remove_file(path).unwrap()
        });
        assert_eq!(look(root).len(), (count - count / 10) as usize);
        assert!(dir.join("entry 0").exists());
        assert!(!dir.join(format!("entry {}", count - 1)).exists());
    });
}

/// Deeper than a path can say, so each step is relative to the one before.
#[test]
fn a_tree_is_a_thousand_levels_deep() {
    let levels = if long_run() { 10_000 } else { 1_000 };
    let (store, live) = TestStore::fork_of(|_| ());
    let name = OsStr::new("a directory");
    let root = |dir: &Path| OwnedFd::from(File::open(dir).unwrap());
    let mut at = root(&live);
    for _ in 0..levels {
        rustix::fs::mkdirat(&at, name, Mode::RWXU).unwrap();
        at = open_dir(&at, name);
    }
    drop(openat(&at, "bottom", OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap());
    drop(at);
    let look = |dir: &Path| {
        let mut at = root(dir);
        let top = fs::read_dir(dir)
            .unwrap()
            .next()
            .map(|e| e.unwrap().file_name());
        let Some(top) = top else {
            return Vec::new();
        };
        let mut inos = Vec::new();
        for level in 0..levels {
            at = open_dir(&at, if level == 0 { &top } else { name });
            inos.push(rustix::fs::fstat(&at).unwrap().st_ino);
        }
        rustix::fs::statat(&at, "bottom", AtFlags::empty()).unwrap();
        // Upwards again: each knows its parent.
        for ino in inos.iter().rev() {
            assert_eq!(rustix::fs::fstat(&at).unwrap().st_ino, *ino);
            at = open_dir(&at, OsStr::new(".."));
        }
        rustix::fs::statat(&at, &top, AtFlags::empty()).unwrap();
        inos
    };
    is_kept(&store, &live, look, |dir| {
        let before = look(dir);
        fs::rename(dir.join(name), dir.join("renamed")).unwrap();
        assert!(
            look(dir) == before,
            "renaming the top changes what is below"
        );
        // Not into itself, however far down.
        let mut at = root(dir);
        for level in 0..levels {
            at = open_dir(
                &at,
                if level == 0 {
                    OsStr::new("renamed")
                } else {
                    name
                },
            );
        }
        let inside = renameat(root(dir), "renamed", &at, "renamed");
        assert_eq!(inside, Err(Errno::INVAL));
        drop(at);
        let mut rm = Command::new("rm");
        rm.arg("-rf").arg(dir.join("renamed"));
        run(&mut rm, Duration::from_secs(300)).expect_code(0);
        assert_eq!(fs::read_dir(dir).unwrap().count(), 0);
    });
}

/// The host's largest file may be smaller: then the write fails as there, and changes nothing.
#[test]
fn a_file_ends_at_eight_exbibytes() {
    let (store, live) = TestStore::fork_of(|root| fs::write(root.join("old"), "start").unwrap());
    let end = i64::MAX.cast_unsigned();
    for name in ["old", "new"] {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false);
        let file = options.open(live.join(name)).unwrap();
        file.set_len(end).unwrap();
        assert_eq!(file.metadata().unwrap().len(), end);
        // The kernel itself refuses an offset that has no byte behind it.
        assert_eq!(errno(file.write_at(b"x", end)), Errno::INVAL);
        match file.write_at(b"x", end - 1) {
            Ok(1) => {
                let mut last = [0];
                file.read_exact_at(&mut last, end - 1).unwrap();
                assert_eq!(&last, b"x");
            }
            other => assert_eq!(errno(other), Errno::FBIG),
        }
        // What every host's file system can hold.
        file.write_at(b"far", 1 << 40).unwrap();
        assert!(file.metadata().unwrap().blocks() < 4096);
    }
    let look = |root: &Path| {
        ["old", "new"].map(|name| {
            let file = File::open(root.join(name)).unwrap();
            assert_eq!(file.metadata().unwrap().len(), end);
            let mut bytes = [9; 5];
            file.read_exact_at(&mut bytes, (1 << 40) - 1).unwrap();
            let data = seek(&file, SeekFrom::Data(1 << 20));
            (
                bytes,
                data,
                Tree::scan(root, ScanOptions::NO_CONTENTS).digest(),
            )
        })
    };
    assert_eq!(&look(&live)[1].0, b"\0far\0");
    is_kept(&store, &live, look, |root| {
        let file = OpenOptions::new()
            .write(true)
            .open(root.join("old"))
            .unwrap();
        file.write_at(b"new", (1 << 40) + 1).unwrap();
        assert_eq!(&look(root)[0].0, b"\0fnew");
    });
}

const BLOCK: u64 = 65_536;

/// Data and holes by turns, so that no two blocks make one piece: first all of one layer, then of
/// two. Whatever looks at each piece in turn must not look at all of them each time.
#[test]
fn a_file_is_in_thousands_of_pieces() {
    let pieces: u64 = if long_run() { 100_000 } else { 10_000 };
    let (store, live) = TestStore::fork_of(|root| {
        let file = File::create(root.join("file")).unwrap();
        file.set_len(2 * pieces * BLOCK).unwrap();
    });
    let limit = Duration::from_secs(if long_run() { 1800 } else { 300 });
    let _watchdog = Watchdog::start(store.daemon().unwrap(), limit);
    let open = |root: &Path| {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(root.join("file"))
            .unwrap();
        // A block in two is read, by the page.
        fadvise(&file, 0, None, Advice::Random).unwrap();
        file
    };
    let write = |file: &File, block: u64| {
        file.write_all_at(&block.to_le_bytes(), block * BLOCK)
            .unwrap();
    };
    let file = open(&live);
    (0..pieces).for_each(|piece| write(&file, 2 * piece));
    drop(file);
    let look = |root: &Path| {
        let file = File::open(root.join("file")).unwrap();
        fadvise(&file, 0, None, Advice::Random).unwrap();
        let (mut at, mut found) = (0, Vec::new());
        while let Ok(data) = seek(&file, SeekFrom::Data(at)) {
            let hole = seek(&file, SeekFrom::Hole(data)).unwrap();
            let mut bytes = [0; 8];
            file.read_exact_at(&mut bytes, data).unwrap();
            found.push((data, hole - data, u64::from_le_bytes(bytes)));
            at = hole;
        }
        found
    };
    let seen = look(&live);
    assert_eq!(seen.len() as u64, pieces);
    for (piece, (data, len, value)) in (0..).zip(&seen) {
        assert!(*len <= BLOCK, "{len} bytes of data at {data}");
        assert_eq!((*data, *value), (2 * piece * BLOCK, 2 * piece));
    }
    is_kept(&store, &live, look, |root| {
        let file = open(root);
        // Into data and into holes, so that pieces of both layers lie beside each other.
        for piece in (0..pieces - 2).step_by(16) {
            file.write_all_at(b"copy-up", 2 * piece * BLOCK + 100)
                .unwrap();
            write(&file, 2 * piece + 3);
        }
        let mut bytes = [0; 107];
        file.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes[..8] == [0; 8] && bytes[100..] == *b"copy-up");
        // Cut in the middle: half of them go.
        file.set_len(pieces * BLOCK).unwrap();
        let half = look(root);
        assert!(half.iter().all(|&(data, _, value)| data == value * BLOCK));
        let added = pieces
            .div_ceil(2)
            .div_ceil(16)
            .abs_diff(half.len() as u64 - pieces.div_ceil(2));
        assert!(added <= 1, "{} pieces", half.len());
    });
}
