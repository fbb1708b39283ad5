//! Snapshots of workspaces from 10 to 10^6 files and from 1 KiB to 10 GiB, idle and busy.
//!
//! `cargo bench --bench snapshot`, with `-- --quick`, `--json` or `--dir DIR` behind it. The same as
//! `floe bench snapshot`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::bench::cargo_bench(floe::bench::Bench::Snapshot, || {
        floe_harness::binary::floe().to_owned()
    })
}
