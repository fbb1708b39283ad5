//! Landings of random changes on random changes, against a plain three-way merge by path.
//!
//! The variables are those of common/sequences.rs.

mod common;

mod land_model {
    pub mod merge;
    pub mod ops;
}

use std::sync::Arc;

use floe_fs::{ForkSource, LandOptions, Store};
use proptest::prelude::*;
use proptest::test_runner::TestCaseError;

use common::sequences::{self, Cases};
use common::{name, new_store};
use land_model::merge::{Conflict, merge_trees};
use land_model::ops::{Op, PATHS, Tree, apply, scan, within};

const CASES: Cases = Cases {
    short: 40,
    long: 2_000,
    regressions: None,
};

/// Three sequences: what both begin with, and what each does.
#[derive(Clone, Debug)]
struct Case {
    base: Vec<Op>,
    ours: Vec<Op>,
    theirs: Vec<Op>,
    /// Whether theirs is open while it is landed on.
    open: bool,
}

fn op(renames: bool) -> BoxedStrategy<Op> {
    let path = || 0..PATHS.len();
    let plain = prop_oneof![
        4 => (path(), any::<u8>()).prop_map(|(path, contents)| Op::Write { path, contents }),
        2 => (path(), any::<u8>()).prop_map(|(path, contents)| Op::Save { path, contents }),
        3 => path().prop_map(|path| Op::Mkdir { path }),
        2 => path().prop_map(|path| Op::Remove { path }),
        1 => (path(), any::<u8>()).prop_map(|(path, perm)| Op::Chmod { path, perm }),
    ];
    if !renames {
        return plain.boxed();
    }
    let rename = (path(), path()).prop_map(|(from, to)| Op::Rename { from, to });
    let link = (path(), path()).prop_map(|(from, to)| Op::Link { from, to });
    prop_oneof![4 => plain, 3 => rename, 1 => link].boxed()
}

fn case(renames: bool) -> impl Strategy<Value = Case> {
    let ops = move |count| prop::collection::vec(op(renames), 0..count);
    (ops(40), ops(6), ops(6), any::<bool>()).prop_map(|(base, ours, theirs, open)| Case {
        base,
        ours,
        theirs,
        open,
    })
}

/// Both sides rename and link, each in a directory of its own.
fn apart() -> impl Strategy<Value = Case> {
    let all = |op: BoxedStrategy<Op>, count| prop::collection::vec(op, 0..count);
    (
        all(op(false), 40),
        all(op(true), 10),
        all(op(true), 10),
        any::<bool>(),
    )
        .prop_map(|(base, ours, theirs, open)| Case {
            base,
            ours: ours.iter().map(|op| within(op, &[3, 4, 5, 6, 7])).collect(),
            theirs: theirs
                .iter()
                .map(|op| within(op, &[9, 10, 11, 13, 14, 15]))
                .collect(),
            open,
        })
}

struct World {
    _dir: tempfile::TempDir,
    store: Arc<Store>,
}

impl World {
    /// A workspace `t` and a fork `w` of it, each with its changes.
    fn new(case: &Case) -> (Self, Tree, Tree, Tree) {
        let dir = tempfile::tempdir().unwrap();
        let store = new_store(&dir.path().join("store"));
        store.create_workspace(&name("t")).unwrap();
        let view = store.open_live("t").unwrap();
        // Directories first, so that there is something to work on.
        for path in [2, 5, 8, 10, 12] {
            apply(&view, &Op::Mkdir { path });
        }
        case.base.iter().for_each(|op| apply(&view, op));
        let base = scan(&view);
        let source = ForkSource::Workspace("t".into());
        store.fork(&source, &[name("w")]).unwrap();
        let fork = store.open_live("w").unwrap();
        case.ours.iter().for_each(|op| apply(&fork, op));
        case.theirs.iter().for_each(|op| apply(&view, op));
        let (ours, theirs) = (scan(&fork), scan(&view));
        if !case.open {
            store.close_view(&view);
        }
        store.close_view(&fork);
        (Self { _dir: dir, store }, base, ours, theirs)
    }

    fn now(&self) -> Tree {
        scan(&self.store.open_live("t").unwrap())
    }

    fn sound(&self) -> Result<(), TestCaseError> {
        let report = self.store.check().unwrap();
        prop_assert!(report.is_clean(), "{:?}", report.problems);
        Ok(())
    }
}

fn options() -> LandOptions {
    LandOptions {
        no_merge: true,
        ..LandOptions::default()
    }
}

/// Without renames, a landing is what a merge by paths makes.
fn by_path(case: &Case) -> Result<bool, TestCaseError> {
    let (world, base, ours, theirs) = World::new(case);
    let expected = merge_trees(&base, &ours, &theirs);
    let dry = LandOptions {
        dry_run: true,
        ..options()
    };
    let planned = world.store.land("w", None, &dry).unwrap();
    prop_assert_eq!(&world.now(), &theirs);
    let report = world.store.land("w", None, &options()).unwrap();
    prop_assert_eq!(&planned.entries, &report.entries);
    prop_assert_eq!(&planned.conflicts, &report.conflicts);
    match expected {
        Err(Conflict) => {
            prop_assert!(!report.conflicts.is_empty(), "no conflict: {:?}", report);
            prop_assert_eq!(&world.now(), &theirs);
        }
        Ok(expected) => {
            prop_assert!(report.conflicts.is_empty(), "{:?}", report.conflicts);
            prop_assert_eq!(&world.now(), &expected);
        }
    }
    after(&world, &report, &theirs)?;
    Ok(report.landed)
}

/// What holds after every landing: the store is sound, nothing is left to land, and it can be undone.
fn after(world: &World, report: &floe_fs::LandReport, theirs: &Tree) -> Result<(), TestCaseError> {
    world.sound()?;
    if !report.landed {
        return Ok(());
    }
    let again = world.store.land("w", None, &options()).unwrap();
    prop_assert!(!again.landed && again.conflicts.is_empty(), "{:?}", again);
    let kept = report.kept.as_ref().unwrap();
    world.store.rollback("t", kept.as_str()).unwrap();
    prop_assert_eq!(&world.now(), theirs);
    let again = world.store.land("w", None, &options()).unwrap();
    prop_assert!(again.landed, "{:?}", again);
    world.sound()
}

/// With renames and hard links: onto what did not change, a landing makes it what ours is; and
/// whatever theirs did, all of it lands or nothing, and the store is sound.
fn with_renames(case: &Case) -> Result<bool, TestCaseError> {
    let unchanged = Case {
        theirs: Vec::new(),
        ..case.clone()
    };
    let (world, base, ours, _) = World::new(&unchanged);
    let report = world.store.land("w", None, &options()).unwrap();
    prop_assert!(report.conflicts.is_empty(), "{:?}", report.conflicts);
    prop_assert_eq!(&world.now(), &ours);
    after(&world, &report, &base)?;

    let (world, base, ours, theirs) = World::new(case);
    let report = world.store.land("w", None, &options()).unwrap();
    if !report.landed {
        prop_assert_eq!(&world.now(), &theirs);
        return world.sound().map(|()| false);
    }
    after(&world, &report, &theirs)?;
    // What landed is there as ours has it, unless only its attributes or its name landed.
    let now = world.now();
    for entry in &report.entries {
        let path = String::from_utf8(entry.path.clone()).unwrap();
        if entry.change == floe_fs::FileChange::Added {
            let (made, found) = (ours.get(&path), now.get(&path));
            // A directory on the way may have another name here.
            if let (Some(made), Some(found)) = (made, found) {
                prop_assert_eq!(made.directory, found.directory, "{}", path);
                // A new name of a file that theirs changed, or that both did.
                let older = base.values().any(|node| node.contents == made.contents);
                let merged = report.entries.iter().any(|entry| entry.merged);
                if !older && !merged {
                    prop_assert_eq!(&made.contents, &found.contents, "{}", path);
                }
            }
        }
    }
    Ok(true)
}

/// Each side has what it did in its own directory.
fn side_by_side(case: &Case) -> Result<bool, TestCaseError> {
    let (world, _, ours, theirs) = World::new(case);
    let report = world.store.land("w", None, &options()).unwrap();
    prop_assert!(report.conflicts.is_empty(), "{:?}", report.conflicts);
    let here = |path: &String| path.starts_with("d/");
    let mut expected: Tree = theirs.clone();
    expected.retain(|path, _| !here(path));
    let of_ours = ours.iter().filter(|(path, _)| here(path));
    expected.extend(of_ours.map(|(path, node)| (path.clone(), node.clone())));
    prop_assert_eq!(&world.now(), &expected);
    after(&world, &report, &theirs)?;
    Ok(report.landed)
}

fn run(cases_of: &BoxedStrategy<Case>, check: fn(&Case) -> Result<bool, TestCaseError>) {
    let landed = std::cell::Cell::new(0);
    let cases = sequences::run(cases_of, &CASES, |case| {
        landed.set(landed.get() + u32::from(check(&case)?));
        Ok(())
    });
    println!("{} of {cases} landed", landed.get());
    assert!(landed.get() > cases / 10);
}

#[test]
fn without_renames_a_landing_is_a_merge_by_paths() {
    run(&case(false).boxed(), by_path);
}

#[test]
fn renames_land_on_what_is_unchanged_and_never_break_anything() {
    run(&case(true).boxed(), with_renames);
}

#[test]
fn renames_of_both_sides_land_beside_each_other() {
    run(&apart().boxed(), side_by_side);
}

#[test]
fn what_a_snapshot_has_lands_with_it_and_later_changes_land_later() {
    let case = Case {
        base: vec![Op::Write {
            path: 0,
            contents: 1,
        }],
        ours: vec![Op::Write {
            path: 1,
            contents: 1,
        }],
        theirs: Vec::new(),
        open: true,
    };
    let (world, ..) = World::new(&case);
    assert!(world.store.land("w", Some("t"), &options()).unwrap().landed);
    let view = world.store.open_live("w").unwrap();
    // The same line again: against what landed before it is no conflict.
    apply(
        &view,
        &Op::Write {
            path: 1,
            contents: 2,
        },
    );
    let report = world.store.land("w", None, &options()).unwrap();
    assert!(report.landed, "{report:?}");
    assert_eq!(world.now()["b"].contents, b"two\n");
}
