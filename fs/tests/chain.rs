//! A long chain of snapshots, deleted in random order but for one: that one shows what it did, and the
//! rest comes back.

mod common;

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::path::Path;

use floe_fs::attr::FileKind;
use floe_fs::id::{Ino, SnapshotId};
use floe_fs::{DeleteSelection, SnapshotOptions, Store, View};

use common::{append, make, name, new_store, read, write};

/// A small generator of numbers (xorshift): the same ones each time.
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).unwrap()
    }
}

fn length() -> usize {
    match std::env::var_os("FLOE_TEST_LONG") {
        Some(_) => 10_000,
        None => 1_000,
    }
}

fn used(dir: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let mut sum = 0;
    for entry in std::fs::read_dir(dir).unwrap() {
        let entry = entry.unwrap();
        let meta = entry.metadata().unwrap();
        sum += match meta.is_dir() {
            true => used(&entry.path()),
            false => meta.blocks() * 512,
        };
    }
    sum
}

fn delete(store: &Store, ids: Vec<SnapshotId>) {
    let ids = ids.into_iter().map(|id| id.to_string());
    let these = DeleteSelection::These(ids.collect());
    store.delete_snapshots(&these, false).unwrap();
}

fn collect(store: &Store) {
    let mut go_on = |_: &_| ControlFlow::Continue(());
    store.collect(&mut go_on).unwrap();
}

/// What each snapshot of a few holds.
type Kept = BTreeMap<usize, (SnapshotId, Vec<Vec<u8>>)>;

fn shows(view: &View, files: &[Ino], expected: &[Vec<u8>]) {
    for (ino, bytes) in files.iter().zip(expected) {
        assert!(read(view, *ino) == *bytes, "{ino}");
    }
}

#[test]
fn of_a_long_chain_all_but_one_are_deleted_in_random_order() {
    let length = length();
    let dir = tempfile::tempdir().unwrap();
    let store = new_store(&dir.path().join("s"));
    store.create_workspace(&name("w")).unwrap();
    let view = store.open_live("w").unwrap();
    let mut numbers = Numbers(7);
    let files: Vec<Ino> = (0..8)
        .map(|n| make(&view, Ino::ROOT, &format!("f{n}"), FileKind::File))
        .collect();
    let large = make(&view, Ino::ROOT, "large", FileKind::File);
    write(&view, large, 0, &vec![1; 1 << 20]);
    let mut ids = Vec::new();
    let mut kept = Kept::new();
    for n in 0..length {
        // One small file, and one block of a large one.
        append(&view, files[n % files.len()], format!("{n} ").as_bytes());
        let block = numbers.below(16) as u64;
        write(
            &view,
            large,
            block << 16,
            format!("snapshot {n}").as_bytes(),
        );
        let info = store.snapshot("w", &SnapshotOptions::default()).unwrap();
        if n % (length / 16) == length / 32 {
            let mut shown: Vec<Vec<u8>> = files.iter().map(|&ino| read(&view, ino)).collect();
            shown.push(read(&view, large));
            kept.insert(n, (info.id.clone(), shown));
        }
        ids.push(Some(info.id));
    }
    let full = used(&dir.path().join("s/objects"));
    let all: Vec<Ino> = files.iter().copied().chain([large]).collect();
    let last = *kept.keys().nth(kept.len() / 2).unwrap();
    let mut order: Vec<usize> = (0..length).filter(|&n| n != last).collect();
    for at in (1..order.len()).rev() {
        order.swap(at, numbers.below(at + 1));
    }
    // One at a time, some together, many together; and what is left is looked at in between.
    let mut left = &order[..];
    while !left.is_empty() {
        let some = [1, 2, 30, length / 20][numbers.below(4)].min(left.len());
        let (now, later) = left.split_at(some);
        left = later;
        delete(
            &store,
            now.iter().map(|&n| ids[n].take().unwrap()).collect(),
        );
        for n in now {
            kept.remove(n);
        }
        if numbers.below(4) == 0 || left.is_empty() {
            collect(&store);
            for (id, expected) in kept.values() {
                shows(&store.open_frozen(id).unwrap(), &all, expected);
            }
        }
    }
    assert_eq!(kept.len(), 1);
    // The workspace's own state is frozen once more: only then does it hide what is below for good.
    let end = store.snapshot("w", &SnapshotOptions::default()).unwrap();
    collect(&store);
    let report = store
        .check_data(&mut |_| ControlFlow::Continue(()))
        .unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    assert!(report.layers <= 8, "{} layers are left", report.layers);
    let less = used(&dir.path().join("s/objects"));
    assert!(less * (length as u64 / 100) < full, "{less} of {full}");
    delete(&store, vec![end.id, kept[&last].0.clone()]);
    store.close_view(&view);
    drop(view);
    store.delete_workspace("w").unwrap();
    collect(&store);
    assert_eq!(used(&dir.path().join("s/objects")), 0);
}
