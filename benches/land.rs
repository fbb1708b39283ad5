//! Landings of few and of many changed files.
//!
//! `cargo bench --bench land`, with `-- --quick`, `--json` or `--dir DIR` behind it. The same as
//! `floe bench land`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::bench::cargo_bench(floe::bench::Bench::Land, || {
        floe_harness::binary::floe().to_owned()
    })
}
