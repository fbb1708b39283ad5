//! The way to the agent in a machine: a stream through its vsock device.
//!
//! A program of the host connects to the device's Unix socket and names a port; the device answers when
//! something in the machine listens there, and closes the connection when nothing does. Until the machine
//! has come so far, that is tried again and again.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime};

use floe_guest::vm::AGENT_PORT;

use super::monitor::Monitor;
use super::{VmError, VmStart};
use crate::agent::Agent;
use crate::daemon::sandboxes::process::Host;
use crate::output::printable;

/// How long a machine has until its agent answers; an emulated one takes a minute.
const START_WAIT: Duration = Duration::from_secs(180);
/// Bytes of randomness that a machine gets.
const SEED_BYTES: usize = 64;
/// How long to rest between two tries.
const REST: Duration = Duration::from_millis(20);
/// How long an answer of the device may take once a connection is there.
const ANSWER_WAIT: Duration = Duration::from_secs(10);
/// Longest answer of the device.
const LINE_MAX: usize = 32;

/// Connects to the agent as soon as it is there.
pub(super) fn connect(
    host: &Host,
    monitor: &Monitor,
    socket: &Path,
    start: &VmStart<'_>,
) -> Result<Agent, VmError> {
    let give_up = Instant::now() + START_WAIT;
    loop {
        if let Some(ended) = monitor.ended() {
            return Err(VmError::Ended { told: ended.told() });
        }
        match try_port(socket) {
            Ok(stream) => return shake_hands(host, stream),
            Err(_) if start.is_ending.load(Ordering::Acquire) => {
                return Err(VmError::Ended {
                    told: "the daemon is stopping".to_owned(),
                });
            }
            Err(error) if Instant::now() >= give_up => {
                tracing::debug!(%error, "the last try to reach an agent");
                return Err(VmError::NoAgent {
                    seconds: START_WAIT.as_secs(),
                    console: last_words(start.console),
                });
            }
            Err(_) => std::thread::sleep(REST),
        }
    }
}

/// The end of what a console said.
fn last_words(console: &Path) -> String {
    let text = std::fs::read(console).unwrap_or_default();
    let text = String::from_utf8_lossy(&text);
    let last = text
        .lines()
        .rev()
        .map(str::trim)
        .find(|line| !line.is_empty());
    last.map_or_else(|| "nothing".to_owned(), printable)
}

fn try_port(socket: &Path) -> io::Result<UnixStream> {
    let mut stream = UnixStream::connect(socket)?;
    stream.set_read_timeout(Some(ANSWER_WAIT))?;
    stream.write_all(format!("CONNECT {}\n", AGENT_PORT).as_bytes())?;
    let mut line = Vec::new();
    let mut byte = [0];
    // Byte by byte: what follows is the agent's.
    while line.len() < LINE_MAX {
        stream.read_exact(&mut byte)?;
        if byte[0] == b'\n' {
            break;
        }
        line.push(byte[0]);
    }
    if !line.starts_with(b"OK ") {
        return Err(io::ErrorKind::ConnectionRefused.into());
    }
    stream.set_read_timeout(None)?;
    Ok(stream)
}

fn shake_hands(host: &Host, stream: UnixStream) -> Result<Agent, VmError> {
    let failed = |source| VmError::Monitor { source };
    stream.set_nonblocking(true).map_err(failed)?;
    host.runtime.block_on(async {
        let stream = tokio::net::UnixStream::from_std(stream).map_err(failed)?;
        let failed = |source| VmError::Agent { source };
        let agent = Agent::connect(stream).await.map_err(failed)?;
        // The clock of a machine without a battery, and a generator that knows no randomness yet, before
        // anything runs in it.
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        agent
            .set_time(now.unwrap_or_default())
            .await
            .map_err(failed)?;
        let mut seed = vec![0; SEED_BYTES];
        getrandom::fill(&mut seed).map_err(|error| VmError::Monitor {
            source: io::Error::other(error),
        })?;
        agent.add_entropy(seed).await.map_err(failed)?;
        Ok(agent)
    })
}
