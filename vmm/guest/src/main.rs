//! The agent that is process 1 of a Floe sandbox.
//!
//! In a process sandbox it serves the daemon over a descriptor that it inherits; `docs/agent.md` says
//! how. All of what it does is in [`agent`]. In a virtual machine it is also what the kernel starts, and
//! has everything to prepare before: that is in [`init`], and in `docs/guest.md`.

#![deny(unsafe_code)]

mod agent;
mod init;

use std::io::{self, Write};
use std::process::ExitCode;

const HELP: &str = "\
Agent that runs as process 1 of a Floe sandbox

Usage: floe-guest [--fd N]

Options:
  --fd N     The inherited descriptor of the connection to the daemon [default: 3]
  --version  Print the version
  --help     Print this
";

/// The descriptor that is used if none is named.
const DEFAULT_FD: i32 = 3;

fn main() -> ExitCode {
    if init::is_wanted() {
        return init::run();
    }
    let arguments: Vec<String> = std::env::args_os()
        .skip(1)
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let fd = match arguments.as_slice() {
        [] => Some(DEFAULT_FD),
        ["--fd", number] => number.parse().ok(),
        ["--version"] => {
            return print(concat!("floe-guest ", env!("CARGO_PKG_VERSION"), "\n"));
        }
        ["--help"] => return print(HELP),
        _ => None,
    };
    let Some(fd) = fd else {
        say(&format!("error: these arguments make no sense\n\n{HELP}"));
        return ExitCode::from(2);
    };
    match agent::run(fd) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!("floe-guest: {error}\n"));
            ExitCode::FAILURE
        }
    }
}

fn print(text: &str) -> ExitCode {
    match io::stdout().write_all(text.as_bytes()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => {
            say(&format!(
                "error: cannot write to standard output\ncaused by: {error}\n"
            ));
            ExitCode::FAILURE
        }
    }
}

/// Says something on stderr, if anybody hears it.
fn say(text: &str) {
    match io::stderr().write_all(text.as_bytes()) {
        Ok(()) | Err(_) => {}
    }
}
