//! Stores of older formats, kept as they were written, are migrated and show what they held.

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_fs::dispatch::Dispatch;
use floe_fs::id::Ino;
use floe_fs::{
    ForkSource, RuleSource, SnapshotClass, SnapshotFilter, SnapshotInfo, SnapshotOptions, Store,
    View,
};

use common::{copy_dir, list, name, new_store, read};

fn private(path: &Path) {
    let mode = if path.is_dir() { 0o700 } else { 0o600 };
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    if path.is_dir() {
        for entry in fs::read_dir(path).unwrap() {
            private(&entry.unwrap().path());
        }
    }
}

/// A copy of what a program of that format left behind.
fn fixture(format: u32) -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let kept =
        Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/format-{format}"));
    copy_dir(&kept, &path);
    private(&path);
    assert_eq!(format_of(&path), format);
    (dir, path)
}

/// As docs/format.md says: without decoding anything.
fn format_of(store: &Path) -> u32 {
    let head = fs::read(store.join("catalog.db")).unwrap();
    u32::from_be_bytes(head[60..64].try_into().unwrap())
}

fn found(view: &View, parent: Ino, name: &[u8]) -> Ino {
    view.lookup(parent, name).unwrap().unwrap().ino
}

fn large(changed: bool) -> Vec<u8> {
    let mut bytes: Vec<u8> = b"large\n".iter().copied().cycle().take(70_000).collect();
    if changed {
        bytes[65_540] = b'X';
    }
    bytes
}

fn shows_the_first_state(view: &View) {
    assert_eq!(list(view, Ino::ROOT), ["dir", "link"]);
    let dir = found(view, Ino::ROOT, b"dir");
    assert_eq!(list(view, dir), ["large", "other", "small"]);
    let small = found(view, dir, b"small");
    assert_eq!(found(view, dir, b"other"), small);
    assert_eq!(read(view, small), b"small\n");
    assert_eq!(view.getattr(small).unwrap().nlink, 2);
    assert_eq!(view.getxattr(small, b"user.a").unwrap(), b"1");
    assert_eq!(read(view, found(view, dir, b"large")), large(false));
    let link = found(view, Ino::ROOT, b"link");
    assert_eq!(view.readlink(link).unwrap(), b"dir/small");
}

fn shows_the_second_state(view: &View) {
    assert_eq!(list(view, Ino::ROOT), ["dir", "link", "more"]);
    let dir = found(view, Ino::ROOT, b"dir");
    assert_eq!(list(view, dir), ["large", "other"]);
    assert_eq!(read(view, found(view, dir, b"large")), large(true));
    assert_eq!(read(view, found(view, Ino::ROOT, b"more")), b"more\n");
}

fn frozen(store: &Arc<Store>, reference: &str) -> Arc<View> {
    let snapshot = store.find_snapshot(reference).unwrap();
    store.open_frozen(&snapshot.id).unwrap()
}

#[test]
fn a_store_of_format_1_is_migrated_with_everything_in_it() {
    is_migrated_with_everything_in_it(1, 566);
}

#[test]
fn a_store_of_format_2_is_migrated_with_everything_in_it() {
    is_migrated_with_everything_in_it(2, 431);
}

#[test]
fn a_store_of_format_3_is_migrated_with_everything_in_it() {
    is_migrated_with_everything_in_it(3, 349);
    let (_dir, path) = fixture(3);
    let store = Store::open(&path).unwrap();
    let second = store.find_snapshot("w/second").unwrap();
    assert!(second.protected && second.expires_at.is_some());
    let quota = store.workspace("trial").unwrap().quota;
    assert_eq!((quota.bytes, quota.inodes), (Some(1 << 30), Some(1000)));
    let rules = store.retention_rules(Some("w")).unwrap();
    let own: Vec<_> = rules
        .iter()
        .filter(|rule| rule.source == RuleSource::Workspace)
        .map(|rule| (rule.class, rule.rule.keep_last.map(std::num::NonZero::get)))
        .collect();
    assert_eq!(own, [(SnapshotClass::Automatic, Some(9))]);
    assert!(store.all_sandboxes().unwrap().is_empty());
    assert!(store.templates().unwrap().is_empty());
}

/// The first snapshot took so many microseconds.
fn is_migrated_with_everything_in_it(format: u32, elapsed_us: u64) {
    let (_dir, path) = fixture(format);
    let store = Store::open(&path).unwrap();
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);

    let snapshots = store.snapshots(&SnapshotFilter::default()).unwrap();
    let told = |s: &SnapshotInfo| (s.workspace.clone(), s.name.clone(), s.automatic.clone());
    let expected = [
        ("gone", Some("kept"), None),
        ("w", None, Some("rollback")),
        ("w", Some("second"), None),
        ("w", Some("first"), None),
    ]
    .map(|(workspace, name, automatic)| {
        let owned = |text: Option<&str>| text.map(str::to_owned);
        (workspace.to_owned(), owned(name), owned(automatic))
    });
    assert_eq!(snapshots.iter().map(told).collect::<Vec<_>>(), expected);
    let [_, automatic, second, first] = &snapshots[..] else {
        panic!("{snapshots:?}");
    };
    assert_eq!(first.message.as_deref(), Some("a message"));
    assert_eq!(first.labels.get("k").map(String::as_str), Some("v"));
    assert_eq!(first.elapsed_us, elapsed_us);
    assert_eq!(first.parent, None);
    assert_eq!(second.parent.as_ref(), Some(&first.id));
    assert_eq!(automatic.parent.as_ref(), Some(&second.id));

    let names: Vec<_> = store.workspaces().unwrap();
    let names: Vec<_> = names
        .iter()
        .map(|w| (&w.name[..], w.snapshot_count))
        .collect();
    assert_eq!(names, [("trial", 0), ("w", 3)]);
    shows_the_first_state(&store.open_live("w").unwrap());
    shows_the_second_state(&store.open_live("trial").unwrap());
    shows_the_first_state(&frozen(&store, "w/first"));
    shows_the_second_state(&frozen(&store, "second"));
    assert_eq!(list(&frozen(&store, "kept"), Ino::ROOT), [""; 0]);
}

#[test]
fn a_migrated_store_is_worked_with_and_opened_again() {
    let (_dir, path) = fixture(1);
    let store = Store::open(&path).unwrap();
    assert!(format_of(&path) > 1);
    let options = SnapshotOptions::default();
    let taken = store.snapshot("w", &options).unwrap();
    let first = store.find_snapshot("w/first").unwrap();
    assert_eq!(taken.parent.as_ref(), Some(&first.id));
    store
        .fork(&ForkSource::Snapshot(taken.id.clone()), &[name("again")])
        .unwrap();
    let again = store.open_live("again").unwrap();
    shows_the_first_state(&again);
    store.close_view(&again);
    drop(again);
    drop(store);

    let store = Store::open(&path).unwrap();
    shows_the_first_state(&store.open_live("again").unwrap());
    let newest = store.snapshots(&SnapshotFilter::default()).unwrap();
    assert_eq!(newest[0].id, taken.id);
    let report = store.check().unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
}

/// docs/format.md says how many, and the time of a snapshot is mostly theirs.
#[test]
fn a_snapshot_changes_five_pages_of_the_catalog() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let store = new_store(&path);
    store.create_workspace(&name("w")).unwrap();
    // In the log a page has a header of 24 bytes.
    let pages = || fs::metadata(path.join("catalog.db-wal")).unwrap().len() / (4096 + 24);
    // A tree that grows, and what is written in the background, add to some.
    let changed = (0..8).map(|_| {
        let before = pages();
        store.snapshot("w", &SnapshotOptions::default()).unwrap();
        pages() - before
    });
    assert_eq!(changed.min(), Some(5));
}
