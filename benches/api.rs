//! How long the calls of the HTTP API take.
//!
//! `cargo bench --bench api`, with `-- --quick`, `--json` or `--dir DIR` behind it. The same as
//! `floe bench api`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::bench::cargo_bench(floe::bench::Bench::Api, || {
        floe_harness::binary::floe().to_owned()
    })
}
