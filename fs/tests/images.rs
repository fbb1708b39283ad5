//! Images of machines' memory, as far as the store goes: which snapshots have one, and when its directory goes.

mod common;

use std::fs;
use std::num::NonZeroU64;
use std::ops::ControlFlow;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use floe_fs::id::SnapshotId;
use floe_fs::{
    DeleteSelection, Fidelity, ImageError, ImageState, RetentionRule, SnapshotClass,
    SnapshotFilter, SnapshotInfo, SnapshotOptions, Store,
};

use common::{name, new_store};

fn store_with_w(dir: &Path) -> Arc<Store> {
    let store = new_store(dir);
    store.create_workspace(&name("w")).unwrap();
    store
}

/// A snapshot whose image is as far as that, with a file in it.
fn with_image(store: &Store, state: ImageState) -> (SnapshotInfo, PathBuf) {
    let id = SnapshotId::random().unwrap();
    let dir = store.images_dir().join(id.as_str());
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("memory"), "pages").unwrap();
    let options = SnapshotOptions {
        id: Some(id.clone()),
        ..SnapshotOptions::default()
    };
    let taken = store.snapshot("w", &options).unwrap();
    assert_eq!(taken.id, id);
    assert_eq!(taken.fidelity, Fidelity::Filesystem, "nothing was said yet");
    store.set_image(&id, state).unwrap();
    (store.find_snapshot(id.as_str()).unwrap(), dir)
}

fn of(store: &Store, fidelity: Fidelity) -> Vec<SnapshotId> {
    let filter = SnapshotFilter {
        fidelity: Some(fidelity),
        ..SnapshotFilter::default()
    };
    let found = store.snapshots(&filter).unwrap();
    found.into_iter().map(|info| info.id).collect()
}

fn delete(store: &Store, id: &SnapshotId) {
    let these = DeleteSelection::These(vec![id.to_string()]);
    store.delete_snapshots(&these, false).unwrap();
}

#[test]
fn a_snapshot_has_memory_as_long_as_its_image_can_be_used() {
    let scratch = tempfile::tempdir().unwrap();
    let dir_of_store = scratch.path().join("store");
    let store = store_with_w(&dir_of_store);
    let (captured, _) = with_image(&store, ImageState::Captured);
    let (sealed, dir) = with_image(&store, ImageState::Sealed);
    let (failed, gone) = with_image(&store, ImageState::Failed);
    assert_eq!(captured.fidelity, Fidelity::FilesystemMemory);
    let blocks = fs::metadata(dir.join("memory")).unwrap().blocks();
    assert_eq!(sealed.image.unwrap().bytes, blocks * 512);
    assert_eq!(failed.image.unwrap().bytes, 0);
    assert_eq!(failed.fidelity, Fidelity::Filesystem);
    assert_eq!(failed.image.unwrap().state, ImageState::Failed);
    assert!(dir.exists() && !gone.exists());
    let (memory, files) = (Fidelity::FilesystemMemory, Fidelity::Filesystem);
    assert_eq!(of(&store, memory), [sealed.id.clone(), captured.id.clone()]);
    assert_eq!(of(&store, files), [failed.id]);
    assert!(store.would_free(std::slice::from_ref(&sealed)).unwrap() >= 4096);
    drop(store);
    let store = Store::open(&dir_of_store).unwrap();
    assert_eq!(of(&store, memory), [sealed.id, captured.id]);
    assert!(dir.exists());
}

#[test]
fn memory_that_is_being_captured_is_told_from_the_freeze_on() {
    let scratch = tempfile::tempdir().unwrap();
    let dir_of_store = scratch.path().join("store");
    let store = store_with_w(&dir_of_store);
    let options = SnapshotOptions {
        memory: true,
        ..SnapshotOptions::default()
    };
    let capturing = |info: &SnapshotInfo| {
        let state = info.image.map(|image| image.state);
        assert_eq!(state, Some(ImageState::Capturing));
        assert_eq!(info.fidelity, Fidelity::FilesystemMemory);
    };
    let taken = store.snapshot("w", &options).unwrap();
    capturing(&taken);
    let forked = store.snapshot_to_fork("w", &options).unwrap();
    assert_eq!(forked.automatic.as_deref(), Some("fork"));
    let dir = store.images_dir().join(taken.id.as_str());
    fs::create_dir_all(&dir).unwrap();
    fs::write(dir.join("memory"), "pages").unwrap();
    // As after a kill: it stays for whoever knows what is in it.
    drop(store);
    let store = Store::open(&dir_of_store).unwrap();
    capturing(&store.find_snapshot(taken.id.as_str()).unwrap());
    assert!(dir.exists());
    assert_eq!(
        of(&store, Fidelity::FilesystemMemory),
        [forked.id, taken.id.clone()]
    );
    store.set_image(&taken.id, ImageState::Captured).unwrap();
    let info = store.find_snapshot(taken.id.as_str()).unwrap();
    assert_eq!(info.image.unwrap().state, ImageState::Captured);
    let blocks = fs::metadata(dir.join("memory")).unwrap().blocks();
    assert_eq!(info.image.unwrap().bytes, blocks * 512);
}

#[test]
fn rules_neither_count_nor_delete_what_is_still_being_captured_and_keep_what_is_held() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store_with_w(&scratch.path().join("store"));
    let rule = RetentionRule {
        keep_last: NonZeroU64::new(1),
        keep_within: None,
    };
    store
        .set_retention(Some("w"), SnapshotClass::ByHand, &rule)
        .unwrap();
    let (first, _) = with_image(&store, ImageState::Sealed);
    let options = SnapshotOptions {
        memory: true,
        ..SnapshotOptions::default()
    };
    let capturing = store.snapshot("w", &options).unwrap();
    assert!(capturing.is_capturing());
    assert_eq!(store.apply_retention(true).unwrap().retired, []);
    let newest = DeleteSelection::Matching {
        filter: SnapshotFilter::default(),
        keep_last: 1,
    };
    assert_eq!(
        store.delete_snapshots(&newest, true).unwrap().deleted.len(),
        0
    );

    let hold = store.hold_snapshot(&first).unwrap();
    store
        .set_image(&capturing.id, ImageState::Captured)
        .unwrap();
    let report = store.apply_retention(false).unwrap();
    assert_eq!((report.retired.len(), report.in_use), (0, 1));
    assert!(store.find_snapshot(first.id.as_str()).is_ok());
    drop(hold);
    store.apply_retention(false).unwrap();
    assert!(store.find_snapshot(first.id.as_str()).is_err());
    assert!(store.find_snapshot(capturing.id.as_str()).is_ok());
    assert!(store.hold_snapshot(&first).is_err());
}

#[test]
fn what_an_image_takes_is_in_every_size() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store_with_w(&scratch.path().join("store"));
    let (taken, dir) = with_image(&store, ImageState::Sealed);
    fs::write(dir.join("memory"), vec![1; 1 << 20]).unwrap();
    let mut go_on = |_, _| ControlFlow::Continue(());
    let usage = store.usage(&mut go_on).unwrap();
    assert!(usage.images >= 1 << 20, "{usage:?}");
    assert!(usage.total > usage.images);
    let of_it = store.snapshot_usage(std::slice::from_ref(&taken), &mut go_on);
    assert!(of_it.unwrap()[0].exclusive >= 1 << 20);
    assert!(store.would_free(&[taken]).unwrap() >= 1 << 20);
}

#[test]
fn an_image_goes_with_its_snapshot_and_when_the_store_is_opened_if_it_has_none() {
    let scratch = tempfile::tempdir().unwrap();
    let dir_of_store = scratch.path().join("store");
    let store = store_with_w(&dir_of_store);
    let (kept, kept_dir) = with_image(&store, ImageState::Sealed);
    let (gone, gone_dir) = with_image(&store, ImageState::Sealed);
    delete(&store, &gone.id);
    assert!(!gone_dir.exists() && kept_dir.exists());
    // One whose snapshot went while it was made.
    fs::create_dir_all(&gone_dir).unwrap();
    let late = store.set_image(&gone.id, ImageState::Captured);
    assert!(matches!(late, Err(ImageError::NoSnapshot { snapshot }) if snapshot == gone.id));
    assert!(!gone_dir.exists());
    // And one that a daemon was killed with.
    let left = store
        .images_dir()
        .join(SnapshotId::random().unwrap().as_str());
    fs::create_dir_all(&left).unwrap();
    drop(store);
    let store = Store::open(&dir_of_store).unwrap();
    assert!(!left.exists() && kept_dir.exists());
    delete(&store, &kept.id);
    assert_eq!(fs::read_dir(store.images_dir()).unwrap().count(), 0);
}

#[test]
fn an_image_that_the_disk_has_no_room_for_is_refused() {
    let scratch = tempfile::tempdir().unwrap();
    let store = store_with_w(&scratch.path().join("store"));
    store.room_for_image(4096).unwrap();
    assert!(store.room_for_image(u64::MAX / 4).is_err());
}
