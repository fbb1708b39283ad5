//! What the one thread of the agent waits for.

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::time::Duration;

use rustix::event::{Timespec, epoll};
use rustix::io::Errno;

/// Most events that are taken at once.
const BATCH: usize = 128;

/// Whose descriptor is ready. Numbers are those of processes, channels, drains and callers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// The connection to the daemon.
    Wire,
    /// SIGCHLD came.
    Children,
    /// A worker has finished something.
    Workers,
    /// Something happened in a watched directory.
    Watches,
    /// Output of a process: stdout or the terminal.
    Output(u64),
    /// stderr of a process.
    ErrorOutput(u64),
    /// A process takes more input.
    Input(u64),
    /// A connection to a port.
    Port(u64),
    /// Output that nobody wants.
    Drain(u64),
    /// Somebody calls.
    Line,
    /// Somebody who has called says something.
    Caller(u64),
}

const NUMBER: u64 = (1 << 56) - 1;

impl Token {
    fn encode(self) -> u64 {
        let (tag, number): (u64, u64) = match self {
            Self::Wire => (0, 0),
            Self::Children => (1, 0),
            Self::Workers => (2, 0),
            Self::Watches => (3, 0),
            Self::Output(number) => (4, number),
            Self::ErrorOutput(number) => (5, number),
            Self::Input(number) => (6, number),
            Self::Port(number) => (7, number),
            Self::Drain(number) => (8, number),
            Self::Line => (9, 0),
            Self::Caller(number) => (10, number),
        };
        tag << 56 | number & NUMBER
    }

    fn decode(value: u64) -> Option<Self> {
        let number = value & NUMBER;
        Some(match value >> 56 {
            0 => Self::Wire,
            1 => Self::Children,
            2 => Self::Workers,
            3 => Self::Watches,
            4 => Self::Output(number),
            5 => Self::ErrorOutput(number),
            6 => Self::Input(number),
            7 => Self::Port(number),
            8 => Self::Drain(number),
            9 => Self::Line,
            10 => Self::Caller(number),
            _ => return None,
        })
    }
}

/// The epoll instance.
#[derive(Debug)]
pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub fn new() -> io::Result<Rc<Self>> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        Ok(Rc::new(Self { epoll }))
    }

    /// Waits until something is ready or the time is over, and says what.
    pub fn wait(&self, limit: Option<Duration>) -> io::Result<Vec<Token>> {
        let limit = limit.map(|limit| Timespec {
            tv_sec: i64::try_from(limit.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(limit.subsec_nanos()),
        });
        let mut events = [MaybeUninit::uninit(); BATCH];
        match epoll::wait(&self.epoll, &mut events, limit.as_ref()) {
            Ok((events, _)) => Ok(events
                .iter()
                .filter_map(|event| Token::decode(event.data.u64()))
                .collect()),
            Err(Errno::INTR) => Ok(Vec::new()),
            Err(error) => Err(error.into()),
        }
    }
}

/// A descriptor of the agent's, and what is waited for on it.
#[derive(Debug)]
pub struct Source {
    poller: Rc<Poller>,
    fd: OwnedFd,
    token: Token,
    wanted: epoll::EventFlags,
}

impl Source {
    /// Waits for nothing yet.
    pub fn new(poller: &Rc<Poller>, fd: OwnedFd, token: Token) -> Self {
        Self {
            poller: Rc::clone(poller),
            fd,
            token,
            wanted: epoll::EventFlags::empty(),
        }
    }

    /// Says what to wait for. With neither, its end is not waited for either: the kernel would
    /// report that again and again.
    pub fn want(&mut self, read: bool, write: bool) -> io::Result<()> {
        let mut wanted = epoll::EventFlags::empty();
        wanted.set(epoll::EventFlags::IN, read);
        wanted.set(epoll::EventFlags::OUT, write);
        if wanted == self.wanted {
            return Ok(());
        }
        let data = epoll::EventData::new_u64(self.token.encode());
        let epoll = &self.poller.epoll;
        if wanted.is_empty() {
            epoll::delete(epoll, &self.fd)?;
        } else if self.wanted.is_empty() {
            epoll::add(epoll, &self.fd, data, wanted)?;
        } else {
            epoll::modify(epoll, &self.fd, data, wanted)?;
        }
        self.wanted = wanted;
        Ok(())
    }

    /// Takes the descriptor out.
    pub fn into_fd(mut self) -> io::Result<OwnedFd> {
        self.want(false, false)?;
        self.fd.try_clone()
    }
}

impl AsFd for Source {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Source {
    fn drop(&mut self) {
        // A copy of the descriptor, if there is one, would keep it in the epoll instance.
        if let Err(error) = self.want(false, false) {
            super::complain("stop waiting for a descriptor", &error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_come_back_as_they_were() {
        for token in [
            Token::Wire,
            Token::Children,
            Token::Workers,
            Token::Watches,
            Token::Output(7),
            Token::ErrorOutput(NUMBER),
            Token::Input(0),
            Token::Port(1),
            Token::Drain(2),
            Token::Line,
            Token::Caller(3),
        ] {
            assert_eq!(Token::decode(token.encode()), Some(token));
        }
        assert_eq!(Token::decode(u64::MAX), None);
    }

    #[test]
    fn a_closed_pipe_that_nobody_wants_is_not_reported() {
        let poller = Poller::new().unwrap();
        let (read, write) = rustix::pipe::pipe().unwrap();
        let mut source = Source::new(&poller, read, Token::Drain(1));
        source.want(true, false).unwrap();
        drop(write);
        assert_eq!(poller.wait(None).unwrap(), [Token::Drain(1)]);
        source.want(false, false).unwrap();
        assert_eq!(poller.wait(Some(Duration::ZERO)).unwrap(), []);
    }
}
