//! What giving space back costs, and what those notice who work meanwhile.
//!
//! `cargo bench --bench space`, with `-- --quick`, `--json` or `--dir DIR` behind it. The same as
//! `floe bench space`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::bench::cargo_bench(floe::bench::Bench::Space, || {
        floe_harness::binary::floe().to_owned()
    })
}
