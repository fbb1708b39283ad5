//! Forks of one workspace, and forks with their mounts.
//!
//! `cargo bench --bench fork`, with `-- --quick`, `--json` or `--dir DIR` behind it. The same as
//! `floe bench fork`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::bench::cargo_bench(floe::bench::Bench::Fork, || {
        floe_harness::binary::floe().to_owned()
    })
}
