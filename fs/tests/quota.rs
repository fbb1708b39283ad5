//! What a workspace may hold, and what has to stay free of the disk.

mod common;

use std::sync::Arc;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, Errno, Fallocate, OpError, RenameFlags, SetAttr, Write};
use floe_fs::id::Ino;
use floe_fs::{
    BaseDir, ForkSource, LandOptions, Quota, SnapshotError, SnapshotOptions, Store, View,
    WorkspaceInfo,
};

use common::{ROOT_USER, make, name, new_store, node, read, write};

const KIB: u64 = 1 << 10;

struct Case {
    store: Arc<Store>,
    view: Arc<View>,
    _dir: tempfile::TempDir,
}

impl Case {
    fn new(bytes: Option<u64>, inodes: Option<u64>) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let store = new_store(&dir.path().join("s"));
        store.create_workspace(&name("w")).unwrap();
        store.set_quota("w", Quota { bytes, inodes }).unwrap();
        let view = store.open_live("w").unwrap();
        Self {
            store,
            view,
            _dir: dir,
        }
    }

    fn file(&self, name: &str) -> Ino {
        make(&self.view, Ino::ROOT, name, FileKind::File)
    }

    fn try_write(&self, ino: Ino, offset: u64, data: &[u8]) -> Result<(), OpError> {
        let write = Write {
            offset,
            data,
            append: false,
            kill_set_id: false,
        };
        self.view.write(ino, write)
    }

    fn info(&self) -> WorkspaceInfo {
        self.store.workspace("w").unwrap()
    }

    fn check(&self) {
        let report = self.store.check().unwrap();
        assert!(report.is_clean(), "{:?}", report.problems);
    }
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, OpError>, errno: i32) {
    let error = result.unwrap_err();
    assert_eq!(Errno::from(&error), Errno(errno), "{error}");
}

#[test]
fn writes_beyond_the_quota_are_refused_and_change_nothing() {
    let case = Case::new(Some(256 * KIB), None);
    let ino = case.file("f");
    write(&case.view, ino, 0, &[1; 200 << 10]);
    refused(
        case.try_write(ino, 200 * KIB, &[2; 100 << 10]),
        libc::EDQUOT,
    );
    assert_eq!(read(&case.view, ino), vec![1; 200 << 10]);
    // Over what is there, and into what is left.
    write(&case.view, ino, 4096, &[3; 100 << 10]);
    write(&case.view, ino, 200 * KIB, &[4; 50 << 10]);
    refused(case.try_write(ino, 256 * KIB, &[5; 8192]), libc::EDQUOT);
    // Into a hole behind a file's end: it was a hole, and stays one.
    let sparse = case.file("sparse");
    let size = SetAttr {
        size: Some(1 << 30),
        ..SetAttr::default()
    };
    case.view.setattr(ROOT_USER, sparse, size).unwrap();
    refused(
        case.try_write(sparse, 1 << 20, &[6; 64 << 10]),
        libc::EDQUOT,
    );
    let reserve = case
        .view
        .fallocate(ROOT_USER, ino, Fallocate::Allocate, 0, 1 << 20);
    refused(reserve, libc::EDQUOT);
    assert_eq!(case.view.getattr(ino).unwrap().size, 250 * KIB);
    let mut out = Vec::new();
    case.view.read(sparse, 1 << 20, 64 << 10, &mut out).unwrap();
    assert_eq!(out, vec![0; 64 << 10]);
    assert!(case.info().bytes <= 256 * KIB, "{}", case.info().bytes);
    // What is removed makes room once nobody has it open.
    case.view.unlink(Ino::ROOT, b"f").unwrap();
    refused(
        case.try_write(sparse, 1 << 20, &[6; 200 << 10]),
        libc::EDQUOT,
    );
    refused(
        case.try_write(ino, 256 * KIB, &[6; 200 << 10]),
        libc::EDQUOT,
    );
    assert_eq!(case.info().bytes, 0);
    case.view.forget(ino, 1);
    write(&case.view, sparse, 1 << 20, &[6; 200 << 10]);
    case.check();
}

#[test]
fn small_files_count_too() {
    let case = Case::new(Some(16 * KIB), None);
    for number in 0..4 {
        let ino = case.file(&number.to_string());
        write(&case.view, ino, 0, &[1; 4 << 10]);
    }
    let ino = case.file("more");
    refused(case.try_write(ino, 0, b"x"), libc::EDQUOT);
    // One that stays as large as it was.
    let first = case.view.lookup(Ino::ROOT, b"0").unwrap().unwrap().ino;
    write(&case.view, first, 100, b"other");
    // A small file becomes an object.
    refused(case.try_write(first, 4 * KIB, &[1; 8 << 10]), libc::EDQUOT);
    let grown = SetAttr {
        size: Some(6 * KIB),
        ..SetAttr::default()
    };
    refused(case.view.setattr(ROOT_USER, first, grown), libc::EDQUOT);
    assert_eq!(case.view.getattr(first).unwrap().size, 4 * KIB);
    case.check();
}

#[test]
fn the_number_of_inodes_is_limited_and_every_kind_counts() {
    let case = Case::new(None, Some(4));
    let ino = case.file("f");
    make(&case.view, Ino::ROOT, "d", FileKind::Directory);
    make(&case.view, Ino::ROOT, "l", FileKind::Symlink);
    for kind in [FileKind::File, FileKind::Directory, FileKind::Fifo] {
        let made = case.view.make(ROOT_USER, Ino::ROOT, b"x", node(kind));
        refused(made, libc::EDQUOT);
    }
    // Another name is no other file.
    case.view.link(ino, Ino::ROOT, b"second").unwrap();
    case.view.unlink(Ino::ROOT, b"f").unwrap();
    refused(
        case.view
            .make(ROOT_USER, Ino::ROOT, b"x", node(FileKind::File)),
        libc::EDQUOT,
    );
    case.view.unlink(Ino::ROOT, b"second").unwrap();
    case.view.forget(ino, 2);
    case.file("x");
    assert_eq!(case.info().inodes, 4);
    case.check();
}

#[test]
fn what_is_shared_with_snapshots_counts_once_and_a_rollback_counts_what_it_brings_back() {
    let case = Case::new(Some(300 * KIB), None);
    let ino = case.file("f");
    write(&case.view, ino, 0, &[1; 200 << 10]);
    let snapshot = case
        .store
        .snapshot("w", &SnapshotOptions::default())
        .unwrap();
    // Every block is copied up, and the file is no larger for it.
    write(&case.view, ino, 0, &[2; 200 << 10]);
    write(&case.view, ino, 0, &[3; 200 << 10]);
    case.view.unlink(Ino::ROOT, b"f").unwrap();
    case.view.forget(ino, 1);
    let other = case.file("g");
    write(&case.view, other, 0, &[4; 280 << 10]);
    case.store.rollback("w", snapshot.id.as_str()).unwrap();
    assert_eq!(case.info().bytes, 200 * KIB);
    let new = case.file("h");
    write(&case.view, new, 0, &[5; 90 << 10]);
    refused(case.try_write(new, 90 * KIB, &[5; 20 << 10]), libc::EDQUOT);
    case.check();
}

#[test]
fn forks_begin_with_the_quota_of_their_origin_and_statfs_agrees() {
    let case = Case::new(Some(1 << 20), Some(10));
    let ino = case.file("f");
    write(&case.view, ino, 0, &[1; 256 << 10]);
    let source = ForkSource::Workspace("w".to_owned());
    case.store.fork(&source, &[name("fork")]).unwrap();
    let view = case.store.open_live("fork").unwrap();
    let figures = view.statfs().unwrap();
    let block = u64::from(figures.block_size);
    assert_eq!(figures.blocks * block, 1 << 20);
    assert_eq!(figures.blocks_available * block, 768 << 10);
    assert_eq!((figures.files, figures.files_free), (10, 8));
    // Theirs is theirs.
    let any = Quota::default();
    case.store.set_quota("fork", any).unwrap();
    let ino = view.lookup(Ino::ROOT, b"f").unwrap().unwrap().ino;
    write(&view, ino, 0, &[2; 2 << 20]);
    refused(case.try_write(ino, 0, &[2; 2 << 20]), libc::EDQUOT);
    assert!(view.statfs().unwrap().blocks * block > 1 << 20);
    case.check();
}

#[test]
fn a_landing_that_does_not_fit_is_refused_whole() {
    let case = Case::new(Some(200 * KIB), None);
    let ino = case.file("f");
    write(&case.view, ino, 0, &[1; 100 << 10]);
    let source = ForkSource::Workspace("w".to_owned());
    case.store.fork(&source, &[name("fork")]).unwrap();
    case.store.set_quota("fork", Quota::default()).unwrap();
    let fork = case.store.open_live("fork").unwrap();
    let new = make(&fork, Ino::ROOT, "new", FileKind::File);
    write(&fork, new, 0, &[2; 150 << 10]);
    for open in [true, false] {
        let landed = case.store.land("fork", Some("w"), &LandOptions::default());
        let error = format!("{:?}", landed.unwrap_err());
        assert!(error.contains("Quota"), "{open}: {error}");
        assert!(case.view.lookup(Ino::ROOT, b"new").unwrap().is_none() || !open);
        if open {
            case.store.close_view(&case.view);
        }
    }
    let larger = Quota {
        bytes: Some(300 * KIB),
        inodes: None,
    };
    case.store.set_quota("w", larger).unwrap();
    let landed = case.store.land("fork", Some("w"), &LandOptions::default());
    landed.unwrap();
    let view = case.store.open_live("w").unwrap();
    let found = view.lookup(Ino::ROOT, b"new").unwrap().unwrap();
    assert_eq!(read(&view, found.ino).len(), 150 << 10);
    let write = Write {
        offset: 150 << 10,
        data: &[1; 100 << 10],
        append: false,
        kill_set_id: false,
    };
    refused(view.write(found.ino, write), libc::EDQUOT);
    case.check();
}

#[test]
fn a_quota_below_what_is_there_takes_nothing_away() {
    let case = Case::new(None, None);
    let ino = case.file("f");
    write(&case.view, ino, 0, &[1; 200 << 10]);
    let quota = Quota {
        bytes: Some(KIB),
        inodes: Some(1),
    };
    case.store.set_quota("w", quota).unwrap();
    refused(case.try_write(ino, 200 * KIB, b"x"), libc::EDQUOT);
    write(&case.view, ino, 7, b"over what is there");
    case.store
        .snapshot("w", &SnapshotOptions::default())
        .unwrap();
    assert_eq!(case.view.statfs().unwrap().blocks_available, 0);
    case.view.unlink(Ino::ROOT, b"f").unwrap();
    assert_eq!(case.info().bytes, 0);
    case.check();
}

#[test]
fn below_the_free_space_that_has_to_stay_nothing_is_added_and_everything_can_be_removed() {
    let case = Case::new(None, None);
    let ino = case.file("f");
    write(&case.view, ino, 0, &[1; 200 << 10]);
    let snapshot = case
        .store
        .snapshot("w", &SnapshotOptions::default())
        .unwrap();
    let live = case.file("live");
    write(&case.view, live, 0, &[2; 200 << 10]);
    case.store.set("min-free", Some("7E")).unwrap();
    refused(case.try_write(live, 200 * KIB, &[1; 4096]), libc::ENOSPC);
    // A frozen block would have to be copied.
    refused(case.try_write(ino, 0, &[1; 4096]), libc::ENOSPC);
    let made = case
        .view
        .make(ROOT_USER, Ino::ROOT, b"new", node(FileKind::File));
    refused(made, libc::ENOSPC);
    refused(
        case.view.setxattr(
            ROOT_USER,
            ino,
            b"user.a",
            b"1",
            floe_fs::dispatch::XattrMode::Set,
        ),
        libc::ENOSPC,
    );
    assert_eq!(case.view.statfs().unwrap().blocks_available, 0);
    let taken = case.store.snapshot("w", &SnapshotOptions::default());
    assert!(
        matches!(taken, Err(SnapshotError::Room { .. })),
        "{taken:?}"
    );
    // In place, backwards, and away.
    write(&case.view, live, 0, &[3; 200 << 10]);
    case.view.unlink(Ino::ROOT, b"f").unwrap();
    case.store.rollback("w", snapshot.id.as_str()).unwrap();
    assert_eq!(read(&case.view, ino), vec![1; 200 << 10]);
    case.store.set("min-free", None).unwrap();
    write(&case.view, ino, 0, &[4; 4096]);
    case.store
        .snapshot("w", &SnapshotOptions::default())
        .unwrap();
    case.check();
}

/// Several threads at once: each write fits, all of them do not.
#[test]
fn writers_at_the_same_time_do_not_pass_the_quota_together() {
    let case = Case::new(Some(1 << 20), None);
    let files: Vec<Ino> = (0..4).map(|n| case.file(&n.to_string())).collect();
    let granted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = files
            .iter()
            .map(|&ino| {
                let case = &case;
                scope.spawn(move || {
                    (0..40)
                        .take_while(|n| case.try_write(ino, n * 16 * KIB, &[1; 16 << 10]).is_ok())
                        .count() as u64
                })
            })
            .collect();
        threads.into_iter().map(|t| t.join().unwrap()).sum()
    });
    // To the last piece, but for what was refused while others had it reserved.
    assert!((60..=64).contains(&granted), "{granted}");
    assert!(case.info().bytes <= 1 << 20);
    case.check();
}

#[test]
fn what_is_reserved_counts_whatever_the_file_was_and_can_be_written_then() {
    let case = Case::new(Some(256 * KIB), None);
    // One of a few bytes, one that nothing was written to, and a large one.
    for (file, contents) in [("few", 10), ("none", 0), ("many", 20 << 10)] {
        let ino = case.file(file);
        case.try_write(ino, 0, &vec![1; contents]).unwrap();
        let reserve = |end| {
            case.view
                .fallocate(ROOT_USER, ino, Fallocate::Allocate, 0, end)
        };
        refused(reserve(1 << 30), libc::EDQUOT);
        reserve(200 * KIB).unwrap();
        assert!(
            case.info().bytes >= 200 * KIB,
            "{file}: {}",
            case.info().bytes
        );
        // There is room for it by now, all of it.
        for block in 0..50 {
            let written = case.try_write(ino, block * 4096, &[2; 4096]);
            written.unwrap_or_else(|error| panic!("{file}, {block}: {error}"));
        }
        refused(case.try_write(ino, 260 * KIB, &[3; 64 << 10]), libc::EDQUOT);
        assert_eq!(read(&case.view, ino).len(), 200 << 10);
        case.view.unlink(Ino::ROOT, file.as_bytes()).unwrap();
        case.view.forget(ino, 1);
    }
    case.check();
}

#[test]
fn a_removed_file_that_is_open_during_a_landing_goes_once_it_is_closed() {
    let case = Case::new(Some(300 * KIB), None);
    let source = ForkSource::Workspace("w".to_owned());
    let ino = case.file("temporary");
    write(&case.view, ino, 0, &[1; 200 << 10]);
    case.store.fork(&source, &[name("fork")]).unwrap();
    case.view.unlink(Ino::ROOT, b"temporary").unwrap();
    let fork = case.store.open_live("fork").unwrap();
    make(&fork, Ino::ROOT, "new", FileKind::File);
    case.store
        .land("fork", Some("w"), &LandOptions::default())
        .unwrap();
    let other = case.file("other");
    refused(case.try_write(other, 0, &[1; 200 << 10]), libc::EDQUOT);
    case.view.forget(ino, 1);
    write(&case.view, other, 0, &[1; 200 << 10]);
    case.store.check().unwrap();
    assert!(matches!(case.view.getattr(ino), Err(OpError::Stale(_))));
    case.check();
}

#[test]
fn what_a_file_of_the_host_has_grown_by_counts() {
    let scratch = tempfile::tempdir().unwrap();
    let dir = scratch.path().join("dir");
    std::fs::create_dir(&dir).unwrap();
    std::fs::write(dir.join("log"), vec![1; 64 << 10]).unwrap();
    let store = new_store(&scratch.path().join("s"));
    let from = BaseDir {
        dir,
        at: "/".into(),
    };
    store
        .create_workspace_from(&name("w"), &[from], "")
        .unwrap();
    let quota = Quota {
        bytes: Some(128 * KIB),
        inodes: Some(2),
    };
    store.set_quota("w", quota).unwrap();
    let view = store.open_live("w").unwrap();
    let ino = view.lookup(Ino::ROOT, b"log").unwrap().unwrap().ino;
    // Over what is there already.
    write(&view, ino, 0, &[2; 64 << 10]);
    assert_eq!(store.workspace("w").unwrap().bytes, 0);
    let mut size = 64 * KIB;
    let grow = |size: u64| {
        let write = Write {
            offset: size,
            data: &[3; 16 << 10],
            append: false,
            kill_set_id: false,
        };
        view.write(ino, write)
    };
    while size < 192 * KIB {
        grow(size).unwrap();
        size += 16 * KIB;
    }
    refused(grow(size), libc::EDQUOT);
    assert_eq!(store.workspace("w").unwrap().bytes, 128 * KIB);
    let cut = SetAttr {
        size: Some(1000),
        ..SetAttr::default()
    };
    view.setattr(ROOT_USER, ino, cut).unwrap();
    assert_eq!(store.workspace("w").unwrap().bytes, 0);
    grow(1000).unwrap();
    make(&view, Ino::ROOT, "one", FileKind::File);
    make(&view, Ino::ROOT, "two", FileKind::File);
    let third = view.make(ROOT_USER, Ino::ROOT, b"three", node(FileKind::File));
    refused(third, libc::EDQUOT);
    view.unlink(Ino::ROOT, b"log").unwrap();
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

#[test]
fn a_whiteout_is_an_inode_and_attributes_have_a_limit() {
    let case = Case::new(None, Some(2));
    let ino = case.file("f");
    let whiteout = RenameFlags {
        whiteout: true,
        ..RenameFlags::default()
    };
    let (from, to) = ((Ino::ROOT, &b"f"[..]), (Ino::ROOT, &b"g"[..]));
    refused(case.view.rename(from, to, whiteout), libc::EDQUOT);
    case.view.rename(from, to, RenameFlags::default()).unwrap();
    let set = |number: usize| {
        let name = format!("user.{number}");
        let mode = floe_fs::dispatch::XattrMode::Set;
        case.view
            .setxattr(ROOT_USER, ino, name.as_bytes(), &[1; 65_536], mode)
    };
    let refused_at = (0..100).find(|&number| set(number).is_err());
    assert_eq!(refused_at, Some(3));
    // One that is there can be replaced.
    set(0).unwrap();
    case.check();
}
