//! Ten changes, found among more and more files.
//!
//! `cargo bench --bench diff`, with `-- --quick`, `--json` or `--dir DIR` behind it. The same as
//! `floe bench diff`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::bench::cargo_bench(floe::bench::Bench::Diff, || {
        floe_harness::binary::floe().to_owned()
    })
}
