//! The same random operations on ext4 and on Floe: every result, every error and everything that is
//! read must be the same, while snapshots are taken of the one and not of the other.
//!
//! `FLOE_TEST_SEED` repeats a run; `FLOE_TEST_LONG=1` does 100,000 operations.

use floe_harness::random::Random;
use floe_harness::{Disk, Operations, ScanOptions, TestStore, Tree, long_run};

/// Operations of one run; then everything begins anew.
const OPERATIONS: usize = 5_000;
/// Operations between two snapshots, after which both trees are compared whole.
const PIECE: usize = 100;

/// Compares one run. What happened before a difference is in the message.
fn compare(seed: u64) {
    let store = TestStore::new();
    let disk = Disk::ext4(store.base(), "ext4", 256 << 20);
    let oracle = disk.dir().join("w");
    std::fs::create_dir(&oracle).unwrap();
    store.ok(["ws", "create", "w"]);
    let live = store.mount("w");
    // Others work there too.
    for root in [&oracle, &live] {
        let mode = std::os::unix::fs::PermissionsExt::from_mode(0o777);
        std::fs::set_permissions(root, mode).unwrap();
    }
    let mut here = Operations::new(&live, seed);
    let mut there = Operations::new(&oracle, seed);
    let mut kept = Vec::new();
    let mut failed = 0;
    for piece in 0..OPERATIONS / PIECE {
        let mut done = Vec::with_capacity(PIECE);
        for number in 0..PIECE {
            let (ours, theirs) = (here.step(), there.step());
            assert!(
                ours == theirs,
                "FLOE_TEST_SEED={seed}, operation {}:\n{}\n  Floe: {:?}\n  ext4: {:?}\nbefore that:\n{}",
                piece * PIECE + number,
                ours.what,
                ours.result,
                theirs.result,
                done.join("\n")
            );
            failed += usize::from(ours.result.is_err());
            done.push(format!("{} -> {:?}", ours.what, ours.result));
        }
        let tree = Tree::scan(&live, ScanOptions::NO_TIMES);
        tree.assert_same(&Tree::scan(&oracle, ScanOptions::NO_TIMES));
        kept.push((store.snapshot("w"), tree.digest()));
    }
    // Mostly failures would compare little.
    assert!(failed * 4 < OPERATIONS * 3, "{failed} operations failed");
    for (id, digest) in &kept {
        let frozen = store.mount(id);
        let tree = Tree::scan(&frozen, ScanOptions::NO_TIMES);
        assert_eq!(tree.digest(), *digest, "snapshot {id}");
        store.umount(&frozen);
    }
}

#[test]
fn random_operations_show_the_same_on_ext4_and_on_floe() {
    let runs = if long_run() { 20 } else { 1 };
    let seed = Random::seed_from_env(20_261_129);
    for seed in seed..seed + runs {
        compare(seed);
    }
}
