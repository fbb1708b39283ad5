//! The engine through its trait of operations, without a mount.

mod common;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, Fallocate, OpError, OpenMode, RenameFlags, SetAttr};
use floe_fs::id::Ino;
use floe_fs::{ForkSource, SnapshotFilter, SnapshotOptions, Store, View};

use common::{ROOT_USER, list, make, name, new_store, node, read, write};

fn truncate(view: &View, ino: Ino, size: u64) {
    let set = SetAttr {
        size: Some(size),
        ..SetAttr::default()
    };
    view.setattr(ROOT_USER, ino, set).unwrap();
}

/// Bytes that differ from block to block.
fn pattern(len: usize, seed: u64) -> Vec<u8> {
    (0..len as u64)
        .map(|n| (((n / 4096) * 31 + n + seed * 7) % 251) as u8)
        .collect()
}

#[test]
fn a_snapshot_keeps_names_attributes_and_bytes_whatever_happens_after() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(&dir.path().join("s"));
    store.create_workspace(&name("w")).unwrap();
    let view = store.open_live("w").unwrap();
    let sub = make(&view, Ino::ROOT, "sub", FileKind::Directory);
    let small = make(&view, sub, "small", FileKind::File);
    let large = make(&view, sub, "large", FileKind::File);
    write(&view, small, 0, b"one");
    let bytes = pattern(1_000_000, 1);
    write(&view, large, 0, &bytes);
    let snapshot = store.snapshot("w", &SnapshotOptions::default()).unwrap();

    write(&view, small, 1, b"XYZ");
    write(&view, large, 70_000, b"changed");
    let mut changed = bytes.clone();
    changed[70_000..70_007].copy_from_slice(b"changed");
    assert_eq!(read(&view, large), changed);
    assert_eq!(read(&view, small), b"oXYZ");
    view.rename(
        (sub, b"small"),
        (Ino::ROOT, b"moved"),
        RenameFlags::default(),
    )
    .unwrap();
    view.unlink(sub, b"large").unwrap();
    view.rmdir(Ino::ROOT, b"sub").unwrap();
    assert_eq!(list(&view, Ino::ROOT), ["moved"]);

    let old = store.open_frozen(&snapshot.id).unwrap();
    assert_eq!(list(&old, Ino::ROOT), ["sub"]);
    assert_eq!(list(&old, sub), ["large", "small"]);
    assert_eq!(read(&old, small), b"one");
    assert_eq!(read(&old, large), bytes);
    assert_eq!(old.getattr(Ino::ROOT).unwrap().nlink, 3);
    let refused = old.make(ROOT_USER, Ino::ROOT, b"x", node(FileKind::File));
    assert!(matches!(refused, Err(OpError::ReadOnly)));
}

#[test]
fn forks_do_not_see_each_other_and_survive_reopening() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = new_store(&path);
    store.create_workspace(&name("w")).unwrap();
    let view = store.open_live("w").unwrap();
    let file = make(&view, Ino::ROOT, "f", FileKind::File);
    let bytes = pattern(600_000, 3);
    write(&view, file, 0, &bytes);
    let names: Vec<_> = (1..=3).map(|n| name(&format!("fork-{n}"))).collect();
    store
        .fork(&ForkSource::Workspace("w".into()), &names)
        .unwrap();
    for (n, fork) in names.iter().enumerate() {
        let view = store.open_live(fork.as_str()).unwrap();
        write(&view, file, 300_000, format!("fork {n}").as_bytes());
        truncate(&view, file, 400_000 + n as u64);
    }
    drop(view);
    drop(store);
    let store = Store::open(&path).unwrap();
    assert_eq!(read(&store.open_live("w").unwrap(), file), bytes);
    for (n, fork) in names.iter().enumerate() {
        let view = store.open_live(fork.as_str()).unwrap();
        let mut expected = bytes[..400_000 + n].to_vec();
        let text = format!("fork {n}");
        expected[300_000..300_000 + text.len()].copy_from_slice(text.as_bytes());
        assert_eq!(read(&view, file), expected, "fork {n}");
    }
}

#[test]
fn a_rollback_shows_the_old_state_and_keeps_the_new_one() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(&dir.path().join("s"));
    store.create_workspace(&name("w")).unwrap();
    let view = store.open_live("w").unwrap();
    let kept = make(&view, Ino::ROOT, "kept", FileKind::File);
    write(&view, kept, 0, b"before");
    let snapshot = store.snapshot("w", &SnapshotOptions::default()).unwrap();
    write(&view, kept, 0, b"after!");
    let new = make(&view, Ino::ROOT, "new", FileKind::File);
    let report = store.rollback("w", snapshot.id.as_str()).unwrap();
    assert_eq!(list(&view, Ino::ROOT), ["kept"]);
    assert_eq!(read(&view, kept), b"before");
    assert!(matches!(view.getattr(new), Err(OpError::Stale(_))));
    let again = store.rollback("w", report.kept.as_str()).unwrap();
    assert_eq!(list(&view, Ino::ROOT), ["kept", "new"]);
    assert_eq!(read(&view, kept), b"after!");
    assert_ne!(again.kept, report.kept);
}

#[test]
fn an_unlinked_file_lives_until_its_last_reference_is_returned() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(&dir.path().join("s"));
    store.create_workspace(&name("w")).unwrap();
    let view = store.open_live("w").unwrap();
    let file = make(&view, Ino::ROOT, "f", FileKind::File);
    write(&view, file, 0, &pattern(100_000, 0));
    let objects = store.info().unwrap().objects;
    view.unlink(Ino::ROOT, b"f").unwrap();
    assert_eq!(view.getattr(file).unwrap().nlink, 0);
    assert_eq!(read(&view, file), pattern(100_000, 0));
    view.forget(file, 1);
    // Reclaimed in the background.
    for _ in 0..500 {
        if view.getattr(file).is_err() {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert!(matches!(view.getattr(file), Err(OpError::Stale(_))));
    assert_eq!(store.info().unwrap().objects, objects - 1);
    assert_eq!(store.workspace("w").unwrap().bytes, 0);
}

#[test]
fn a_listing_ends_however_often_what_it_lists_is_renamed() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(&dir.path().join("s"));
    store.create_workspace(&name("w")).unwrap();
    let view = store.open_live("w").unwrap();
    for file in ["a", "b", "c"] {
        make(&view, Ino::ROOT, file, FileKind::File);
    }
    let (mut cookie, mut listed) = (2, 0);
    loop {
        let mut next = None;
        view.readdir(Ino::ROOT, cookie, false, &mut |entry| {
            let taken = next.is_none();
            if taken {
                next = Some((entry.cookie, entry.name.to_vec()));
            }
            taken
        })
        .unwrap();
        let Some((at, old)) = next else {
            break;
        };
        cookie = at;
        listed += 1;
        let new = [&old[..], b"+"].concat();
        let (from, to) = ((Ino::ROOT, &old[..]), (Ino::ROOT, &new[..]));
        view.rename(from, to, RenameFlags::default()).unwrap();
    }
    assert_eq!(listed, 3);
    assert_eq!(list(&view, Ino::ROOT), ["a+", "b+", "c+"]);
    assert!(store.check().unwrap().is_clean());
}

#[test]
fn holes_stay_holes_through_copy_up() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(&dir.path().join("s"));
    store.create_workspace(&name("w")).unwrap();
    let view = store.open_live("w").unwrap();
    let file = make(&view, Ino::ROOT, "f", FileKind::File);
    truncate(&view, file, 10 << 30);
    write(&view, file, 1 << 30, b"data");
    store.snapshot("w", &SnapshotOptions::default()).unwrap();
    write(&view, file, 5 << 30, b"more");
    assert_eq!(view.seek(file, 0, false).unwrap(), 1 << 30);
    assert!(view.seek(file, 1 << 30, true).unwrap() <= (1 << 30) + 65_536);
    assert_eq!(view.seek(file, 2 << 30, false).unwrap(), 5 << 30);
    assert!(matches!(
        view.seek(file, 6 << 30, false),
        Err(OpError::SeekPastEnd { .. })
    ));
    assert!(view.getattr(file).unwrap().blocks < 1024);
    view.fallocate(ROOT_USER, file, Fallocate::PunchHole, 1 << 30, 4)
        .unwrap();
    let mut out = Vec::new();
    view.read(file, 1 << 30, 4, &mut out).unwrap();
    assert_eq!(out, [0; 4]);
    view.open(file, OpenMode::Write).unwrap();
    view.release(file, OpenMode::Write);
}

#[test]
fn what_is_remembered_of_a_workspace_is_what_the_catalog_says() {
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(&dir.path().join("s"));
    store.create_workspace(&name("w")).unwrap();
    let snapshot = |workspace: &str| store.snapshot(workspace, &SnapshotOptions::default());
    let first = snapshot("w").unwrap();
    let second = snapshot("w").unwrap();
    assert_eq!(second.parent.as_ref(), Some(&first.id));

    store.rename_workspace("w", &name("v")).unwrap();
    store.create_workspace(&name("w")).unwrap();
    assert_eq!(snapshot("w").unwrap().parent, None);
    let third = snapshot("v").unwrap();
    assert_eq!(third.parent.as_ref(), Some(&second.id));
    assert_eq!(third.workspace, "v");

    store.rollback("v", first.id.as_str()).unwrap();
    let fourth = snapshot("v").unwrap();
    assert_eq!(fourth.parent.as_ref(), Some(&first.id));

    store.delete_workspace("v").unwrap();
    assert!(snapshot("v").is_err());
    store.create_workspace(&name("v")).unwrap();
    assert_eq!(snapshot("v").unwrap().parent, None);
    let of_two = store.snapshots(&SnapshotFilter::default()).unwrap();
    let parents: Vec<_> = of_two.iter().map(|found| found.parent.clone()).collect();
    assert_eq!(parents[..2], [None, Some(first.id.clone())]);
    assert!(store.check().unwrap().is_clean());
}
