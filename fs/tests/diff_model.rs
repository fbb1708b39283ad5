//! Differences between states that random operations made, against the states of a model: of
//! workspaces and snapshots, of forks and of what was rolled back.
//!
//! The operations and the model are those of `model.rs`, the variables those of common/sequences.rs.

mod common;
#[path = "model/mod.rs"]
mod model;

use common::sequences::{Cases, run};
use floe_fs::{DiffOptions, DiffSide};
use model::op::{Step, steps};
use model::tree::State;
use model::world_after;
use proptest::test_runner::TestCaseError;

/// About 10 seconds in the development profile.
const CASES: Cases = Cases {
    short: 100,
    long: 2_000,
    regressions: None,
};
/// Pairs of states compared after each sequence.
const PAIRS: usize = 40;

fn sequence(furnished: bool, steps: &[Step], pick: usize) -> Result<usize, String> {
    let world = world_after(furnished, steps)?;
    let live = world.live.iter().map(|live| {
        let side = DiffSide::Workspace(live.name.clone());
        (side, &live.state)
    });
    let frozen = world.snapshots.iter().map(|snapshot| {
        let side = DiffSide::Snapshot(snapshot.id.clone());
        (side, &snapshot.state)
    });
    let sides: Vec<(DiffSide, &State)> = live.chain(frozen).collect();
    let mut told = 0;
    let all = sides.len() * sides.len();
    for pair in (0..all).map(|at| (at * 7 + pick) % all).take(PAIRS) {
        let ((a, from), (b, to)) = (&sides[pair / sides.len()], &sides[pair % sides.len()]);
        let entries = world.store().diff(a, b, &DiffOptions::default());
        let entries = entries.map_err(|error| format!("{a} and {b}: {error}"))?;
        model::diff::check(from, to, &entries)
            .map_err(|error| format!("{a} and {b}: {error}\n{entries:#?}"))?;
        told += entries.len();
    }
    Ok(told)
}

#[test]
fn every_difference_is_that_between_the_states_of_the_model() {
    let told = std::cell::Cell::new(0);
    run(
        &(steps(), 0_usize..7),
        &CASES,
        |((furnished, steps), pick)| {
            let entries = sequence(furnished, &steps, pick).map_err(TestCaseError::fail)?;
            told.set(told.get() + entries);
            Ok(())
        },
    );
    println!("{} entries", told.get());
    assert!(told.get() > 0);
}
