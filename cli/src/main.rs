//! The `floe` binary: parses, runs one command, reports its error. Everything else is the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    floe::run(std::env::args_os())
}
