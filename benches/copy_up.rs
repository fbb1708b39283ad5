//! One byte into a frozen file of 1 GiB and of 10 GiB.
//!
//! `cargo bench --bench copy_up`, with `-- --quick`, `--json` or `--dir DIR` behind it. The same as
//! `floe bench copy-up`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::bench::cargo_bench(floe::bench::Bench::CopyUp, || {
        floe_harness::binary::floe().to_owned()
    })
}
