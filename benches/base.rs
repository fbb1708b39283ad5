//! Workspaces over directories of few and of many files, and the first look at one.
//!
//! `cargo bench --bench base`, with `-- --quick`, `--json` or `--dir DIR` behind it. The same as
//! `floe bench base`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::bench::cargo_bench(floe::bench::Bench::Base, || {
        floe_harness::binary::floe().to_owned()
    })
}
