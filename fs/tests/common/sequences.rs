//! Running a model test: many random cases, each of which can be repeated and is shrunk when it
//! fails.
//!
//! `FLOE_MODEL_CASES` says how many, `FLOE_MODEL_SEED` (printed by each run) repeats a run, and
//! `FLOE_TEST_LONG=1` takes the long count.

use proptest::strategy::Strategy;
use proptest::test_runner::{
    Config, FileFailurePersistence, RngAlgorithm, TestCaseError, TestRng, TestRunner,
};

/// How many cases there are.
pub struct Cases {
    pub short: u32,
    pub long: u32,
    /// The test's source, if the seeds of what failed are kept beside it and tried first from then
    /// on.
    pub regressions: Option<&'static str>,
}

fn number(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs the cases and says how many there were.
///
/// # Panics
/// With the seed and the shrunk case when one fails.
pub fn run<S: Strategy>(
    strategy: &S,
    cases: &Cases,
    check: impl Fn(S::Value) -> Result<(), TestCaseError>,
) -> u32 {
    let seed = number("FLOE_MODEL_SEED").unwrap_or_else(|| getrandom::u64().unwrap());
    let long = std::env::var_os("FLOE_TEST_LONG").is_some_and(|value| value == "1");
    let asked = number("FLOE_MODEL_CASES").and_then(|cases| u32::try_from(cases).ok());
    let count = asked.unwrap_or(if long { cases.long } else { cases.short });
    println!("FLOE_MODEL_SEED={seed} FLOE_MODEL_CASES={count}");
    let mut bytes = [0; 32];
    bytes[..8].copy_from_slice(&seed.to_le_bytes());
    let kept = || Box::new(FileFailurePersistence::WithSource("proptest-regressions")) as Box<_>;
    let config = Config {
        cases: count,
        max_shrink_iters: 4000,
        max_shrink_time: 120_000,
        failure_persistence: cases.regressions.map(|_| kept()),
        source_file: cases.regressions,
        ..Config::default()
    };
    let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
    let result = TestRunner::new_with_rng(config, rng).run(strategy, check);
    if let Err(error) = result {
        panic!("FLOE_MODEL_SEED={seed}: {error}");
    }
    count
}
