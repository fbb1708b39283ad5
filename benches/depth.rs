//! Reading the oldest file through chains of 1 to 10,000 snapshots.
//!
//! `cargo bench --bench depth`, with `-- --quick`, `--json` or `--dir DIR` behind it. The same as
//! `floe bench depth`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::bench::cargo_bench(floe::bench::Bench::Depth, || {
        floe_harness::binary::floe().to_owned()
    })
}
