//! The daemon's side of the conversation with the agent (`floe-guest`) in a sandbox.
//!
//! [`Agent`] is one connection, shared by any number of callers; each of its methods is one request
//! on a channel of its own. `docs/agent.md` is the protocol.
//!
//! Whoever is in the sandbox may have taken over the agent, so nothing it sends is trusted. What it
//! can make the daemon keep is bounded: [`connection::CHANNELS`] channels, on each at most the window
//! that was granted, and the frame that is being read. What breaks the protocol ends the connection.
//! Answers are waited for [`CONTROL`] or [`FILES`] long; only what may rightly take for ever
//! (a process's output, its input, a watch, a connection) is not limited in time.

mod channel;
mod connection;
mod error;
mod files;
pub mod image;
mod port;
mod process;
#[cfg(test)]
mod tests;
mod watch;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::net::UnixStream;
use tokio::sync::Semaphore;

pub use error::AgentError;
pub use files::{FileReader, FileWriter};
pub use floe_guest::message::{
    AgentMetrics, Entry, EntryKind, Modified, ProcessInfo, ProcessRef, PtySize, StartProcess,
    WatchEvent, WatchKind,
};
use floe_guest::message::{Outcome, Request, Seed};
pub use port::PortStream;
pub use process::{ProcessEvent, ProcessStream};
pub use watch::Watch;

use channel::Channel;
use connection::{Connection, LastHandle};

/// How long the handshake may take.
const HANDSHAKE: Duration = Duration::from_secs(10);

/// How long the agent may take for what needs no disk.
const CONTROL: Duration = Duration::from_secs(60);

/// How long the agent may take for a step of what does.
const FILES: Duration = Duration::from_secs(300);

/// How long it may take for writing everything back: a snapshot waits for it.
const SYNC: Duration = Duration::from_secs(10);

/// A connection to the agent of one sandbox. Clones share it. It ends when the last clone, and the
/// last stream that came from one, is dropped; then the agent ends, and with it the sandbox.
///
/// All methods give [`AgentError::Gone`] once the connection has ended, [`AgentError::Protocol`] if
/// that was the agent's fault, [`AgentError::NoAnswer`] if the agent takes too long,
/// [`AgentError::Exhausted`] if too many requests are under way, and beside that what they say.
#[derive(Clone, Debug)]
pub struct Agent {
    connection: Arc<Connection>,
    last: Arc<LastHandle>,
    /// Connections to ports that there may be. They are for strangers, who must leave room for others.
    ports: Arc<Semaphore>,
}

impl Agent {
    /// Shakes hands with the agent at the other end.
    ///
    /// # Errors
    ///
    /// [`AgentError::Protocol`] if it is no agent or has no version of the protocol in common.
    pub async fn connect(stream: UnixStream) -> Result<Self, AgentError> {
        let connection = connection::open(stream, HANDSHAKE).await?;
        Ok(Self {
            last: Arc::new(LastHandle::new(&connection)),
            connection,
            ports: Arc::new(Semaphore::new(port::CONNECTIONS_MAX)),
        })
    }

    /// Whether both are the same connection.
    pub fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.connection, &other.connection)
    }

    /// Whether the connection has ended.
    pub fn is_closed(&self) -> bool {
        self.connection.has_ended()
    }

    /// Waits until the connection has ended, and says why.
    pub async fn closed(&self) -> AgentError {
        self.connection.ended().await
    }

    /// Ends the connection, and with it the agent and all processes of the sandbox.
    pub fn close(&self) {
        self.connection.fail(AgentError::Gone {
            reason: "it was closed".to_owned(),
        });
    }

    /// What the sandbox's system has and uses.
    ///
    /// # Errors
    ///
    /// See [`Agent`].
    pub async fn metrics(&self) -> Result<AgentMetrics, AgentError> {
        match self.call(&Request::Metrics, CONTROL).await? {
            Outcome::Metrics(metrics) => Ok(metrics),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Replaces the default environment of the commands that are started from now on.
    ///
    /// # Errors
    ///
    /// [`AgentError::InvalidArgument`] of names that are empty or have `=` or NUL in them.
    pub async fn set_env(&self, env: BTreeMap<String, String>) -> Result<(), AgentError> {
        self.done(&Request::SetEnv { env }, CONTROL).await
    }

    /// Sets the clock of a virtual machine.
    ///
    /// # Errors
    ///
    /// [`AgentError::PermissionDenied`] in a sandbox of processes.
    pub async fn set_time(&self, since_1970: Duration) -> Result<(), AgentError> {
        let request = Request::SetTime {
            secs: i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX),
            nanos: since_1970.subsec_nanos(),
        };
        self.done(&request, CONTROL).await
    }

    /// Gives the random number generator of a virtual machine's kernel a new beginning, of 32 to 512 bytes.
    ///
    /// # Errors
    ///
    /// [`AgentError::PermissionDenied`] in a sandbox of processes.
    pub async fn add_entropy(&self, seed: Vec<u8>) -> Result<(), AgentError> {
        let seed = Seed(seed);
        self.done(&Request::AddEntropy { seed }, CONTROL).await
    }

    /// Has the kernel of a virtual machine write back what programs changed and only its memory has yet.
    ///
    /// # Errors
    ///
    /// [`AgentError::PermissionDenied`] in a sandbox of processes, [`AgentError::InvalidArgument`] from an
    /// agent that is older than that.
    pub async fn sync(&self) -> Result<(), AgentError> {
        self.done(&Request::Sync, SYNC).await
    }

    async fn open(&self, window: u32, request: &Request) -> Result<Channel, AgentError> {
        Channel::open(&self.connection, &self.last, window, request).await
    }

    /// A request that is answered by its end alone.
    async fn call(&self, request: &Request, limit: Duration) -> Result<Outcome, AgentError> {
        within(limit, async {
            self.open(0, request).await?.outcome().await
        })
        .await
    }

    async fn done(&self, request: &Request, limit: Duration) -> Result<(), AgentError> {
        match self.call(request, limit).await? {
            Outcome::Done => Ok(()),
            other => Err(self.unexpected(&other)),
        }
    }

    fn unexpected(&self, outcome: &Outcome) -> AgentError {
        self.connection.broken(format!(
            "an answer of the wrong kind: {}",
            channel::word(outcome)
        ))
    }
}

async fn within<T>(
    limit: Duration,
    work: impl Future<Output = Result<T, AgentError>>,
) -> Result<T, AgentError> {
    tokio::time::timeout(limit, work)
        .await
        .unwrap_or(Err(AgentError::NoAnswer {
            seconds: limit.as_secs(),
        }))
}
