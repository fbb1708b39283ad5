//! Differences between states that random operations made, against the states of a model: of
//! workspaces and snapshots, of forks and of what was rolled back.
//!
//! The operations and the model are those of `model.rs`. `FLOE_TEST_LONG=1` takes 2,000 sequences;
//! `FLOE_MODEL_CASES` and `FLOE_MODEL_SEED` are as there.

#![allow(dead_code, reason = "the model is shared with model.rs")]

use floe_fs::{DiffOptions, DiffSide};
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestRng, TestRunner};

mod model {
    pub mod acl;
    pub mod bytes;
    pub mod compare;
    pub mod contents;
    pub mod diff;
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
use model::tree::State;
use model::world::World;

/// About 10 seconds in the development profile.
const CASES: u32 = 100;
const CASES_LONG: u32 = 2_000;
/// Pairs of states compared after each sequence.
const PAIRS: usize = 40;

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

fn sequence(furnished: bool, steps: &[Step], pick: usize) -> Result<usize, String> {
    let mut world = World::new()?;
    if furnished {
        for each in furniture() {
            step(&mut world, &each).map_err(|error| format!("furniture {each:?}: {error}"))?;
        }
    }
    for (number, each) in steps.iter().enumerate() {
        step(&mut world, each).map_err(|error| format!("step {number} {each:?}: {error}"))?;
    }
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
    let seed = number("FLOE_MODEL_SEED").unwrap_or_else(|| getrandom::u64().unwrap());
    let long = std::env::var_os("FLOE_TEST_LONG").is_some_and(|value| value == "1");
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
    let mut runner = TestRunner::new_with_rng(config, rng);
    let told = std::cell::Cell::new(0);
    let strategy = (steps(), 0_usize..7);
    let result = runner.run(&strategy, |((furnished, steps), pick)| {
        let entries = sequence(furnished, &steps, pick).map_err(TestCaseError::fail)?;
        told.set(told.get() + entries);
        Ok(())
    });
    println!("{} entries", told.get());
    if let Err(error) = result {
        panic!("FLOE_MODEL_SEED={seed}: {error}");
    }
    assert!(told.get() > 0);
}
