//! `Store::check_data` and what is known to be damaged: told by path and snapshot, refused wherever it
//! is shown, and everything else of the file reads as before.

#[path = "common/mod.rs"]
mod common;
#[path = "repair/support.rs"]
mod support;

use std::ops::ControlFlow;
use std::os::unix::fs::PermissionsExt;

use floe_fs::dispatch::{Dispatch, Errno, Fallocate, Write};
use floe_fs::id::{Ino, ObjectId};
use floe_fs::{
    CheckError, CheckReport, Damage, DiffOptions, DiffSide, ForkSource, Found, LandOptions,
    Problem, RepairOptions, SeenIn, View,
};

use common::read;
use support::{
    BLOCK, DATA, EIO, Fixture, LARGE, METADATA, NEW, OLD, check_data, close, fixture, large,
    read_at, repair,
};

fn try_write(view: &View, ino: Ino, at: usize, data: &[u8]) -> Result<(), i32> {
    let write = Write {
        offset: at as u64,
        data,
        append: false,
        kill_set_id: false,
    };
    let written = view.write(ino, write);
    written.map_err(|error| Errno::from(&error).0)
}

/// Where a file is, as `path in state, state`.
fn told(report: &CheckReport, at: usize) -> Vec<String> {
    let places = report.places.get(&at).cloned().unwrap_or_default();
    let tell = |seen: &SeenIn| match seen {
        SeenIn::Snapshot { name, .. } => format!("snapshot {}", name.clone().unwrap_or_default()),
        SeenIn::Workspace { name } => format!("workspace {name}"),
    };
    let tell = places.list.iter().map(|place| {
        let seen: Vec<String> = place.seen.iter().map(tell).collect();
        format!("{} in {}", place.path.display(), seen.join(", "))
    });
    tell.collect()
}

fn damaged(start: usize, end: usize, why: Damage, f: &Fixture) -> Problem {
    Problem::Damaged {
        object: ObjectId(OLD),
        ino: f.large,
        start: start as u64,
        end: end as u64,
        why,
    }
}

#[test]
fn sound_contents_are_verified_and_what_has_no_checksum_is_read() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    let store = copy.open();
    let mut seen = Vec::new();
    let report = store
        .check_data(&mut |progress| {
            seen.push(*progress);
            ControlFlow::Continue(())
        })
        .unwrap();
    assert!(report.is_clean(), "{:?}", report.problems);
    let data = report.data.unwrap();
    assert_eq!((data.objects, data.verified), (2, 7));
    assert_eq!(data.without_checksum, 1);
    assert_eq!(data.bytes, (LARGE + BLOCK) as u64);
    let last = seen.last().unwrap();
    assert_eq!((last.objects, last.total, last.bytes), (2, 2, data.bytes));
    let stopped = store.check_data(&mut |_| ControlFlow::Break(()));
    assert!(matches!(stopped, Err(CheckError::Interrupted)));
}

#[test]
fn a_flipped_byte_is_named_with_every_path_and_state_that_shows_it() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    copy.flip(OLD, 7);
    copy.flip(OLD, 2 * BLOCK + 5);
    copy.flip(OLD, 4 * BLOCK - 1);
    let store = copy.open();
    assert!(store.check().unwrap().is_clean());
    let report = check_data(&store);
    let expected = [
        damaged(0, BLOCK, Damage::Changed, &f),
        damaged(2 * BLOCK, 4 * BLOCK, Damage::Changed, &f),
    ];
    assert_eq!(report.problems, expected);
    // The first block is another one in the workspace.
    let only = ["/dir/large in snapshot one", "/other in snapshot one"];
    assert_eq!(told(&report, 0), only);
    let both = [
        "/dir/large in workspace w, snapshot one",
        "/other in workspace w, snapshot one",
    ];
    assert_eq!(told(&report, 1), both);
}

#[test]
fn what_no_extent_claims_any_more_does_not_count() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    copy.flip(OLD, 3 * BLOCK);
    let (ino, layer) = (f.large, f.frozen);
    copy.sql(&format!(
        "UPDATE extent SET end = 3 WHERE ino = {ino} AND layer = {layer};
         INSERT INTO extent VALUES ({ino}, {layer}, 4, 9223372036854775807, {OLD})"
    ));
    let report = check_data(&copy.open());
    assert!(report.is_clean(), "{:?}", report.problems);
    assert_eq!(report.data.unwrap().verified, 6);
}

/// Damage to a block of the snapshot's object is refused there and in the workspace.
#[test]
fn damaged_blocks_are_refused_and_the_rest_reads_right_also_after_a_restart() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    copy.flip(OLD, 2 * BLOCK + 5);
    let before = copy.files();
    let store = copy.open();
    let dry = RepairOptions {
        dry_run: true,
        ..DATA
    };
    let would = repair(&store, dry);
    assert!(!would.applied && !would.is_clean() && would.catalog_copy.is_none());
    assert_eq!(would.steps.len(), 1, "{would:?}");
    let path = &would.steps[0].found.places.list[0].path;
    assert_eq!(path.to_str(), Some("/dir/large"));
    close(store);
    let mut after = copy.files();
    // Opening notes where the store is.
    let catalog = copy.path.join("catalog.db");
    assert!(after.remove(&catalog).is_some());
    assert_eq!(after, without(before, &catalog));

    let store = copy.open();
    let done = repair(&store, DATA);
    assert!(done.is_clean() && done.applied, "{done:?}");
    assert_eq!(done.steps.len(), 1);
    let copy_of_catalog = done.catalog_copy.unwrap();
    let mode = copy_of_catalog.metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    let mode = copy.path.join("quarantine").metadata().unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o700);
    let kept = rusqlite::Connection::open(&copy_of_catalog).unwrap();
    let rows = kept.query_row("SELECT count(*) FROM damaged", [], |row| row.get(0));
    assert_eq!(rows, Ok(0));
    drop(kept);
    let mut store = store;
    for restart in [false, true] {
        if restart {
            close(store);
            store = copy.open();
        }
        let report = check_data(&store);
        assert!(report.is_clean(), "{:?}", report.problems);
        let [Found { problem, places }] = &report.known[..] else {
            panic!("{:?}", report.known);
        };
        assert_eq!(*problem, damaged(2 * BLOCK, 3 * BLOCK, Damage::Known, &f));
        assert_eq!(places.list.len(), 2);
        let frozen = store.open_frozen(&f.snapshot).unwrap();
        let live = store.open_live("w").unwrap();
        for view in [&frozen, &live] {
            refuses_the_third(view, &f);
        }
        let mut expected = large();
        assert_eq!(
            read_at(&frozen, f.large, 0, 2 * BLOCK),
            Ok(expected[..2 * BLOCK].to_vec())
        );
        expected[..BLOCK].fill(0xee);
        assert_eq!(
            read_at(&live, f.large, 0, 2 * BLOCK),
            Ok(expected[..2 * BLOCK].to_vec())
        );
        store.close_view(&live);
        drop((frozen, live));
        // Doing it again changes nothing.
        let again = repair(&store, DATA);
        assert!(again.is_clean() && again.steps.is_empty());
    }
}

fn without(
    mut files: std::collections::BTreeMap<std::path::PathBuf, Vec<u8>>,
    path: &std::path::Path,
) -> std::collections::BTreeMap<std::path::PathBuf, Vec<u8>> {
    files.remove(path);
    files
}

fn refuses_the_third(view: &View, f: &Fixture) {
    for (at, len) in [
        (2 * BLOCK, BLOCK),
        (2 * BLOCK + 7, 1),
        (0, LARGE),
        (3 * BLOCK - 1, 2),
    ] {
        assert_eq!(read_at(view, f.large, at, len), Err(EIO), "{at} {len}");
    }
    let tail = read_at(view, f.large, 3 * BLOCK, LARGE);
    assert_eq!(tail, Ok(large()[3 * BLOCK..].to_vec()));
    assert_eq!(read(view, f.small), b"small");
}

#[test]
fn a_damaged_block_can_be_written_over_as_a_whole_and_not_in_part() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    copy.flip(OLD, 2 * BLOCK + 5);
    copy.flip(OLD, 6 * BLOCK + 5);
    let store = copy.open();
    repair(&store, DATA);
    let view = store.open_live("w").unwrap();
    assert_eq!(try_write(&view, f.large, 2 * BLOCK, &[1; 100]), Err(EIO));
    assert_eq!(
        try_write(&view, f.large, 2 * BLOCK - 50, &[1; 100]),
        Err(EIO)
    );
    // Others are copied up without it.
    try_write(&view, f.large, 3 * BLOCK + 9, b"new").unwrap();
    try_write(&view, f.large, 2 * BLOCK, &[1; BLOCK]).unwrap();
    assert_eq!(
        read_at(&view, f.large, 2 * BLOCK, BLOCK),
        Ok(vec![1; BLOCK])
    );
    // The last one is not full.
    assert_eq!(read_at(&view, f.large, 6 * BLOCK, 100), Err(EIO));
    try_write(&view, f.large, 6 * BLOCK, &[2; 100]).unwrap();
    assert_eq!(read_at(&view, f.large, 6 * BLOCK, 200), Ok(vec![2; 100]));
    let frozen = store.open_frozen(&f.snapshot).unwrap();
    assert_eq!(read_at(&frozen, f.large, 2 * BLOCK, 1), Err(EIO));
    assert_eq!(read_at(&frozen, f.large, 6 * BLOCK, 1), Err(EIO));
    drop(frozen);
    store.close_view(&view);
    let report = check_data(&store);
    assert!(report.is_clean(), "{:?}", report.problems);
    // It is seen in the snapshot alone now.
    let places = &report.known[0].places.list[0];
    assert_eq!(places.seen.len(), 1);
}

/// The object of a live layer has no checksum; one whose disk fails is refused all the same.
#[test]
fn a_damaged_block_of_a_live_object_is_good_again_once_it_was_written_over() {
    let f = fixture();
    let copy = f.copy();
    let set = format!("INSERT INTO damaged VALUES ({NEW}, 0)");
    copy.sql(&set);
    let store = copy.open();
    let view = store.open_live("w").unwrap();
    assert_eq!(read_at(&view, f.large, 10, 10), Err(EIO));
    assert_eq!(try_write(&view, f.large, 0, b"part"), Err(EIO));
    try_write(&view, f.large, 0, &[3; BLOCK]).unwrap();
    assert_eq!(read_at(&view, f.large, 0, BLOCK), Ok(vec![3; BLOCK]));
    store.close_view(&view);
    drop(view);
    close(store);
    // Also later: the row is gone.
    let store = copy.open();
    let view = store.open_live("w").unwrap();
    assert_eq!(read_at(&view, f.large, 0, BLOCK), Ok(vec![3; BLOCK]));
    store.close_view(&view);
    drop(view);
    close(store);
    copy.sql(&set);
    let store = copy.open();
    let view = store.open_live("w").unwrap();
    let mode = Fallocate::PunchHole;
    view.fallocate(common::ROOT_USER, f.large, mode, 0, BLOCK as u64)
        .unwrap();
    assert_eq!(read_at(&view, f.large, 0, BLOCK), Ok(vec![0; BLOCK]));
    store.close_view(&view);
}

#[test]
fn a_file_that_is_cut_off_is_found_where_it_held_something() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(copy.object(OLD))
        .unwrap();
    file.set_len((4 * BLOCK + 10) as u64).unwrap();
    let store = copy.open();
    let report = check_data(&store);
    let expected = [
        damaged(4 * BLOCK, 5 * BLOCK, Damage::Changed, &f),
        damaged(5 * BLOCK, 7 * BLOCK, Damage::Short, &f),
    ];
    assert_eq!(report.problems, expected);
    assert!(repair(&store, DATA).is_clean());
    let view = store.open_live("w").unwrap();
    assert_eq!(read_at(&view, f.large, 5 * BLOCK, 1), Err(EIO));
    let expected = large()[BLOCK..4 * BLOCK].to_vec();
    assert_eq!(read_at(&view, f.large, BLOCK, 3 * BLOCK), Ok(expected));
    store.close_view(&view);
}

#[test]
fn a_file_that_is_missing_is_known_then_and_good_again_when_it_is_back() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    let aside = copy.path.join("aside");
    std::fs::rename(copy.object(OLD), &aside).unwrap();
    let store = copy.open();
    let report = check_data(&store);
    let missing = Problem::ObjectFileMissing {
        object: ObjectId(OLD),
    };
    assert_eq!(report.problems, [missing]);
    assert_eq!(told(&report, 0).len(), 2);
    let done = repair(&store, METADATA);
    assert!(done.is_clean(), "{done:?}");
    assert_eq!(done.after.known.len(), 1);
    let live = store.open_live("w").unwrap();
    assert_eq!(read_at(&live, f.large, BLOCK, 1), Err(EIO));
    assert_eq!(read_at(&live, f.large, 0, BLOCK), Ok(vec![0xee; BLOCK]));
    // Whatever is written over is there.
    try_write(&live, f.large, BLOCK, &[4; BLOCK]).unwrap();
    assert_eq!(read_at(&live, f.large, BLOCK, 9), Ok(vec![4; 9]));
    store.close_view(&live);
    drop(live);
    std::fs::rename(&aside, copy.object(OLD)).unwrap();
    // It is believed when it was verified, not before.
    let frozen = store.open_frozen(&f.snapshot).unwrap();
    assert_eq!(read_at(&frozen, f.large, BLOCK, 1), Err(EIO));
    drop(frozen);
    let done = repair(&store, DATA);
    assert!(
        done.is_clean() && done.after.known.is_empty(),
        "{:?}",
        done.after
    );
    let frozen = store.open_frozen(&f.snapshot).unwrap();
    assert_eq!(read(&frozen, f.large), large());
}

#[test]
fn bytes_that_are_back_are_read_again() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    copy.flip(OLD, BLOCK);
    let store = copy.open();
    repair(&store, DATA);
    copy.flip(OLD, BLOCK);
    assert!(repair(&store, DATA).after.known.is_empty());
    close(store);
    let store = copy.open();
    let frozen = store.open_frozen(&f.snapshot).unwrap();
    assert_eq!(read(&frozen, f.large), large());
}

/// Truncation leaves a hole where there were bytes: it must not pass for the zeros of a sparse file.
#[test]
fn damaged_blocks_that_are_holes_now_are_data_and_not_zeros() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(copy.object(OLD));
    file.unwrap().set_len(0).unwrap();
    let store = copy.open();
    assert!(repair(&store, DATA).is_clean());
    let frozen = store.open_frozen(&f.snapshot).unwrap();
    let (at, size) = (BLOCK as u64 + 5, LARGE as u64);
    assert_eq!(frozen.seek(f.large, at, false).unwrap(), at);
    assert_eq!(frozen.seek(f.large, at, true).unwrap(), size);
    drop(frozen);
    // The same block as a hole: whether it is equal cannot be told.
    let view = store.open_live("w").unwrap();
    let mode = Fallocate::PunchHole;
    view.fallocate(common::ROOT_USER, f.large, mode, 0, BLOCK as u64)
        .unwrap();
    store.close_view(&view);
    drop(view);
    let sides = [
        DiffSide::Snapshot(f.snapshot.clone()),
        DiffSide::Workspace("w".to_owned()),
    ];
    let diff = store.diff(&sides[0], &sides[1], &DiffOptions::default());
    assert!(diff.is_err(), "{diff:?}");
}

#[test]
fn a_file_whose_damage_is_a_hole_is_not_landed_as_zeros() {
    let f = fixture();
    let copy = f.copy();
    let store = copy.open();
    let source = ForkSource::Workspace("w".to_owned());
    store.fork(&source, &[common::name("f")]).unwrap();
    let view = store.open_live("f").unwrap();
    let file = common::make(&view, Ino::ROOT, "new", floe_fs::attr::FileKind::File);
    common::write(&view, file, 0, &large());
    store.close_view(&view);
    drop(view);
    close(store);
    let catalog = rusqlite::Connection::open(copy.path.join("catalog.db")).unwrap();
    let newest = "SELECT max(id) FROM object";
    let new: i64 = catalog.query_row(newest, [], |row| row.get(0)).unwrap();
    drop(catalog);
    let object = std::fs::OpenOptions::new()
        .write(true)
        .open(copy.object(new.unsigned_abs()));
    object.unwrap().set_len(0).unwrap();
    copy.sql(&format!(
        "WITH RECURSIVE block(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM block WHERE n < 6)
         INSERT INTO damaged SELECT {new}, n FROM block"
    ));
    let store = copy.open();
    let landed = store.land("f", None, &LandOptions::default());
    assert!(landed.is_err(), "{landed:?}");
    let target = store.open_live("w").unwrap();
    assert!(!common::list(&target, Ino::ROOT).contains(&"new".to_owned()));
    store.close_view(&target);
}

/// Its digest says that a checksum is not what was written: then nothing of it counts.
#[test]
fn a_checksum_that_changed_does_not_have_good_data_refused() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    // The last byte of the hash of the first block.
    copy.sql(&format!(
        "UPDATE checksum SET blocks = CAST(substr(blocks, 1, 39) || x'ee' || substr(blocks, 41) AS BLOB)
         WHERE object = {OLD} AND substr(blocks, 40, 1) <> x'ee'"
    ));
    let store = copy.open();
    let object = ObjectId(OLD);
    let found = check_data(&store).problems;
    assert_eq!(found, [Problem::ChecksumDamaged { object }]);
    let done = repair(&store, DATA);
    assert!(
        done.is_clean() && done.after.known.is_empty(),
        "{:?}",
        done.after
    );
    let frozen = store.open_frozen(&f.snapshot).unwrap();
    assert_eq!(read(&frozen, f.large), large());
}

/// Nor may a checksum go that refused blocks need: without it they would count as read.
#[test]
fn refused_blocks_stay_refused_when_their_checksum_is_gone() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    copy.flip(OLD, BLOCK);
    let store = copy.open();
    assert!(repair(&store, DATA).is_clean());
    close(store);
    copy.sql(&format!("DELETE FROM checksum WHERE object = {OLD}"));
    let store = copy.open();
    for _ in 0..2 {
        let done = repair(&store, DATA);
        assert_eq!((done.left.len(), done.after.known.len()), (1, 1));
    }
    let frozen = store.open_frozen(&f.snapshot).unwrap();
    assert_eq!(read_at(&frozen, f.large, BLOCK, 1), Err(EIO));
}

#[test]
fn what_was_never_hashed_is_good_again_when_it_can_be_read() {
    let f = fixture();
    let copy = f.copy();
    copy.sql(&format!("INSERT INTO damaged VALUES ({OLD}, 2)"));
    let aside = copy.path.join("aside");
    std::fs::rename(copy.object(NEW), &aside).unwrap();
    let store = copy.open();
    let done = repair(&store, METADATA);
    assert_eq!(done.after.known.len(), 2, "{done:?}");
    let done = repair(&store, DATA);
    assert_eq!(done.after.known.len(), 1, "{done:?}");
    std::fs::rename(&aside, copy.object(NEW)).unwrap();
    let done = repair(&store, DATA);
    assert!(done.is_clean() && done.after.known.is_empty(), "{done:?}");
    let live = store.open_live("w").unwrap();
    let mut expected = large();
    expected[..BLOCK].fill(0xee);
    assert_eq!(read(&live, f.large), expected);
    store.close_view(&live);
}

#[test]
fn a_file_that_was_replaced_is_read_and_not_the_one_that_was_open() {
    let f = fixture();
    let copy = f.copy();
    copy.hash();
    let good = copy.path.join("good");
    std::fs::copy(copy.object(OLD), &good).unwrap();
    copy.flip(OLD, BLOCK);
    let store = copy.open();
    let read_it = || {
        let frozen = store.open_frozen(&f.snapshot).unwrap();
        read_at(&frozen, f.large, 0, LARGE)
    };
    assert!(read_it().is_ok());
    repair(&store, DATA);
    assert_eq!(read_it(), Err(EIO));
    std::fs::rename(&good, copy.object(OLD)).unwrap();
    assert!(repair(&store, DATA).after.known.is_empty());
    assert_eq!(read_it(), Ok(large()));
}
