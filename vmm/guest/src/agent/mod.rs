//! The agent: one thread that waits for everything and does what cannot wait.
//!
//! A turn: hear what happened; let each channel that may go on do one step, as long as there is room
//! towards the daemon; send. Nothing in here waits, but for reading the files of users and executing
//! a program, which the sandbox's own file system may make slow for itself.
//!
//! In a virtual machine the agent outlives its connection when a memory snapshot has taken that away;
//! [`call`] is about how it comes to the first and to the next. Processes do not belong to a connection,
//! everything else that was asked for does.

pub(crate) mod call;
mod channel;
mod failure;
mod files;
mod machine;
mod metrics;
mod poll;
mod pool;
mod port;
mod process;
mod serve;
mod start;
#[allow(unsafe_code)]
pub(crate) mod sys;
mod users;
mod watch;
mod wire;

use std::collections::BTreeMap;
use std::fmt::Display;
use std::io::{self, Write};
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use floe_guest::message::{Failure, Outcome};
use rustix::process::Rlimit;
use thiserror::Error;

use call::{Calls, Line};
use channel::Channels;
use poll::{Poller, Source, Token};
use pool::{Done, Pool};
use process::Processes;
use process::log::Stream;
use watch::Watches;
use wire::{Over, Wire};

/// Most complaints: nobody may read them, and a full pipe would stop the agent.
const MAX_COMPLAINTS: u32 = 100;

/// Says on stderr that something that should always work did not.
fn complain(what: &str, error: &impl Display) {
    static MADE: AtomicU32 = AtomicU32::new(0);
    if MADE.fetch_add(1, Ordering::Relaxed) < MAX_COMPLAINTS {
        // Without anybody who hears it there is nothing to be done.
        match writeln!(io::stderr(), "floe-guest: cannot {what}: {error}") {
            Ok(()) | Err(_) => {}
        }
    }
}

/// Why the agent did not start or go on.
#[derive(Debug, Error)]
pub enum AgentError {
    #[error("descriptor {fd} cannot be used: {error}")]
    Descriptor { fd: RawFd, error: io::Error },
    #[error(transparent)]
    Start(#[from] start::StartError),
    #[error("cannot set up: {0}")]
    Setup(io::Error),
    #[error("cannot wait for anything: {0}")]
    Wait(io::Error),
    #[error("cannot take calls of the daemon: {0}")]
    Call(io::Error),
    #[error(transparent)]
    Over(Over),
}

/// How the agent comes to its connection.
enum Way {
    /// It has one, and never another.
    Wire(OwnedFd),
    /// The daemon calls.
    Line(Line),
}

/// What the agent is process 1 of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// A process sandbox: clock, kernel and standard streams are the host's.
    Sandbox,
    /// A virtual machine: all of it is the agent's own.
    Machine,
}

/// Everything that the agent's thread knows.
pub struct Agent {
    place: Place,
    poller: Rc<Poller>,
    wire: Wire,
    /// Where the daemon calls, if it does.
    calls: Option<Calls>,
    /// The version that is spoken, once the daemon has said hello.
    version: Option<u16>,
    /// Whether the daemon has asked for anything on this connection.
    asked: bool,
    /// The daemon wants the machine to end.
    ending: bool,
    channels: Channels,
    processes: Processes,
    pool: Pool,
    watches: Watches,
    /// A byte comes here when a child has ended.
    children: Source,
    /// The default environment of commands.
    env: BTreeMap<String, String>,
    /// The limit of open files of commands.
    files: Rlimit,
}

/// Runs the agent on an inherited descriptor, until the connection ends. Kills all processes then.
///
/// Called at the start of `main`.
///
/// # Errors
///
/// Whatever ended it other than the daemon's closing the connection.
pub fn run(fd: RawFd) -> Result<(), AgentError> {
    let wire = sys::adopt(fd).map_err(|error| AgentError::Descriptor { fd, error })?;
    run_on(Way::Wire(wire), Place::Sandbox)
}

/// Runs the agent of a virtual machine for the daemon that calls on that line, until it closes its
/// connection or wants the machine to end. Kills all processes then.
///
/// Nothing else of this process may be open.
///
/// # Errors
///
/// Whatever ended it other than the daemon.
pub fn run_in_machine(line: Line) -> Result<(), AgentError> {
    run_on(Way::Line(line), Place::Machine)
}

fn run_on(way: Way, place: Place) -> Result<(), AgentError> {
    let (Way::Wire(keep) | Way::Line(Line { listener: keep, .. })) = &way;
    sys::close_others(keep).map_err(AgentError::Setup)?;
    let files = start::become_agent(place)?;
    let mut agent = Agent::new(way, files, place).map_err(AgentError::Setup)?;
    let outcome = agent.serve();
    start::kill_all(agent.running());
    match outcome {
        // Where nobody calls again, as when it should end anyway, both are the end.
        Err(AgentError::Over(Over::Closed | Over::Reset)) => Ok(()),
        Err(error) => Err(error),
        Ok(never) => match never {},
    }
}

impl Agent {
    fn new(way: Way, files: Rlimit, place: Place) -> io::Result<Self> {
        let poller = Poller::new()?;
        let (wire, calls) = match way {
            Way::Wire(wire) => (Wire::new(&poller, wire)?, None),
            Way::Line(line) => (Wire::none(), Some(Calls::new(&poller, line)?)),
        };
        let (children, told) = UnixStream::pair()?;
        rustix::io::ioctl_fionbio(&children, true)?;
        signal_hook::low_level::pipe::register(libc::SIGCHLD, told)?;
        let mut children = Source::new(&poller, children.into(), Token::Children);
        children.want(true, false)?;
        Ok(Self {
            wire,
            calls,
            pool: Pool::new(&poller, place == Place::Machine)?,
            poller,
            place,
            version: None,
            asked: false,
            ending: false,
            channels: Channels::default(),
            processes: Processes::default(),
            watches: Watches::default(),
            children,
            env: BTreeMap::new(),
            files,
        })
    }

    fn serve(&mut self) -> Result<std::convert::Infallible, AgentError> {
        loop {
            match self.turn() {
                Err(AgentError::Over(over)) => self.over(over)?,
                outcome => outcome?,
            }
        }
    }

    fn turn(&mut self) -> Result<(), AgentError> {
        let calls = self.calls.as_ref().and_then(Calls::deadline);
        let deadline = self.processes.deadline().into_iter().chain(calls).min();
        let limit = deadline.map(|at| at.saturating_duration_since(Instant::now()));
        for token in self.poller.wait(limit).map_err(AgentError::Wait)? {
            self.hear(token)?;
        }
        self.end_silent();
        if let Some(calls) = &mut self.calls {
            calls.pass(Instant::now())?;
        }
        loop {
            // Each once, so that none holds up the others.
            for _ in 0..self.channels.ready() {
                if !self.wire.room() {
                    break;
                }
                if let Some(number) = self.channels.next_ready() {
                    self.advance(number);
                }
            }
            self.wire.flush().map_err(AgentError::Over)?;
            if self.channels.ready() == 0 || !self.wire.room() {
                break;
            }
        }
        if self.ending && self.wire.is_empty() {
            return Err(AgentError::Over(Over::Closed));
        }
        Ok(())
    }

    fn hear(&mut self, token: Token) -> Result<(), AgentError> {
        match token {
            Token::Wire => {
                for frame in self.wire.read().map_err(AgentError::Over)? {
                    self.frame(frame).map_err(AgentError::Over)?;
                }
            }
            Token::Line => self.line_ready()?,
            Token::Caller(number) => self.caller_ready(number),
            Token::Children => {
                let mut told = [0; 64];
                match rustix::io::read(&self.children, &mut told) {
                    Ok(_) | Err(rustix::io::Errno::AGAIN | rustix::io::Errno::INTR) => {}
                    Err(error) => complain("hear of ended processes", &error),
                }
                self.reap();
            }
            Token::Workers => {
                for (number, outcome) in self.pool.finished() {
                    self.finished(number, outcome);
                }
            }
            Token::Watches => self.watches_ready(),
            Token::Output(number) => self.output_ready(number, Stream::Out),
            Token::ErrorOutput(number) => self.output_ready(number, Stream::Err),
            Token::Input(number) => self.feed(number),
            Token::Port(number) => self.port_ready(number),
            Token::Drain(number) => self.drain_ready(number),
        }
        Ok(())
    }

    /// A worker has done something for a channel.
    fn finished(&mut self, number: u64, outcome: Result<Done, Failure>) {
        match outcome {
            Ok(Done::Watched(outcome)) => return self.watched(number, outcome),
            Ok(Done::Opened(fd, at, entry)) => return self.opened(number, fd, at, entry),
            Ok(Done::Chunk(bytes)) => return self.chunk(number, bytes),
            Ok(Done::Written) => return self.written(number),
            Ok(Done::Looked(events)) => return self.looked(number, events),
            _ => {}
        }
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        match outcome {
            Err(failure) => channel.fail(failure),
            Ok(Done::Entry(entry)) => channel.done(Outcome::Entry(entry)),
            Ok(Done::Metrics(metrics)) => channel.done(Outcome::Metrics(metrics)),
            Ok(Done::Listed(events)) => {
                channel.pending.extend(events);
                channel.done(Outcome::Done);
            }
            Ok(_) => channel.done(Outcome::Done),
        }
        self.channels.wake(number);
    }
}
