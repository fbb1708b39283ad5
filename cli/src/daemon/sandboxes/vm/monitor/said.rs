//! What a monitor says: heard by a thread of its own, and kept until somebody looks.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::net::UnixStream;

use floe_guest::vm::GAVE_UP;
use floe_vmm::monitor::{Counts, Event, How, LINE_MAX};
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use crate::output::printable;

/// Most that a monitor says of one snapshot.
const SNAPSHOT_EVENTS: usize = 4;
/// Lines of the console that are told.
const LINES_TOLD: usize = 5;

/// How a machine ended.
#[derive(Clone, Debug)]
pub(in super::super) struct Ended {
    how: How,
    message: String,
    panic: Option<String>,
    lines: Vec<String>,
}

impl Ended {
    /// Whether it did not end because somebody wanted it to.
    pub(in super::super) fn is_failure(&self) -> bool {
        // Init says why it gives up, and switches the machine off.
        let gave_up = self.lines.iter().any(|line| line.starts_with(GAVE_UP));
        gave_up || self.panic.is_some() || matches!(self.how, How::GuestFault | How::HostFault)
    }

    /// In words, with what its console said last.
    pub(in super::super) fn told(&self) -> String {
        let mut told = self.message.clone();
        if let Some(panic) = &self.panic {
            told = format!("{told}: {panic}");
        }
        let last = self.lines.iter().rev().take(LINES_TOLD);
        let last: Vec<&str> = last.map(String::as_str).collect();
        if !last.is_empty() {
            let last: Vec<&str> = last.into_iter().rev().collect();
            told = format!("{told}; its console said last: {}", last.join(" | "));
        }
        printable(&told)
    }
}

/// See the module.
#[derive(Default)]
pub(super) struct Said {
    pub(super) answer: Option<Event>,
    pub(super) running: bool,
    pub(super) failed: Option<(String, Option<String>)>,
    pub(super) ended: Option<Ended>,
    /// About the snapshot that is being taken.
    pub(super) snapshot: VecDeque<Event>,
    pub(super) closed: bool,
}

impl Said {
    /// How the machine ended, if it has.
    pub(super) fn over(&self) -> Option<Ended> {
        let lost = || Ended {
            how: How::HostFault,
            message: "its monitor was killed".to_owned(),
            panic: None,
            lines: Vec::new(),
        };
        self.ended.clone().or_else(|| self.closed.then(lost))
    }
}

/// What was said, and who waits for more.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) said: Mutex<Said>,
    pub(super) changed: Condvar,
}

/// Keeps what a monitor says, until it says nothing any more.
pub(super) fn listen(socket: UnixStream, shared: &Shared) {
    let mut reader = BufReader::new(socket);
    loop {
        let mut line = Vec::new();
        let most = u64::try_from(LINE_MAX).unwrap_or(u64::MAX);
        let read = reader.by_ref().take(most).read_until(b'\n', &mut line);
        let event = match read {
            Ok(0) | Err(_) => break,
            Ok(_) => serde_json::from_slice::<Event>(&line),
        };
        let mut said = shared.said.lock();
        match event {
            Ok(Event::Running) => said.running = true,
            Ok(Event::Failed {
                message,
                causes,
                hint,
            }) => {
                let all: Vec<&str> = std::iter::once(&message)
                    .chain(&causes)
                    .map(String::as_str)
                    .collect();
                let hint = hint.map(|hint| printable(&hint));
                said.failed = Some((printable(&all.join(": ")), hint));
            }
            Ok(Event::Ended {
                how,
                message,
                panic,
                lines,
                counts,
                ..
            }) => {
                let Counts { exits, fs_requests } = counts;
                info!(exits, fs_requests, "a virtual machine has ended");
                said.ended = Some(Ended {
                    how,
                    message,
                    panic,
                    lines,
                });
            }
            Ok(event @ (Event::Held { .. } | Event::Taken { .. } | Event::NotTaken { .. })) => {
                // Nobody listens to more than there can be of one.
                said.snapshot.truncate(SNAPSHOT_EVENTS - 1);
                said.snapshot.push_back(event);
            }
            // One command is under way at a time.
            Ok(answer) => said.answer = Some(answer),
            Err(error) => {
                warn!(%error, "a monitor is not understood");
                break;
            }
        }
        drop(said);
        shared.changed.notify_all();
    }
    shared.said.lock().closed = true;
    shared.changed.notify_all();
}
