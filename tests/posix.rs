//! What docs/posix.md promises of contents, renames, times, attributes and locks. Each test works in
//! a fork of a snapshot, so that what it changes comes from a frozen layer. What a file system may be
//! shaped like is in shapes.rs.

use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use floe_harness::TestStore;
use floe_harness::python::{Python, path};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags,
    copy_file_range, fallocate, renameat_with, seek, utimensat,
};
use rustix::io::Errno;

#[track_caller]
fn errno<T>(result: std::io::Result<T>) -> Errno {
    let error = result.err().expect("an error");
    Errno::from_io_error(&error).expect("an error of the system")
}

const BLOCK: u64 = 65_536;

#[test]
fn fallocate_reserves_punches_and_zeroes() {
    let old = vec![b'o'; 4 * 65_536];
    let (_store, live) = TestStore::fork_of(|root| {
        fs::write(root.join("frozen"), &old).unwrap();
        fs::write(root.join("inline"), [b'o'; 1000]).unwrap();
    });
    fs::write(live.join("own"), &old).unwrap();
    for name in ["frozen", "own"] {
        let path = live.join(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let len = || file.metadata().unwrap().len();
        let mut expected = old.clone();
        fallocate(&file, FallocateFlags::KEEP_SIZE, 0, 10 * BLOCK).unwrap();
        assert_eq!(len(), 4 * BLOCK);
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, punch, BLOCK - 10, BLOCK + 20).unwrap();
        expected[65_526..131_082].fill(0);
        assert_eq!(fs::read(&path).unwrap(), expected, "{name}");
        fallocate(&file, FallocateFlags::ZERO_RANGE, 3 * BLOCK, 100).unwrap();
        expected[3 * 65_536..][..100].fill(0);
        assert_eq!(fs::read(&path).unwrap(), expected, "{name}");
        let zero_kept = FallocateFlags::ZERO_RANGE | FallocateFlags::KEEP_SIZE;
        fallocate(&file, zero_kept, 4 * BLOCK - 10, 1000).unwrap();
        assert_eq!(len(), 4 * BLOCK);
        expected[4 * 65_536 - 10..].fill(0);
        fallocate(&file, FallocateFlags::empty(), 0, 5 * BLOCK).unwrap();
        expected.resize(5 * 65_536, 0);
        assert_eq!(fs::read(&path).unwrap(), expected, "{name}");
        assert_eq!(
            fallocate(&file, FallocateFlags::PUNCH_HOLE, 0, 1),
            Err(Errno::OPNOTSUPP)
        );
        assert_eq!(
            fallocate(&file, FallocateFlags::empty(), 0, 0),
            Err(Errno::INVAL)
        );
    }
    let inline = OpenOptions::new()
        .write(true)
        .open(live.join("inline"))
        .unwrap();
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&inline, punch, 10, 980).unwrap();
    let bytes = fs::read(live.join("inline")).unwrap();
    assert!(bytes[..10] == [b'o'; 10] && bytes[10..990] == [0; 980] && bytes[990..] == [b'o'; 10]);
}

#[test]
fn holes_are_found_in_frozen_and_live_files() {
    let make = |path: &Path| {
        let file = File::create(path).unwrap();
        file.set_len(10 * BLOCK).unwrap();
        file.write_all_at(&[1; 1000], 2 * BLOCK).unwrap();
        file.write_all_at(&[1; 1000], 6 * BLOCK).unwrap();
    };
    let (_store, live) = TestStore::fork_of(|root| make(&root.join("frozen")));
    make(&live.join("own"));
    for name in ["frozen", "own"] {
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(live.join(name))
            .unwrap();
        let data = |from| seek(&file, SeekFrom::Data(from));
        let hole = |from| seek(&file, SeekFrom::Hole(from));
        // Where data ends exactly depends on the host's blocks, which are no larger than Floe's.
        let ends = |from: u64| hole(from).is_ok_and(|at| at > from && at <= from + BLOCK);
        assert_eq!(hole(0), Ok(0), "{name}");
        assert_eq!(data(0), Ok(2 * BLOCK), "{name}");
        assert!(ends(2 * BLOCK), "{name}: {:?}", hole(2 * BLOCK));
        assert_eq!(data(3 * BLOCK), Ok(6 * BLOCK), "{name}");
        assert_eq!(data(7 * BLOCK), Err(Errno::NXIO), "{name}");
        assert_eq!(hole(9 * BLOCK), Ok(9 * BLOCK), "{name}");
        assert_eq!(hole(10 * BLOCK), Err(Errno::NXIO), "{name}");
        // A write into a hole of a frozen file makes data there and nowhere else.
        file.write_all_at(b"x", 4 * BLOCK).unwrap();
        assert_eq!(data(3 * BLOCK), Ok(4 * BLOCK), "{name}");
        assert!(ends(4 * BLOCK), "{name}");
    }
}

#[test]
fn copy_file_range_copies_between_frozen_live_and_same_files() {
    let bytes: Vec<u8> = (0..200_000_u32).map(|n| n.to_le_bytes()[0]).collect();
    let (_store, live) = TestStore::fork_of(|root| fs::write(root.join("source"), &bytes).unwrap());
    let source = OpenOptions::new()
        .read(true)
        .write(true)
        .open(live.join("source"))
        .unwrap();
    let target = File::create(live.join("target")).unwrap();
    let copy = |from: &File, mut at: u64, to: &File, mut to_at: u64, len: usize| {
        let mut left = len;
        while left > 0 {
            let done = copy_file_range(from, Some(&mut at), to, Some(&mut to_at), left).unwrap();
            if done == 0 {
                break;
            }
            left -= done;
        }
        len - left
    };
    assert_eq!(copy(&source, 0, &target, 1000, 200_000), 200_000);
    let copied = fs::read(live.join("target")).unwrap();
    assert!(copied[..1000].iter().all(|&byte| byte == 0) && copied[1000..] == bytes);
    assert_eq!(
        copy(&source, 199_990, &target, 0, 1000),
        10,
        "ends with the source"
    );
    assert_eq!(copy(&source, 0, &source, 300_000, 100_000), 100_000);
    let doubled = fs::read(live.join("source")).unwrap();
    assert!(doubled[..200_000] == bytes && doubled[300_000..] == bytes[..100_000]);
    let (mut from, mut to) = (0, 10);
    let overlapping = copy_file_range(&source, Some(&mut from), &source, Some(&mut to), 100);
    assert_eq!(overlapping, Err(Errno::INVAL));
}

#[test]
fn rename_replaces_exchanges_keeps_and_leaves_whiteouts() {
    let (_store, live) = TestStore::fork_of(|root| {
        fs::create_dir_all(root.join("dir/sub")).unwrap();
        fs::write(root.join("dir/file"), "in dir").unwrap();
        for name in ["a", "b"] {
            fs::write(root.join(name), name).unwrap();
        }
    });
    let rename = |from: &str, to: &str, flags| {
        renameat_with(CWD, live.join(from), CWD, live.join(to), flags)
    };
    let none = RenameFlags::empty();
    assert_eq!(rename("a", "b", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename("a", "b", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(live.join("a")).unwrap(), b"b");
    rename("dir", "a", RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(live.join("a/file")).unwrap(), b"in dir");
    assert_eq!(fs::read(live.join("dir")).unwrap(), b"b");
    assert_eq!(
        rename("a", "nothing", RenameFlags::EXCHANGE),
        Err(Errno::NOENT)
    );
    assert_eq!(rename("a", "a/sub/a", none), Err(Errno::INVAL));
    assert_eq!(rename("b", "a", none), Err(Errno::ISDIR));
    assert_eq!(rename("a", "b", none), Err(Errno::NOTDIR));
    fs::create_dir(live.join("full")).unwrap();
    fs::write(live.join("full/x"), "").unwrap();
    assert_eq!(rename("a", "full", none), Err(Errno::NOTEMPTY));
    rename("b", "dir", none).unwrap();
    assert_eq!(fs::read(live.join("dir")).unwrap(), b"a");
    rename("dir", "moved", RenameFlags::WHITEOUT).unwrap();
    let whiteout = fs::symlink_metadata(live.join("dir")).unwrap();
    assert!(whiteout.file_type().is_char_device() && whiteout.rdev() == 0);
    rename("a", "full/a", RenameFlags::NOREPLACE).unwrap();
    assert_eq!(fs::read(live.join("full/a/file")).unwrap(), b"in dir");
}

#[test]
fn times_have_nanoseconds_before_1970_and_after_2038() {
    let (store, live) = TestStore::fork_of(|root| fs::write(root.join("old"), "x").unwrap());
    let cases = [
        (-1, 999_999_999),
        (-5_000_000_000, 1),
        (0, 0),
        (1 << 33, 123_456_789),
        (1 << 36, 5),
    ];
    let time = |(tv_sec, tv_nsec): (i64, i64)| Timespec { tv_sec, tv_nsec };
    for (number, &case) in cases.iter().enumerate() {
        let file = live.join(number.to_string());
        fs::write(&file, "x").unwrap();
        let times = Timestamps {
            last_access: time(cases[(number + 1) % 5]),
            last_modification: time(case),
        };
        let before = fs::metadata(&file).unwrap();
        utimensat(CWD, &file, &times, AtFlags::empty()).unwrap();
        let after = fs::metadata(&file).unwrap();
        assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
    }
    let id = store.snapshot("f");
    store.stop_daemon();
    let frozen = store.mount(&id);
    for (number, &case) in cases.iter().enumerate() {
        let meta = fs::metadata(frozen.join(number.to_string())).unwrap();
        assert_eq!((meta.mtime(), meta.mtime_nsec()), case);
        assert_eq!((meta.atime(), meta.atime_nsec()), cases[(number + 1) % 5]);
    }
}

#[test]
fn attributes_have_up_to_64_kibibytes() {
    let (_store, live) = TestStore::fork_of(|root| {
        fs::write(root.join("a"), "").unwrap();
        let flags = XattrFlags::empty();
        rustix::fs::setxattr(root.join("a"), "user.old", b"frozen", flags).unwrap();
    });
    let file = live.join("a");
    let set = |name: &str, value: &[u8], flags| rustix::fs::setxattr(&file, name, value, flags);
    let mut value = vec![0; 65_536];
    set("user.large", &[7; 65_536], XattrFlags::empty()).unwrap();
    assert_eq!(
        rustix::fs::getxattr(&file, "user.large", &mut value),
        Ok(65_536)
    );
    assert_eq!(
        set("user.larger", &[7; 65_537], XattrFlags::empty()),
        Err(Errno::TOOBIG)
    );
    assert_eq!(set("user.old", b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(
        set("user.new", b"x", XattrFlags::REPLACE),
        Err(Errno::NODATA)
    );
    set("trusted.t", b"\0", XattrFlags::CREATE).unwrap();
    assert_eq!(
        rustix::fs::getxattr(&file, "user.large", &mut value[..10]),
        Err(Errno::RANGE)
    );
    rustix::fs::removexattr(&file, "user.old").unwrap();
    assert_eq!(
        rustix::fs::removexattr(&file, "user.old"),
        Err(Errno::NODATA)
    );
    let all = floe_harness::xattrs::read(&file).unwrap();
    let names: Vec<_> = all.keys().map(Vec::as_slice).collect();
    assert_eq!(names, [&b"trusted.t"[..], b"user.large"]);
}

#[test]
fn locks_of_every_kind_keep_others_out() {
    let (_store, live) =
        TestStore::fork_of(|root| fs::write(root.join("lock"), vec![0; 100]).unwrap());
    let file = live.join("lock");
    let (mut a, mut b) = (Python::start(), Python::start());
    for python in [&mut a, &mut b] {
        python.ok(&format!(
            "import fcntl
f = os.open({}, os.O_RDWR)
def ofd(kind, start, length):
    fcntl.fcntl(f, 37, struct.pack('hhqqi', kind, os.SEEK_SET, start, length, 0))",
            path(&file)
        ));
    }
    // Record locks, by ranges.
    a.ok("fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 20)");
    assert_eq!(
        b.errno("fcntl.lockf(f, fcntl.LOCK_SH | fcntl.LOCK_NB, 1, 25)"),
        libc::EAGAIN
    );
    b.ok("fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 30)");
    a.ok("fcntl.lockf(f, fcntl.LOCK_UN, 10, 20)");
    b.ok("fcntl.lockf(f, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 20)");
    b.ok("fcntl.lockf(f, fcntl.LOCK_UN)");
    // Of open file descriptions: other descriptors of the same process are kept out as well.
    a.ok("ofd(fcntl.F_WRLCK, 0, 10)");
    assert_eq!(b.errno("ofd(fcntl.F_RDLCK, 5, 1)"), libc::EAGAIN);
    let again = format!(
        "g = os.open({}, os.O_RDWR); fcntl.fcntl(g, 37, struct.pack('hhqqi', 1, 0, 0, 10, 0))",
        path(&file)
    );
    assert_eq!(a.errno(&again), libc::EAGAIN);
    // flock is a lock of its own.
    b.ok("fcntl.flock(f, fcntl.LOCK_EX | fcntl.LOCK_NB)");
    assert_eq!(
        a.errno("fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)"),
        libc::EAGAIN
    );
    drop(b);
    a.ok("fcntl.flock(f, fcntl.LOCK_SH | fcntl.LOCK_NB)");
    a.ok("ofd(fcntl.F_UNLCK, 0, 0); os.close(f); os.close(g)");
    // A lease is broken by whoever opens against it.
    a.ok(&format!(
        "signal.signal(signal.SIGIO, signal.SIG_IGN)
f = os.open({}, os.O_RDONLY); fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_RDLCK)",
        path(&file)
    ));
    let mut options = OpenOptions::new();
    let opened = options
        .write(true)
        .custom_flags(libc::O_NONBLOCK)
        .open(&file);
    assert_eq!(errno(opened), Errno::WOULDBLOCK);
    a.ok("fcntl.fcntl(f, fcntl.F_SETLEASE, fcntl.F_UNLCK)");
    options.open(&file).unwrap();
}

#[test]
fn appends_of_many_writers_do_not_overlap() {
    let (_store, live) = TestStore::fork_of(|root| fs::write(root.join("log"), "").unwrap());
    std::thread::scope(|scope| {
        for writer in 0..8_u8 {
            let live = &live;
            scope.spawn(move || {
                let mut log = OpenOptions::new()
                    .append(true)
                    .open(live.join("log"))
                    .unwrap();
                for _ in 0..200 {
                    log.write_all(&[b'a' + writer; 100]).unwrap();
                }
            });
        }
    });
    let bytes = fs::read(live.join("log")).unwrap();
    assert_eq!(bytes.len(), 8 * 200 * 100);
    assert!(
        bytes
            .chunks(100)
            .all(|line| line.iter().all(|&byte| byte == line[0]))
    );
}

#[test]
fn removed_files_and_directories_stay_usable_while_they_are_open() {
    let (_store, live) = TestStore::fork_of(|root| {
        fs::create_dir(root.join("dir")).unwrap();
        fs::write(root.join("file"), vec![b'x'; 100_000]).unwrap();
    });
    let mut file = OpenOptions::new()
        .read(true)
        .append(true)
        .open(live.join("file"))
        .unwrap();
    fs::remove_file(live.join("file")).unwrap();
    file.write_all(b"more").unwrap();
    assert_eq!(
        (
            file.metadata().unwrap().nlink(),
            file.metadata().unwrap().len()
        ),
        (0, 100_004)
    );
    // The append has moved the position to the end.
    file.rewind().unwrap();
    let mut bytes = Vec::new();
    file.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 100_004);
    let mut python = Python::start();
    python.ok(&format!("os.chdir({})", path(&live.join("dir"))));
    fs::remove_dir(live.join("dir")).unwrap();
    assert_eq!(python.ok("result = os.listdir('.')"), serde_json::json!([]));
    assert_eq!(python.errno("open('x', 'w')"), libc::ENOENT);
    python.ok("os.stat('.')");
}
