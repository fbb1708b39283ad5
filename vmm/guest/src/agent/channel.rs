//! The channels that are open, and what each is about.
//!
//! A channel has two numbers: the daemon's, which is used again, and one of its own, which never is.
//! What comes late (from a worker, from a process) is for the latter.

use std::collections::{BTreeMap, VecDeque};

use floe_guest::message::{End, Event, Failure, Outcome};
use floe_guest::window::{INPUT_WINDOW, Window};

use super::failure::failure;
use super::files::{Reading, Writing};
use super::port::Port;
use super::watch::Watching;
use super::wire;

/// Most channels at once.
pub const MAX_CHANNELS: usize = 1024;

/// What a channel is about.
#[derive(Debug)]
pub enum Work {
    /// Only what is pending, and its end; perhaps that comes from a worker.
    Answer,
    /// Sends the output of a process, from that position of its log on.
    Attached { process: u64, at: u64 },
    /// Gives input to a process.
    Input(Input),
    /// Ends the input of a process.
    CloseInput { process: u64 },
    /// Reads a file.
    Reading(Reading),
    /// Writes a file.
    Writing(Writing),
    /// Watches a directory.
    Watching(Watching),
    /// Is connected to a port.
    Port(Box<Port>),
}

/// Input that came and is not in the pipe yet.
#[derive(Debug)]
pub struct Input {
    pub process: u64,
    pub frames: VecDeque<Vec<u8>>,
    /// Bytes of the first frame that are in the pipe.
    pub written: usize,
}

/// A channel.
#[derive(Debug)]
pub struct Channel {
    /// The daemon's number.
    pub id: u32,
    /// What may still be sent.
    pub window: Window,
    /// What the daemon may still send.
    pub input: Window,
    /// Whether the daemon has said that no more comes.
    pub input_over: bool,
    /// Events that wait for room in the window.
    pub pending: VecDeque<Vec<u8>>,
    /// The end, once it is known; sent when nothing is pending.
    pub end: Option<End>,
    pub work: Work,
    queued: bool,
}

impl Channel {
    /// Puts an event behind those that wait.
    pub fn push(&mut self, event: &Event) {
        match wire::event(event) {
            Some(json) => self.pending.push_back(json),
            None => self.fail(failure(
                floe_guest::message::FailureKind::Other,
                "an answer of the agent is too long",
            )),
        }
    }

    /// Ends it with an outcome, after what is pending.
    pub fn done(&mut self, outcome: Outcome) {
        self.end.get_or_insert(End::Ok(outcome));
    }

    /// Ends it with a failure, after what is pending.
    pub fn fail(&mut self, failure: Failure) {
        self.end.get_or_insert(End::Failed(failure));
    }
}

/// All of them.
#[derive(Debug, Default)]
pub struct Channels {
    open: BTreeMap<u64, Channel>,
    numbers: BTreeMap<u32, u64>,
    /// Those that may be able to go on.
    ready: VecDeque<u64>,
    last: u64,
}

impl Channels {
    pub fn len(&self) -> usize {
        self.open.len()
    }

    /// The own number of the daemon's channel.
    pub fn number(&self, id: u32) -> Option<u64> {
        self.numbers.get(&id).copied()
    }

    /// Makes one; the daemon's number must not be in use.
    pub fn open(&mut self, id: u32, window: u32) -> u64 {
        self.last += 1;
        self.numbers.insert(id, self.last);
        self.open.insert(
            self.last,
            Channel {
                id,
                window: Window::new(window),
                input: Window::new(INPUT_WINDOW),
                input_over: false,
                pending: VecDeque::new(),
                end: None,
                work: Work::Answer,
                queued: false,
            },
        );
        self.wake(self.last);
        self.last
    }

    /// All of them.
    pub fn all(&self) -> impl Iterator<Item = (u64, &Channel)> {
        self.open.iter().map(|(number, channel)| (*number, channel))
    }

    pub fn get(&self, number: u64) -> Option<&Channel> {
        self.open.get(&number)
    }

    pub fn get_mut(&mut self, number: u64) -> Option<&mut Channel> {
        self.open.get_mut(&number)
    }

    pub fn close(&mut self, number: u64) -> Option<Channel> {
        let channel = self.open.remove(&number)?;
        self.numbers.remove(&channel.id);
        Some(channel)
    }

    /// Has a channel looked at in this turn.
    pub fn wake(&mut self, number: u64) {
        if let Some(channel) = self.open.get_mut(&number)
            && !channel.queued
        {
            channel.queued = true;
            self.ready.push_back(number);
        }
    }

    /// How many are to be looked at.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// The next that is to be looked at.
    pub fn next_ready(&mut self) -> Option<u64> {
        loop {
            let number = self.ready.pop_front()?;
            if let Some(channel) = self.open.get_mut(&number) {
                channel.queued = false;
                return Some(number);
            }
        }
    }
}
