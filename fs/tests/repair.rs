//! `Store::repair`: what can be put right is, what cannot is named, and nothing else changes; and what is
//! left of a store without a catalog.

#[path = "common/mod.rs"]
mod common;
#[path = "repair/support.rs"]
mod support;

use std::ops::ControlFlow;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, RenameFlags};
use floe_fs::id::Ino;
use floe_fs::{OpenError, RepairError, RepairOptions, RescueError, Store};

use common::{list, make, read, write};
use support::{
    BLOCK, Copy, DATA, Fixture, LARGE, METADATA, NEW, OLD, check_data, close, fixture, large,
    quarantined, repair,
};

/// What is derived from other rows is counted anew, and a second check is clean.
#[test]
fn rows_that_follow_from_others_are_repaired() {
    let f = fixture();
    let (frozen, live, large_ino, dir) = (f.frozen, f.live, f.large, f.dir);
    let cases = [
        format!("UPDATE layer SET bytes = bytes + 512 WHERE id = {live}"),
        format!("UPDATE layer SET inodes = 77, bytes = 1 WHERE id = {frozen}"),
        format!("UPDATE inode SET nlink = 9 WHERE ino = {large_ino} AND layer = {live}"),
        format!(
            "INSERT INTO inode SELECT ino, {live}, kind, perm, uid, gid, 7, rdev, size, blocks, atime, \
             atime_ns, mtime, mtime_ns, ctime, ctime_ns, btime, btime_ns, born, parent, content, xattr \
             FROM inode WHERE ino = {dir} AND layer = {frozen}"
        ),
        format!(
            "INSERT INTO dentry SELECT parent, name, {live}, ino, kind, cookie, 0 FROM dentry \
             WHERE ino = {large_ino} AND parent = {dir}"
        ),
        "INSERT INTO label VALUES ('0000000000000000', 'k', 'v')".to_owned(),
        "INSERT INTO mount VALUES (x'2f61', 77, NULL, 0)".to_owned(),
        "INSERT INTO retention VALUES (77, 0, 1, NULL)".to_owned(),
        "INSERT INTO template VALUES ('t', '0000000000000000', 1, NULL)".to_owned(),
        "INSERT INTO sandbox VALUES ('s', 0, 'running', NULL, 77, 't', NULL, 1, NULL, NULL, 0, 0, 0, \
         NULL, NULL, NULL, '', NULL)"
            .to_owned(),
        "INSERT INTO sandbox VALUES ('s', 0, 'sleeping', NULL, NULL, 't', NULL, 1, NULL, NULL, 9, 0, 0, \
         NULL, NULL, NULL, '', NULL)"
            .to_owned(),
        format!("UPDATE object SET hashed = 1 WHERE id = {NEW}"),
        "INSERT INTO checksum VALUES (900, 0, x'')".to_owned(),
        format!(
            "INSERT INTO checksum VALUES ({OLD}, 0, x'00'); UPDATE object SET hashed = 1 WHERE id = {OLD}"
        ),
        format!("INSERT INTO doomed_object VALUES ({OLD})"),
        "UPDATE meta SET value = 20 WHERE key = 'next_ino'".to_owned(),
        "UPDATE meta SET value = 2 WHERE key = 'next_object'".to_owned(),
        format!("DELETE FROM object WHERE id = {OLD}"),
    ];
    for sql in &cases {
        let copy = f.copy();
        copy.sql(sql);
        let store = copy.open();
        assert!(!store.check().unwrap().is_clean(), "{sql}");
        let done = repair(&store, METADATA);
        assert!(done.is_clean(), "{sql}: {done:#?}");
        assert!(!done.steps.is_empty() && quarantined(&copy.path).is_empty());
        shows_everything(&store, &f);
        // Numbers go on above those in use.
        let view = store.open_live("w").unwrap();
        let new = make(&view, Ino::ROOT, "new", FileKind::File);
        write(&view, new, 0, &vec![1; 20_000]);
        store.close_view(&view);
        drop(view);
        close(store);
        let store = copy.open();
        let report = check_data(&store);
        assert!(report.is_clean(), "{sql}: {:?}", report.problems);
        shows_everything(&store, &f);
    }
}

fn shows_everything(store: &Store, f: &Fixture) {
    let frozen = store.open_frozen(&f.snapshot).unwrap();
    assert_eq!(read(&frozen, f.large), large());
    assert_eq!(frozen.getattr(f.large).unwrap().nlink, 2);
    let live = store.open_live("w").unwrap();
    let mut expected = large();
    expected[..BLOCK].fill(0xee);
    assert_eq!(read(&live, f.large), expected);
    assert_eq!(live.getattr(f.large).unwrap().nlink, 2);
    assert_eq!(live.getattr(f.dir).unwrap().nlink, 2);
    assert_eq!(read(&live, f.small), b"small");
    store.close_view(&live);
}

#[test]
fn files_that_belong_to_nothing_are_kept_in_quarantine() {
    let f = fixture();
    let copy = f.copy();
    std::fs::write(copy.object(0x3ff), b"stray").unwrap();
    std::fs::write(copy.object(0x3fe), b"unused").unwrap();
    copy.sql(&format!(
        "INSERT INTO object (id, ino, layer) VALUES (1022, {}, 77)",
        f.small
    ));
    let store = copy.open();
    let before = store.check().unwrap();
    assert_eq!(before.problems.len(), 2, "{:?}", before.problems);
    let would = repair(
        &store,
        RepairOptions {
            dry_run: true,
            ..METADATA
        },
    );
    assert_eq!(would.steps.len(), 2);
    assert!(copy.object(0x3ff).exists() && quarantined(&copy.path).is_empty());
    let done = repair(&store, METADATA);
    assert!(done.is_clean(), "{done:?}");
    assert_eq!(quarantined(&copy.path), ["3fe", "3ff"]);
    let kept = std::fs::read(copy.path.join("quarantine/3ff")).unwrap();
    assert_eq!(kept, b"stray");
    // Another of the name beside it.
    std::fs::write(copy.object(0x3ff), b"again").unwrap();
    assert!(repair(&store, METADATA).is_clean());
    assert_eq!(quarantined(&copy.path), ["3fe", "3ff", "3ff.1"]);
    close(store);
    let store = copy.open();
    assert!(store.check().unwrap().is_clean());
    shows_everything(&store, &f);
}

/// The file of an object whose row is lost is all that there is to repair it with.
#[test]
fn opening_after_a_crash_leaves_what_extents_name() {
    let f = fixture();
    let copy = f.copy();
    copy.sql(&format!("DELETE FROM object WHERE id = {OLD}"));
    std::fs::write(copy.object(900), b"nobody's").unwrap();
    std::fs::write(copy.path.join("lock"), b"1\n").unwrap();
    let store = copy.open();
    assert!(copy.object(OLD).exists() && !copy.object(900).exists());
    assert!(repair(&store, METADATA).is_clean());
    shows_everything(&store, &f);
}

/// Names that are to be given may be taken: by files of the user.
#[test]
fn what_lost_its_name_replaces_nothing() {
    let f = fixture();
    let copy = f.copy();
    let store = copy.open();
    let view = store.open_live("w").unwrap();
    let small = make(&view, Ino::ROOT, "gone", FileKind::File);
    for taken in ["lost+found", "lost+found-floe"] {
        let file = make(&view, Ino::ROOT, taken, FileKind::File);
        write(&view, file, 0, b"mine");
    }
    let lost = make(&view, Ino::ROOT, "lost+found-floe-1", FileKind::Directory);
    let same = make(&view, lost, &format!("ino-{small}"), FileKind::File);
    write(&view, same, 0, b"mine");
    store.close_view(&view);
    drop(view);
    close(store);
    copy.sql(&format!("DELETE FROM dentry WHERE ino = {small}"));
    let store = copy.open();
    let done = repair(&store, METADATA);
    assert!(done.is_clean(), "{done:#?}");
    let view = store.open_live("w").unwrap();
    let names = list(&view, lost);
    assert_eq!(names, [format!("ino-{small}"), format!("ino-{small}-1")]);
    assert_eq!(read(&view, same), b"mine");
    let root = list(&view, Ino::ROOT);
    let kept = root.iter().filter(|name| name.starts_with("lost+found"));
    assert_eq!(kept.count(), 3);
    store.close_view(&view);
}

#[test]
fn what_lost_its_name_in_a_workspace_is_found_again() {
    let f = fixture();
    let copy = f.copy();
    let store = copy.open();
    let view = store.open_live("w").unwrap();
    let tree = make(&view, Ino::ROOT, "tree", FileKind::Directory);
    let leaf = make(&view, tree, "leaf", FileKind::Directory);
    let file = make(&view, Ino::ROOT, "file", FileKind::File);
    write(&view, file, 0, b"lost");
    store.close_view(&view);
    drop(view);
    close(store);
    copy.sql(&format!("DELETE FROM dentry WHERE ino IN ({tree}, {file})"));
    let store = copy.open();
    let done = repair(&store, METADATA);
    assert!(done.is_clean(), "{done:#?}");
    let view = store.open_live("w").unwrap();
    let found = view.lookup(Ino::ROOT, b"lost+found").unwrap().unwrap().ino;
    let mut names = [format!("ino-{tree}"), format!("ino-{file}")];
    names.sort();
    assert_eq!(list(&view, found), names);
    assert_eq!(read(&view, file), b"lost");
    assert_eq!(list(&view, tree), ["leaf"]);
    assert_eq!(view.getattr(leaf).unwrap().nlink, 2);
    view.rename(
        (found, names[0].as_bytes()),
        (Ino::ROOT, b"back"),
        RenameFlags::default(),
    )
    .unwrap();
    store.close_view(&view);
    drop(view);
    assert!(store.check().unwrap().is_clean());
    // The snapshot shows nothing of it.
    let frozen = store.open_frozen(&f.snapshot).unwrap();
    assert!(frozen.lookup(Ino::ROOT, b"lost+found").unwrap().is_none());
}

/// What would take a guess, or change a snapshot, stays as it is and is named.
#[test]
fn what_cannot_be_repaired_is_left_and_told_with_the_reason() {
    let f = fixture();
    let (frozen, live, large_ino, dir) = (f.frozen, f.live, f.large, f.dir);
    let cases = [
        (
            format!("UPDATE inode SET nlink = 9 WHERE ino = {large_ino} AND layer = {frozen}"),
            "frozen layer",
        ),
        (
            format!("UPDATE dentry SET ino = 9999 WHERE parent = {dir} AND name = x'736d616c6c'"),
            "led to",
        ),
        (
            format!(
                "UPDATE inode SET mtime_ns = 1000000000 WHERE ino = {large_ino} AND layer = {live}"
            ),
            "not known",
        ),
        (
            format!("DELETE FROM inline WHERE ino = {}", f.small),
            "not known",
        ),
        (
            format!("UPDATE layer SET workspace = 77 WHERE id = {frozen}"),
            "which of the rows",
        ),
    ];
    for (sql, why) in &cases {
        let copy = f.copy();
        copy.sql(sql);
        let store = copy.open();
        let before = store.check().unwrap();
        let done = repair(&store, METADATA);
        assert!(!done.is_clean(), "{sql}");
        assert!(
            done.left.iter().any(|left| left.why.contains(why)),
            "{sql}: {:#?}",
            done.left
        );
        for problem in &done.after.problems {
            assert!(before.problems.contains(problem), "{sql}: {problem}");
        }
    }
}

#[test]
fn strangers_in_the_objects_directory_are_left_to_their_owner() {
    let f = fixture();
    let copy = f.copy();
    std::fs::write(copy.path.join("objects/stranger"), b"x").unwrap();
    let store = copy.open();
    let done = repair(&store, METADATA);
    assert!(!done.is_clean() && done.steps.is_empty());
    assert!(done.left[0].why.contains("did not make it"));
    assert!(copy.path.join("objects/stranger").exists());
    // Nothing was to be done: no copy was made.
    assert!(done.catalog_copy.is_none());
}

#[test]
fn a_store_in_use_is_not_repaired() {
    let f = fixture();
    let copy = f.copy();
    let store = copy.open();
    let go = &mut |_: &_| ControlFlow::Continue(());
    let live = store.open_live("w").unwrap();
    let refused = store.repair(DATA, go);
    assert!(matches!(refused, Err(RepairError::InUse { .. })));
    store.close_view(&live);
    drop(live);
    let frozen = store.open_frozen(&f.snapshot).unwrap();
    let refused = store.repair(DATA, go);
    assert!(matches!(refused, Err(RepairError::InUse { .. })));
    drop(frozen);
    // Nobody opens anything meanwhile, and everybody afterwards.
    let mut asked = 0;
    let report = store.repair(DATA, &mut |_| {
        asked += 1;
        assert!(store.open_live("w").is_err());
        assert!(store.open_frozen(&f.snapshot).is_err());
        ControlFlow::Continue(())
    });
    assert!(report.unwrap().is_clean() && asked > 0);
    let stopped = store.repair(DATA, &mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(RepairError::Interrupted)));
    store.open_live("w").unwrap();
}

#[test]
fn objects_are_listed_and_copied_whatever_became_of_the_catalog() {
    let f = fixture();
    let copy = f.copy();
    let found = Store::object_files(&copy.path).unwrap();
    assert_eq!(found.catalog, None);
    let paths: Vec<_> = found.objects.iter().map(|file| file.path.clone()).collect();
    assert!(
        paths
            .iter()
            .all(|path| path.as_ref().is_some_and(|path| path.starts_with("/")))
    );
    assert_eq!(found.objects[0].ino, Some(f.large));
    let catalogs: [fn(&Copy); 2] = [
        |copy| std::fs::write(copy.path.join("catalog.db"), vec![b'x'; 5000]).unwrap(),
        |copy| std::fs::remove_file(copy.path.join("catalog.db")).unwrap(),
    ];
    for damage in catalogs {
        damage(&copy);
        let opened = Store::open(&copy.path).err().unwrap();
        assert!(
            matches!(
                opened,
                OpenError::Damaged { .. } | OpenError::CatalogLost { .. }
            ),
            "{opened}"
        );
        let found = Store::object_files(&copy.path).unwrap();
        assert!(found.catalog.is_some());
        let ids: Vec<u64> = found.objects.iter().map(|file| file.id.0).collect();
        assert_eq!(ids, [OLD, NEW]);
        let first = &found.objects[0];
        assert_eq!((first.size, &first.path), (LARGE as u64, &None));
        let go = &mut |_, _| ControlFlow::Continue(());
        let to = copy.path.parent().unwrap().join("rescued");
        Store::copy_objects(&found.objects, &to, go).unwrap();
        assert_eq!(std::fs::read(to.join("1")).unwrap(), large());
        let again = Store::copy_objects(&found.objects, &to, go);
        assert!(matches!(again, Err(RescueError::Exists { .. })));
        std::fs::remove_dir_all(&to).unwrap();
        // A link is in the way as well, and nothing is written through it.
        std::fs::create_dir(&to).unwrap();
        let outside = copy.path.parent().unwrap().join("outside");
        std::os::unix::fs::symlink(&outside, to.join("2")).unwrap();
        let refused = Store::copy_objects(&found.objects, &to, go);
        assert!(matches!(refused, Err(RescueError::Exists { .. })));
        assert!(!outside.exists() && !to.join("1").exists());
        std::fs::remove_dir_all(&to).unwrap();
        std::os::unix::fs::symlink(copy.path.parent().unwrap(), &to).unwrap();
        let refused = Store::copy_objects(&found.objects, &to, go);
        assert!(matches!(refused, Err(RescueError::Access { .. })));
        std::fs::remove_file(&to).unwrap();
    }
    // It is no place for a new one either.
    assert!(matches!(
        Store::init(&copy.path),
        Err(OpenError::CatalogLost { .. })
    ));
}
