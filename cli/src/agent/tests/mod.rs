//! The client against the agent itself, as it is embedded; and each of the two against a hostile peer.
//!
//! The agent runs on the host and as whoever runs the tests, not in a sandbox. Of what it does as other
//! users only root can see more than that it refuses.

mod attach;
mod files;
mod flow;
mod guest;
mod hostile_agent;
mod hostile_daemon;
mod input;
mod lifetime;
mod odd_daemon;
mod ports;
mod processes;
mod pty;
mod raw;
mod tree;
mod watch;
mod watch_lost;

use std::time::Duration;

use guest::{guest, poll_until, raw_guest, root_runs_the_tests, within_limit};

/// How long anything in a test may take. Nothing is expected to take that long.
const LIMIT: Duration = Duration::from_secs(30);
