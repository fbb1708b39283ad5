//! The processes that were started by requests.
//!
//! A process is in [`Processes::live`] until its end was decided: its first process was reaped, and
//! its output is at its end or has been silent for [`SILENCE`] since. Then it is kept for a while
//! among the ended ones. Its number, other than its pid, is never used again.

pub mod log;
mod output;
mod serve;
mod spawn;

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use floe_guest::message::{Exit, ProcessInfo, ProcessRef};

use super::poll::Source;
use log::Log;

pub use spawn::check_env;

/// How long output that others hold open may be silent after a process ended.
const SILENCE: Duration = Duration::from_secs(2);

/// Most processes that run at once.
const MAX_LIVE: usize = 1024;

/// Most ended ones that are kept.
const MAX_ENDED: usize = 64;

/// Most bytes of their logs.
const MAX_ENDED_BYTES: usize = 4 * 1024 * 1024;

/// Most outputs that are read for nobody.
const MAX_DRAINS: usize = 256;

/// A process that was started.
#[derive(Debug)]
pub struct Process {
    pub info: ProcessInfo,
    pub pty: bool,
    pub log: Log,
    /// stdout, or the terminal.
    output: Option<Source>,
    errors: Option<Source>,
    input: Option<Source>,
    /// Whether it ever took input.
    takes_input: bool,
    /// Channels that give it input, in their order.
    inputs: VecDeque<u64>,
    /// Channels that are sent its output.
    attached: Vec<u64>,
    /// How its first process ended.
    exit: Option<Exit>,
    /// When its output has been silent long enough.
    silent_at: Option<Instant>,
}

/// An ended process.
#[derive(Debug)]
struct Ended {
    number: u64,
    process: Process,
}

/// All of them.
#[derive(Debug, Default)]
pub struct Processes {
    live: BTreeMap<u64, Process>,
    ended: VecDeque<Ended>,
    /// Output of ended processes that others hold open, oldest first.
    drains: VecDeque<(u64, Source)>,
    last: u64,
}

impl Processes {
    fn next_number(&mut self) -> u64 {
        self.last += 1;
        self.last
    }

    /// The number of one that runs.
    fn find_live(&self, process: &ProcessRef) -> Option<u64> {
        let fits = |one: &Process| match process {
            ProcessRef::Pid(pid) => one.info.pid == *pid,
            ProcessRef::Tag(tag) => one.info.tag.as_ref() == Some(tag),
        };
        let mut newest_first = self.live.iter().rev();
        newest_first
            .find(|(_, one)| fits(one))
            .map(|(number, _)| *number)
    }

    /// The number of one that runs, or is kept.
    fn find(&self, process: &ProcessRef) -> Option<u64> {
        let fits = |one: &Process| match process {
            ProcessRef::Pid(pid) => one.info.pid == *pid,
            ProcessRef::Tag(tag) => one.info.tag.as_ref() == Some(tag),
        };
        self.find_live(process).or_else(|| {
            let mut newest_first = self.ended.iter().rev();
            newest_first
                .find(|ended| fits(&ended.process))
                .map(|ended| ended.number)
        })
    }

    /// One that runs or is kept.
    pub fn get(&self, number: u64) -> Option<&Process> {
        self.live.get(&number).or_else(|| {
            let ended = self.ended.iter().find(|ended| ended.number == number);
            ended.map(|ended| &ended.process)
        })
    }

    fn get_mut(&mut self, number: u64) -> Option<&mut Process> {
        if let Some(process) = self.live.get_mut(&number) {
            return Some(process);
        }
        let mut ended = self.ended.iter_mut();
        ended
            .find(|ended| ended.number == number)
            .map(|ended| &mut ended.process)
    }

    /// Moves one to the ended ones, and lets the oldest of those go that nobody reads.
    fn retire(&mut self, number: u64) {
        let Some(process) = self.live.remove(&number) else {
            return;
        };
        self.ended.push_back(Ended { number, process });
        let bytes = |ended: &VecDeque<Ended>| -> usize {
            ended.iter().map(|one| one.process.log.len()).sum()
        };
        while self.ended.len() > MAX_ENDED || bytes(&self.ended) > MAX_ENDED_BYTES {
            let newest = self.ended.len() - 1;
            let oldest = self
                .ended
                .iter()
                .position(|one| one.process.attached.is_empty());
            match oldest {
                Some(oldest) if oldest < newest => {
                    self.ended.remove(oldest);
                }
                // Those that are being read go when they have been.
                _ => break,
            }
        }
    }

    /// When the next thing happens that only time brings.
    pub fn deadline(&self) -> Option<Instant> {
        self.live.values().filter_map(|one| one.silent_at).min()
    }
}

impl Process {
    /// How it ended, once nothing more comes.
    fn is_over(&self) -> Option<&Exit> {
        let quiet = self.output.is_none() && self.errors.is_none();
        self.exit.as_ref().filter(|_| quiet)
    }
}
