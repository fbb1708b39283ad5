//! Snapshots of running virtual machines with their memory, and machines that go on from them.
//!
//! `cargo bench --bench vm`, with `-- --quick`, `--json` or `--dir DIR` behind it. The same as `floe bench vm`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::bench::cargo_bench(floe::bench::Bench::Vm, || {
        floe_harness::binary::floe().to_owned()
    })
}
