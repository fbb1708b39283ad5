//! Model test of workspaces over a directory of the host: random changes to the host and to
//! workspaces, forks and snapshots on it, against a model of what was seen when.
//!
//! `FLOE_TEST_LONG=1` takes 2,000 sequences; `FLOE_MODEL_CASES`, `FLOE_MODEL_SEED` and
//! `FLOE_MODEL_DIR` are as in `model.rs`.

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
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

/// About 15 seconds in the development profile.
const CASES: u32 = 150;
const CASES_LONG: u32 = 2_000;

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

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

#[test]
fn every_view_shows_what_was_seen_first_and_changed_since() {
    let seed = number("FLOE_MODEL_SEED").unwrap_or_else(|| getrandom::u64().unwrap());
    let long = std::env::var_os("FLOE_TEST_LONG").is_some();
    let cases = number("FLOE_MODEL_CASES").and_then(|cases| u32::try_from(cases).ok());
    let cases = cases.unwrap_or(if long { CASES_LONG } else { CASES });
    println!("FLOE_MODEL_SEED={seed} FLOE_MODEL_CASES={cases}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let config = Config {
        cases,
        max_shrink_iters: 4000,
        max_shrink_time: 120_000,
        failure_persistence: None,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let result = TestRunner::new_with_rng(config, rng).run(&steps(), |steps| {
        sequence(&steps).map_err(TestCaseError::fail)
    });
    if let Err(error) = result {
        panic!("FLOE_MODEL_SEED={seed}: {error}");
    }
}
