//! The processes of one sandbox: started, frozen, ended.
//!
//! Order of a start: control groups, user namespace, bubblewrap in the groups, the agent answers. Whatever
//! fails, all before it is undone. Invariant: there is no process of a sandbox outside its groups.

mod bwrap;
mod cgroup;
mod child;
mod enter;
mod seccomp;
mod spawner;
mod userns;

use std::error::Error;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::time::Duration;

use thiserror::Error;
use tokio::runtime::Handle;
use tracing::warn;

use crate::agent::{Agent, AgentError};
use crate::wire::sandbox::Limits;
pub(crate) use cgroup::CgroupError;
pub(super) use cgroup::{Cgroup, Cgroups, GroupUsage};
pub(super) use child::{open_log, wait_ended};
pub(super) use spawner::Spawner;
pub(super) use userns::{Slot, Slots};

/// Processes in the groups that are not the sandbox's: bubblewrap, which waits for its end.
const OF_FLOE: u64 = 1;
/// How long bubblewrap may take to end when it has let go of everything.
const END_WAIT: Duration = Duration::from_secs(1);

/// Why a sandbox could not be started.
#[derive(Debug, Error)]
pub(crate) enum StartError {
    /// All ranges of ids are in use.
    #[error("there are {} sandboxes with processes already", userns::SLOTS_MAX)]
    Slots,
    /// No user namespace.
    #[error("cannot make a user namespace")]
    UserNamespace { source: io::Error },
    /// The filter of system calls.
    #[error("cannot make the filter of system calls")]
    Filter {
        source: Box<dyn Error + Send + Sync>,
    },
    /// bubblewrap could not be started.
    #[error("cannot start bubblewrap")]
    Bubblewrap { source: io::Error },
    /// bubblewrap ended before there was a process 1.
    #[error("bubblewrap could not make the sandbox, and ended with status {status}: {said}")]
    Refused { status: i32, said: String },
    /// The agent did not answer.
    #[error("the agent in the sandbox does not answer")]
    Agent { source: AgentError },
    /// Control groups.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// A file of the daemon's.
    #[error("cannot use '{}'", path.display())]
    File { path: PathBuf, source: io::Error },
}

/// What does not change from one start to the next.
pub(super) struct Host {
    pub(super) spawner: Spawner,
    pub(super) cgroups: Cgroups,
    pub(super) slots: std::sync::Arc<Slots>,
    pub(super) runtime: Handle,
    /// The agent's binary.
    pub(super) agent: PathBuf,
}

/// What to start.
pub(super) struct Start<'a> {
    pub(super) id: &'a str,
    /// Where the workspace is mounted, shifted to the slot.
    pub(super) root: &'a Path,
    pub(super) slot: &'a Slot,
    pub(super) limits: &'a Limits,
    pub(super) network: bool,
    /// Where complaints go.
    pub(super) log: &'a Path,
}

/// The processes of a sandbox.
pub(super) struct Process {
    bubblewrap: Child,
    pub(super) cgroup: Cgroup,
    pub(super) agent: Agent,
}

impl Process {
    /// Starts a sandbox.
    ///
    /// # Errors
    /// [`StartError`]; nothing is left then.
    pub(super) fn start(host: &Host, start: &Start<'_>) -> Result<Self, StartError> {
        let limits = Limits {
            pids: start.limits.pids.map(|pids| pids.saturating_add(OF_FLOE)),
            ..start.limits.clone()
        };
        let cgroup = host.cgroups.make(start.id, &limits)?;
        let result = started(host, start, &cgroup);
        match result {
            Ok((bubblewrap, agent)) => Ok(Self {
                bubblewrap,
                cgroup,
                agent,
            }),
            Err(error) => {
                end_groups(&cgroup);
                Err(error)
            }
        }
    }

    /// What its processes use.
    pub(super) fn usage(&self) -> GroupUsage {
        let usage = self.cgroup.usage();
        GroupUsage {
            pids: usage.pids.map(|pids| pids.saturating_sub(OF_FLOE)),
            ..usage
        }
    }

    /// Ends every process. Returns when they are gone.
    pub(super) fn end(mut self) {
        if let Err(error) = self.cgroup.kill() {
            warn!(%error, "processes of a sandbox are ended with its first");
        }
        // It was in the groups, too, but there it is not waited for.
        let ended = self.bubblewrap.kill().and_then(|()| self.bubblewrap.wait());
        if let Err(error) = ended {
            warn!(%error, "cannot end a sandbox");
        }
        end_groups(&self.cgroup);
    }
}

/// Kills what is in the groups and removes them.
pub(super) fn end_groups(cgroup: &Cgroup) {
    if let Err(error) = cgroup.kill() {
        warn!(%error, "cannot kill what is in a control group");
    }
    if let Err(error) = cgroup.remove() {
        warn!(%error, "a control group stays");
    }
}

fn started(host: &Host, start: &Start<'_>, cgroup: &Cgroup) -> Result<(Child, Agent), StartError> {
    let bubblewrap = |source: io::Error| StartError::Bubblewrap { source };
    let (ours, theirs) = UnixStream::pair().map_err(bubblewrap)?;
    let log = open_log(start.log).map_err(|source| StartError::File {
        path: start.log.to_owned(),
        source,
    })?;
    let said_before = log.metadata().map_err(bubblewrap)?.len();
    let command = bwrap::command(bwrap::Plan {
        id: start.id,
        root: start.root,
        agent: &host.agent,
        network: start.network,
        user_namespace: start.slot.namespace()?,
        socket: theirs,
        groups: cgroup.ways_in(),
        log,
    })?;
    let mut child = host.spawner.spawn(command).map_err(bubblewrap)?;
    match connect(host, ours) {
        Ok(agent) => Ok((child, agent)),
        Err(error) => {
            let ended = wait_ended(&mut child, END_WAIT);
            let error = match ended.and_then(|status| status.code()) {
                // What the shell says of a program that is not there.
                Some(127) => bubblewrap(io::ErrorKind::NotFound.into()),
                Some(status) => refused(start.log, said_before, status, &error),
                None => error,
            };
            if let Err(error) = child.kill().and_then(|()| child.wait()) {
                warn!(%error, "cannot end a sandbox that did not start");
            }
            Err(error)
        }
    }
}

fn connect(host: &Host, stream: UnixStream) -> Result<Agent, StartError> {
    let failed = |source| StartError::Bubblewrap { source };
    stream.set_nonblocking(true).map_err(failed)?;
    host.runtime.block_on(async {
        let stream = tokio::net::UnixStream::from_std(stream).map_err(failed)?;
        let connected = Agent::connect(stream).await;
        connected.map_err(|source| StartError::Agent { source })
    })
}

/// What bubblewrap, which ended with that status, complained of last.
fn refused(log: &Path, said_before: u64, status: i32, error: &StartError) -> StartError {
    let said = File::open(log).and_then(|mut log| {
        log.seek(SeekFrom::Start(said_before))?;
        let mut said = Vec::new();
        log.read_to_end(&mut said)?;
        Ok(said)
    });
    let said = match said {
        Ok(said) => String::from_utf8_lossy(&said).into_owned(),
        Err(error) => format!("what it said cannot be read: {error}"),
    };
    let last = said.lines().rev().find(|line| !line.trim().is_empty());
    StartError::Refused {
        status,
        said: match (last, error.source()) {
            (Some(last), _) => last.to_owned(),
            (None, Some(why)) => format!("it said nothing ({why})"),
            (None, None) => "it said nothing".to_owned(),
        },
    }
}
