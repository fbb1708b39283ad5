//! Model test: random operations on a store through [`floe_fs::dispatch::Dispatch`], against a
//! plain tree in memory. A snapshot of the model is a clone of it.
//!
//! Every answer is compared as it comes (results, errors, times), and at random points and at the
//! end every view is compared whole: all live workspaces, and all snapshots, which must never
//! change again. At the end `Store::check` must find nothing, and a workspace that is emptied must
//! take no space.
//!
//! `FLOE_MODEL_DIR` puts the stores elsewhere, for example on a disk with reflink; common/sequences.rs
//! has the other variables. The seed of what failed is kept in `model.proptest-regressions` and tried
//! first from then on.

mod common;
#[path = "model/mod.rs"]
mod model;

use common::sequences::{Cases, run};
use model::op::{Step, steps};
use model::world_after;
use proptest::test_runner::TestCaseError;

/// About 20 seconds in the development profile.
const CASES: Cases = Cases {
    short: 100,
    long: 10_000,
    regressions: Some(file!()),
};

fn sequence(furnished: bool, steps: &[Step]) -> model::Outcome {
    let mut world = world_after(furnished, steps)?;
    let end = |what: &'static str| move |error: String| format!("at the end, {what}: {error}");
    world.compare().map_err(end("comparing"))?;
    world.check().map_err(end("checking"))?;
    world.reopen().map_err(end("reopening"))?;
    world.compare().map_err(end("comparing after reopening"))?;
    world.check().map_err(end("checking after reopening"))?;
    for at in 0..world.live.len() {
        world.empty(at).map_err(end("emptying"))?;
    }
    world.check().map_err(end("checking what was emptied"))?;
    for live in &mut world.live {
        live.state.nodes.clear();
    }
    let emptied = std::mem::take(&mut world.live);
    world.compare().map_err(end("comparing snapshots"))?;
    for live in emptied {
        world.live.push(live);
    }
    world.deleted().map_err(end("deleting everything"))
}

#[test]
fn every_view_is_what_the_model_says() {
    run(&steps(), &CASES, |(furnished, steps)| {
        sequence(furnished, &steps).map_err(TestCaseError::fail)
    });
}
