//! Calls, and what goes on when a connection is reset.
//!
//! The agent runs in a process of its own, because it reaps whatever children its process has: the test
//! program starts itself for [`is_the_agent_of_another_test`]. Calls come by TCP, which can be reset as a
//! snapshot resets a vsock stream: whoever closes a socket that does not linger sends no end, but a reset.

mod callers;
mod daemon;
mod reset;

use std::io::{self, Write};
use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::net::SocketFlags;

use super::*;
use crate::agent::{Place, Way, run_in_machine};

/// How long anything in a test may take. Nothing is expected to take that long.
const LIMIT: Duration = Duration::from_secs(30);

/// The variable by which a test program is told to be the agent, on the socket that is its input.
const IS_AGENT: &str = "FLOE_TEST_IS_AGENT";

/// Lets everybody call.
fn accept(listener: BorrowedFd<'_>) -> io::Result<Option<OwnedFd>> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(Some(rustix::net::accept_with(listener, flags)?))
}

/// Without the variable it has nothing to do.
#[test]
fn is_the_agent_of_another_test() {
    if std::env::var_os(IS_AGENT).is_none() {
        return;
    }
    let listener = rustix::stdio::stdin().try_clone_to_owned().unwrap();
    rustix::io::ioctl_fionbio(&listener, true).unwrap();
    let code = match run_in_machine(Line { listener, accept }) {
        Ok(()) => 0,
        Err(error) => {
            writeln!(io::stderr(), "{error}").unwrap();
            1
        }
    };
    std::process::exit(code);
}

/// An agent in this process, which does nothing by itself.
fn agent_at_rest(way: Way) -> Agent {
    let files = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    Agent::new(way, files, Place::Machine).unwrap()
}
