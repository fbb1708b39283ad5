//! Model test of workspaces over a directory of the host: random changes to the host and to
//! workspaces, forks and snapshots on it, against a model of what was seen when.
//!
//! `FLOE_MODEL_DIR` is as in `model.rs`; common/sequences.rs has the other variables.

mod common;

mod base_model {
    pub mod end;
    pub mod host;
    pub mod run;
    pub mod state;
    pub mod step;
}

use base_model::run::World;
use base_model::step::{Step, steps};
use common::sequences::{Cases, run};
use proptest::test_runner::TestCaseError;

/// About 15 seconds in the development profile.
const CASES: Cases = Cases {
    short: 150,
    long: 2_000,
    regressions: None,
};

fn sequence(steps: &[Step]) -> Result<(), String> {
    let mut world = World::new();
    for (number, step) in steps.iter().enumerate() {
        let done = world.step(step);
        done.map_err(|error| format!("step {number} {step:?}: {error}"))?;
    }
    let end = |what: &'static str| move |error: String| format!("at the end, {what}: {error}");
    world.check().map_err(end("checking"))?;
    world.compare_all().map_err(end("comparing"))?;
    world.reopen().map_err(end("reopening"))?;
    world
        .compare_all()
        .map_err(end("comparing after reopening"))?;
    world.check().map_err(end("checking after reopening"))
}

#[test]
fn every_view_shows_what_was_seen_first_and_changed_since() {
    run(&steps(), &CASES, |steps| {
        sequence(&steps).map_err(TestCaseError::fail)
    });
}
