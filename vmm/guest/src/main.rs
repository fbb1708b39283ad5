//! The agent that will be process 1 of a Floe sandbox.
//!
//! It is meant to be a static program that mounts the workspace, starts and reaps processes, and
//! talks to the daemon over vsock. None of that exists yet: today the binary reports its version
//! and refuses everything else, so that nobody takes it for an init.

#![forbid(unsafe_code)]

use std::io::{self, Write};
use std::process::ExitCode;

const HELP: &str = "\
Agent that will run as process 1 of a Floe sandbox (not implemented yet)

Usage: floe-guest [--version | --help]
";

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().skip(1).collect();
    let text = match arguments.as_slice() {
        [one] if one == "--version" => concat!("floe-guest ", env!("CARGO_PKG_VERSION"), "\n"),
        [one] if one == "--help" => HELP,
        _ => {
            eprint!("error: floe-guest cannot run a sandbox yet\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: cannot write to standard output\ncaused by: {error}");
            ExitCode::FAILURE
        }
    }
}
