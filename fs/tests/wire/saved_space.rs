//! What becomes of unlinked files that a snapshot keeps for machines: they count where a machine has them, and
//! go where no machine can have them any more.

use std::ops::ControlFlow;
use std::path::Path;

use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, OpError};
use floe_fs::id::Ino;
use floe_fs::{DeleteSelection, ForkSource, Quota, SnapshotInfo, SnapshotOptions, Store};

use crate::common::{make, name, read, write};
use crate::saved::{LARGE, Source, contents, fork, is_there, resume};
use crate::workspace;

/// Files of objects.
fn objects(dir: &Path) -> usize {
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        sum += match entry.file_type().unwrap().is_dir() {
            true => objects(&entry.path()),
            false => 1,
        };
    }
    sum
}

fn delete(store: &Store, snapshots: &[&SnapshotInfo]) {
    let ids = snapshots.iter().map(|snapshot| snapshot.id.to_string());
    let these = DeleteSelection::These(ids.collect());
    store.delete_snapshots(&these, false).unwrap();
    collect(store);
}

fn collect(store: &Store) {
    let mut go_on = |_: &_| ControlFlow::Continue(());
    store.collect(&mut go_on).unwrap();
    assert!(store.check().unwrap().is_clean());
}

/// Once it was reclaimed by nobody but the layer that had unlinked it: a file that was open when a snapshot
/// was taken stayed for ever, in the workspace as in its forks.
#[test]
fn what_nobody_holds_goes_with_the_last_view_of_each_workspace() {
    let dir = tempfile::tempdir().unwrap();
    let (store, view) = workspace(dir.path());
    let file = make(&view, Ino::ROOT, "f", FileKind::File);
    write(&view, file, 0, &[1; 100_000]);
    view.unlink(Ino::ROOT, b"f").unwrap();
    let snapshot = store.snapshot("w", &SnapshotOptions::default()).unwrap();
    let forks = fork(&store, &snapshot, &["opened", "deleted"]);
    let never = ForkSource::Snapshot(snapshot.id.clone());
    store.fork(&never, &[name("later")]).unwrap();
    let all = dir.path().join("s").join("objects");
    assert_eq!(objects(&all), 1);

    // Its connection has ended without a word, and it is closed.
    store.close_view(&view);
    let again = store.open_live("w").unwrap();
    assert!(!is_there(&again, file));
    store.close_view(&again);
    assert!(is_there(&forks[0], file), "it is the fork's own affair");
    store.close_view(&forks[0]);
    store.close_view(&forks[1]);
    drop((view, forks));
    for name in ["deleted", "opened"] {
        store.delete_workspace(name).unwrap();
    }
    delete(&store, &[&snapshot]);
    assert_eq!(objects(&all), 1, "a machine may start where nobody was yet");
    let later = store.open_live("later").unwrap();
    assert_eq!(read(&later, file).len(), 100_000);
    store.close_view(&later);
    // What several stand on is not looked through.
    store.delete_workspace("w").unwrap();
    collect(&store);
    assert_eq!(objects(&all), 0);
    assert!(store.workspace("later").is_ok());
}

#[test]
fn in_a_chain_of_snapshots_each_keeps_what_was_open_then() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let (first, _) = source.snapshot();
    let (second, state) = source.snapshot();
    let (large, small) = (source.large, source.small);
    for node in [large, small] {
        source.client.release(node, libc::O_RDWR).unwrap();
        source.client.forget(node, 1);
    }
    source.client.lookup(1, "kept").unwrap();
    source.store.settle().unwrap();
    let (third, _) = source.snapshot();
    source.client.hang_up().unwrap();
    source.store.close_view(&source.view);
    let all = dir.path().join("s").join("objects");
    // What the second one stands on is deleted, and handed down to it.
    delete(&source.store, &[&first]);
    let view = &fork(&source.store, &second, &["a"])[0];
    let clone = resume(view, &state);
    assert_eq!(contents(&clone, large), [7; LARGE]);
    assert_eq!(contents(&clone, small), b"small");
    let without = &fork(&source.store, &third, &["b"])[0];
    assert!(!is_there(without, Ino(large)));

    // Of a deleted snapshot as long as the clone has it.
    delete(&source.store, &[&second, &third]);
    assert_eq!(contents(&clone, large), [7; LARGE]);
    clone.write(large, 0, b"more").unwrap();
    clone.hang_up().unwrap();
    source.store.settle().unwrap();
    source.store.close_view(view);
    source.store.close_view(without);
    for name in ["w", "b"] {
        source.store.delete_workspace(name).unwrap();
    }
    collect(&source.store);
    assert_eq!(objects(&all), 0);
}

#[test]
fn what_a_clone_has_open_counts_until_it_is_closed() {
    let dir = tempfile::tempdir().unwrap();
    let source = Source::new(dir.path());
    let (snapshot, state) = source.snapshot();
    let store = &source.store;
    let view = &fork(store, &snapshot, &["a"])[0];
    let quota = Quota {
        bytes: Some(1 << 20),
        inodes: Some(100),
    };
    store.set_quota("a", quota).unwrap();
    let used = || {
        let figures = view.statfs().unwrap();
        let bytes = (figures.blocks - figures.blocks_free) * u64::from(figures.block_size);
        (bytes, figures.files - figures.files_free)
    };
    let before = used();
    let clone = resume(view, &state);
    let held = used();
    assert!(
        held.0 >= before.0 + LARGE as u64,
        "{held:?} after {before:?}"
    );
    assert_eq!(held.1, before.1 + 3);
    // A second connection with the same counts nothing twice.
    let other = resume(view, &state);
    assert_eq!(used(), held);
    other.hang_up().unwrap();
    assert_eq!(used(), held);
    let more = vec![1; 900_000];
    let file = clone.create(1, "more", libc::O_RDWR).unwrap();
    assert_eq!(clone.write(file, 0, &more), Err(libc::EDQUOT));
    for node in [source.large, source.small] {
        clone.release(node, libc::O_RDWR).unwrap();
        clone.forget(node, 1);
    }
    clone.write(file, 0, &more).unwrap();
    clone.hang_up().unwrap();
    store.settle().unwrap();
    // It counts what it says itself, in a debug build.
    store.close_view(view);
    let late = view.reference(&[(Ino::ROOT, 1)]);
    assert!(matches!(late, Err(OpError::Closed)), "{late:?}");
    source.client.hang_up().unwrap();
    store.close_view(&source.view);
    assert!(store.check().unwrap().is_clean());
}
