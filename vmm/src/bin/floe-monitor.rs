//! The monitor as a program of its own: what `floe` starts itself as, without the rest of `floe`.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe_vmm::monitor::main_on_stdin()
}
