//! The first process of a virtual machine, from the kernel's start of it to the power-off.
//!
//! It is `/init` of an initramfs that Floe builds: loads the modules in there, mounts the root and
//! goes into it, is the agent for the daemon that calls until that wants no more, and switches the machine
//! off. `docs/guest.md` is the description.
//!
//! Invariants: no command runs before everything is mounted and the daemon has been let in; when
//! anything fails, the last line of the console before the kernel's own says why, and the machine is
//! switched off.

mod call;
mod modules;
mod mounts;
mod off;

use std::io::{self, Write};
use std::process::ExitCode;

use floe_guest::vm::{GAVE_UP, OptionError, VmOptions};
use rustix::process::{Pid, Resource, Rlimit, getpid};
use thiserror::Error;

use crate::agent::call::Line;
use crate::agent::{self, AgentError, sys};

/// Where the kernel finds the first process of an initramfs, and what it then calls it.
const NAME: &str = "/init";

/// Open files of commands: what may be at once, and what a process may raise that to. As systemd has it.
const FILES: (u64, u64) = (1024, 524_288);

/// Why a machine did not start, or did not end as the daemon wanted.
#[derive(Debug, Error)]
enum InitError {
    #[error("cannot {what}: {error}")]
    Step { what: String, error: io::Error },
    #[error(transparent)]
    Options(#[from] OptionError),
    #[error(transparent)]
    Modules(#[from] modules::ModulesError),
    #[error(transparent)]
    Mount(#[from] mounts::MountError),
    #[error("cannot listen for the daemon on the vsock: {0}")]
    Call(io::Error),
    #[error("the agent has ended: {0}")]
    Agent(#[from] AgentError),
}

fn step<T>(what: &str, outcome: Result<T, impl Into<io::Error>>) -> Result<T, InitError> {
    outcome.map_err(|error| InitError::Step {
        what: what.to_owned(),
        error: error.into(),
    })
}

/// Whether the kernel has started this process from an initramfs. A process sandbox starts it by
/// another name.
pub fn is_wanted() -> bool {
    getpid() == Pid::INIT && std::env::args_os().next().is_some_and(|name| name == NAME)
}

/// Is the first process of the machine. Returns only when the machine cannot be switched off; the kernel
/// panics then.
pub fn run() -> ExitCode {
    let outcome = prepare().and_then(|line| Ok(agent::run_in_machine(line)?));
    off::leave();
    if let Err(error) = outcome {
        fail(&error.to_string());
    }
    let error = off::power_off();
    fail(&error);
    ExitCode::FAILURE
}

/// Says on the console why this machine is no good. Not by a panic of the kernel: that prints so much
/// that the reason would not be among the last lines.
fn fail(why: &str) {
    say(&format!("{GAVE_UP}{why}"));
    // What the kernel says goes another way, and must not come first.
    match rustix::termios::tcdrain(rustix::stdio::stderr()) {
        Ok(()) | Err(_) => {}
    }
}

/// Everything up to the daemon's call. Where it calls.
fn prepare() -> Result<Line, InitError> {
    mounts::early()?;
    let cmdline = step("read /proc/cmdline", std::fs::read("/proc/cmdline"))?;
    let options = VmOptions::parse(&cmdline)?;
    modules::load()?;
    mounts::root(&options)?;
    step("bring the loopback interface up", sys::loopback_up())?;
    step(
        "set the host name",
        rustix::system::sethostname(options.hostname.as_bytes()),
    )?;
    let files = Rlimit {
        current: Some(FILES.0),
        maximum: Some(FILES.1),
    };
    step(
        "set the limit of open files",
        rustix::process::setrlimit(Resource::Nofile, files),
    )?;
    call::line().map_err(InitError::Call)
}

/// A line on the console, in one piece and without what a terminal would obey.
fn say(text: &str) {
    let mut line: String = text
        .chars()
        .map(|char| if char.is_control() { ' ' } else { char })
        .collect();
    line.push_str("\r\n");
    match io::stderr().write_all(line.as_bytes()) {
        Ok(()) | Err(_) => {}
    }
}
