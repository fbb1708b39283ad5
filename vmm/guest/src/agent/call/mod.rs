//! The daemon's calls to the agent of a virtual machine: the first one, and those after a snapshot of the
//! machine's memory has taken the connection away.
//!
//! Only while there is no connection are calls taken. The agent listens all the time nevertheless: in a
//! machine that goes on from a snapshot, the next call may come before the agent has heard of the end of
//! the old connection, and so waits for it; and nobody else can listen there meanwhile.
//!
//! Invariants: nothing here waits. Who may not call is hung up on before anything is read of it, and at
//! most [`MAX_CALLERS`] others are heard at once, each for [`PATIENCE`]. Of a connection that is gone, no
//! channel, no input on its way and no piece of a frame is left for the next one; what it has started, the
//! default environment, and the numbers of channels, which are never used again, are.

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::{Duration, Instant};

use floe_guest::message::{End, Outcome};
use rustix::io::Errno;
use rustix::net::RecvFlags;

use super::poll::{Poller, Source, Token};
use super::wire::{Over, Wire};
use super::{Agent, AgentError, complain};

/// How long the daemon has to call again. It calls as soon as the machine goes on, and an emulated machine
/// takes a minute to answer. Who has not called after so much longer does not know of this machine, which
/// nobody would ever end otherwise. Not shorter, as the machine's processes end with it.
const CALL_WAIT: Duration = Duration::from_secs(600);

/// How long a caller has to say something. The daemon speaks first.
const PATIENCE: Duration = Duration::from_secs(10);

/// Most callers that are waited for at once; the kernel keeps some more.
const MAX_CALLERS: usize = 16;

/// Most calls that are taken in one turn.
const TURN: usize = 64;

/// How long no calls are taken once that has failed for want of memory or files.
const REST: Duration = Duration::from_millis(100);

/// Takes the next call, without waiting: a caller, whose socket does not block, or nothing of one that
/// may not call. `WouldBlock` if nobody calls.
pub type Accept = fn(BorrowedFd<'_>) -> io::Result<Option<OwnedFd>>;

/// Where the daemon calls.
pub struct Line {
    /// A socket that listens and does not block.
    pub listener: OwnedFd,
    /// Takes a call from it.
    pub accept: Accept,
}

/// Somebody who has not said anything yet.
#[derive(Debug)]
struct Caller {
    number: u64,
    source: Source,
    until: Instant,
}

/// What a caller does.
#[derive(Debug, PartialEq, Eq)]
enum Heard {
    Nothing,
    Words,
    Gone,
}

/// The calls.
#[derive(Debug)]
pub struct Calls {
    poller: Rc<Poller>,
    listener: Source,
    accept: Accept,
    /// Whether they are taken.
    taken: bool,
    callers: VecDeque<Caller>,
    /// The number of the last caller.
    last: u64,
    /// When they are taken again, after that failed.
    rest: Option<Instant>,
    /// Until when somebody must have been put through.
    until: Option<Instant>,
}

impl Calls {
    /// Takes calls on a line, as long as it takes until there is one.
    pub fn new(poller: &Rc<Poller>, line: Line) -> io::Result<Self> {
        let mut calls = Self {
            poller: Rc::clone(poller),
            listener: Source::new(poller, line.listener, Token::Line),
            accept: line.accept,
            taken: true,
            callers: VecDeque::new(),
            last: 0,
            rest: None,
            until: None,
        };
        calls.settle()?;
        Ok(calls)
    }

    /// Takes calls until that time.
    fn begin(&mut self, until: Instant) -> io::Result<()> {
        self.taken = true;
        self.until = Some(until);
        self.settle()
    }

    /// Takes none any more: there is a connection.
    fn stop(&mut self) -> io::Result<()> {
        self.taken = false;
        self.callers.clear();
        self.rest = None;
        self.settle()
    }

    /// Says whether to wait for calls.
    fn settle(&mut self) -> io::Result<()> {
        let room = self.callers.len() < MAX_CALLERS && self.rest.is_none();
        self.listener.want(self.taken && room, false)
    }

    /// When the next thing happens that only time brings.
    pub fn deadline(&self) -> Option<Instant> {
        let callers = self.callers.iter().map(|caller| caller.until);
        let all = callers.chain(self.rest).chain(self.until);
        all.min().filter(|_| self.taken)
    }

    /// Does what only time brings.
    ///
    /// # Errors
    ///
    /// [`Over::NoCall`] if the time is over in which somebody was to call.
    pub fn pass(&mut self, now: Instant) -> Result<(), AgentError> {
        if !self.taken {
            return Ok(());
        }
        self.callers.retain(|caller| caller.until > now);
        self.rest = self.rest.filter(|at| *at > now);
        if self.until.is_some_and(|until| until <= now) {
            return Err(AgentError::Over(Over::NoCall));
        }
        self.settle().map_err(AgentError::Call)
    }

    /// Somebody calls: hears who it is.
    fn ready(&mut self) -> io::Result<()> {
        for _ in 0..TURN {
            if !self.taken || self.callers.len() >= MAX_CALLERS {
                break;
            }
            match (self.accept)(self.listener.as_fd()) {
                Ok(Some(caller)) => {
                    self.last += 1;
                    let mut source = Source::new(&self.poller, caller, Token::Caller(self.last));
                    source.want(true, false)?;
                    self.callers.push_back(Caller {
                        number: self.last,
                        source,
                        until: Instant::now() + PATIENCE,
                    });
                }
                Ok(None) => {}
                Err(error) => match Errno::from_io_error(&error) {
                    Some(Errno::AGAIN) => break,
                    // Who called is gone already.
                    Some(Errno::INTR | Errno::CONNABORTED | Errno::CONNRESET) => {}
                    Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::NOBUFS) => {
                        complain("take a call", &error);
                        self.rest = Some(Instant::now() + REST);
                        break;
                    }
                    _ => return Err(error),
                },
            }
        }
        self.settle()
    }

    /// A caller may have said something: its connection then.
    fn hear(&mut self, number: u64) -> Option<OwnedFd> {
        let at = self
            .callers
            .iter()
            .position(|caller| caller.number == number)?;
        let heard = hear(&self.callers.get(at)?.source);
        if heard == Heard::Nothing {
            return None;
        }
        let caller = self.callers.remove(at)?;
        if heard == Heard::Gone {
            return None;
        }
        match caller.source.into_fd() {
            Ok(fd) => Some(fd),
            Err(error) => {
                complain("put a call through", &error);
                None
            }
        }
    }
}

/// Whether a caller says something before it hangs up. One that gave up while the machine was booting may
/// have been put through all the same, and the end of its connection is not to be that of the machine.
fn hear(caller: impl AsFd) -> Heard {
    let mut byte = [0];
    match rustix::net::recv(caller, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT) {
        Ok((_, 0)) => Heard::Gone,
        Ok(_) => Heard::Words,
        Err(Errno::AGAIN | Errno::INTR) => Heard::Nothing,
        // A snapshot has taken it away as well.
        Err(_) => Heard::Gone,
    }
}

impl Agent {
    /// Somebody calls.
    pub(super) fn line_ready(&mut self) -> Result<(), AgentError> {
        match &mut self.calls {
            Some(calls) => calls.ready().map_err(AgentError::Call),
            None => Ok(()),
        }
    }

    /// Somebody who has called may have said something, and is the daemon then.
    pub(super) fn caller_ready(&mut self, number: u64) {
        let Some(calls) = &mut self.calls else {
            return;
        };
        let Some(fd) = calls.hear(number) else {
            return;
        };
        let connected = Wire::new(&self.poller, fd).and_then(|wire| calls.stop().map(|()| wire));
        match connected {
            Ok(wire) => self.wire = wire,
            // It calls again.
            Err(error) => complain("put a call through", &error),
        }
    }

    /// The connection is over, or there is none. Returns if the daemon may call again, and is waited for.
    pub(super) fn over(&mut self, over: Over) -> Result<(), AgentError> {
        let Some(calls) = self.calls.as_mut().filter(|_| !self.ending) else {
            return Err(AgentError::Over(over));
        };
        let anew = Instant::now() + CALL_WAIT;
        let until = match over {
            Over::Reset => anew,
            // It took too long to answer for who called, and who calls again: nobody who wants the machine
            // to end begins with a hello for that.
            Over::Closed | Over::Failed(_) if !self.asked => calls.until.unwrap_or(anew),
            over => return Err(AgentError::Over(over)),
        };
        calls.begin(until).map_err(AgentError::Call)?;
        self.hang_up();
        Ok(())
    }

    /// Lets go of the connection and of all that belonged to it, as if every channel had been cancelled.
    fn hang_up(&mut self) {
        self.wire = Wire::none();
        self.version = None;
        self.asked = false;
        // First, so that no channel's input goes on because the one before it is closed.
        self.forget_inputs();
        let open: Vec<u64> = self.channels.all().map(|(number, _)| number).collect();
        for number in open {
            self.close(number, &End::Ok(Outcome::Done));
        }
    }
}
