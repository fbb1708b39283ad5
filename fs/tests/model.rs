//! Model test: random operations on a store through [`floe_fs::dispatch::Dispatch`], against a
//! plain tree in memory. A snapshot of the model is a clone of it.
//!
//! Every answer is compared as it comes (results, errors, times), and at random points and at the
//! end every view is compared whole: all live workspaces, and all snapshots, which must never
//! change again. At the end `Store::check` must find nothing, and a workspace that is emptied must
//! take no space.
//!
//! `FLOE_MODEL_CASES` says how many sequences to run, `FLOE_MODEL_SEED` (printed by each run)
//! repeats a run, `FLOE_MODEL_DIR` puts the stores elsewhere, for example on a disk with reflink.
//! A failure is shrunk; its seed is kept in `model.proptest-regressions` and tried first from then
//! on.

use std::time::Instant;

use proptest::test_runner::{
    Config, FileFailurePersistence, RngAlgorithm, TestCaseError, TestRng, TestRunner,
};

mod model {
    pub mod acl;
    pub mod bytes;
    pub mod compare;
    pub mod contents;
    pub mod op;
    pub mod run;
    pub mod tree;
    pub mod world;

    /// What was found wrong.
    pub type Outcome = Result<(), String>;

    /// Fails the case with a message unless a condition holds.
    macro_rules! ensure {
        ($condition:expr, $($message:tt)+) => {
            if !$condition {
                return Err(format!($($message)+));
            }
        };
    }
    pub(crate) use ensure;
}

use model::op::{Step, furniture, steps};
use model::run::step;
use model::world::World;

/// About 20 seconds in the development profile.
const CASES: u32 = 100;

fn sequence(furnished: bool, steps: &[Step]) -> model::Outcome {
    let mut world = World::new()?;
    if furnished {
        for each in furniture() {
            step(&mut world, &each).map_err(|error| format!("furniture {each:?}: {error}"))?;
        }
    }
    for (number, each) in steps.iter().enumerate() {
        step(&mut world, each).map_err(|error| format!("step {number} {each:?}: {error}"))?;
    }
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
    world.live.clear();
    world.compare().map_err(end("comparing snapshots"))
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn every_view_is_what_the_model_says() {
    let seed = number("FLOE_MODEL_SEED").unwrap_or_else(|| getrandom::u64().unwrap());
    let cases = number("FLOE_MODEL_CASES").and_then(|cases| u32::try_from(cases).ok());
    let cases = cases.unwrap_or(CASES);
    println!("FLOE_MODEL_SEED={seed} FLOE_MODEL_CASES={cases}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        max_shrink_iters: 4000,
        max_shrink_time: 120_000,
        failure_persistence: Some(Box::new(FileFailurePersistence::WithSource(
            "proptest-regressions",
        ))),
        source_file: Some(file!()),
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let mut runner = TestRunner::new_with_rng(config, rng);
    let started = Instant::now();
    let result = runner.run(&steps(), |(furnished, steps)| {
        sequence(furnished, &steps).map_err(TestCaseError::fail)
    });
    println!("{:?}", started.elapsed());
    if let Err(error) = result {
        panic!("FLOE_MODEL_SEED={seed}: {error}");
    }
}
