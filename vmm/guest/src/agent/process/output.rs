//! Reading what processes write, and deciding that one has ended.

use std::os::fd::AsFd;
use std::time::Instant;

use floe_guest::frame::{Kind, MAX_DATA};
use floe_guest::message::{Exit, Failure, FailureKind, Outcome};
use rustix::io::Errno;
use rustix::process::{WaitOptions, WaitStatus};

use super::log::Stream;
use super::{MAX_DRAINS, Process, SILENCE};
use crate::agent::channel::Work;
use crate::agent::failure::failure;
use crate::agent::poll::{Source, Token};
use crate::agent::{Agent, complain};

/// Bytes read at once.
const READ: usize = 64 * 1024;

/// Its output was not kept. Cannot be, while a channel is attached.
fn gone() -> Failure {
    failure(FailureKind::NoSuchProcess, "the process ended too long ago")
}

/// What a read gave.
enum Got {
    Bytes(usize),
    Nothing,
    Over,
}

fn read(from: impl AsFd, buffer: &mut [u8]) -> Got {
    match rustix::io::read(from, buffer) {
        Ok(0) => Got::Over,
        Ok(len) => Got::Bytes(len),
        Err(Errno::AGAIN | Errno::INTR) => Got::Nothing,
        // The other side of a terminal is closed.
        Err(_) => Got::Over,
    }
}

impl Agent {
    /// Reaps all that have ended: processes that were started, and orphans.
    pub(crate) fn reap(&mut self) {
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.reaped(pid.as_raw_nonzero().get(), status),
                Ok(None) | Err(Errno::CHILD) => return,
                Err(Errno::INTR) => {}
                Err(error) => return complain("wait for processes", &error),
            }
        }
    }

    fn reaped(&mut self, pid: i32, status: WaitStatus) {
        let exit = match (status.exit_status(), status.terminating_signal()) {
            (Some(code), _) => Exit { code, signal: None },
            (None, Some(signal)) => Exit {
                code: -1,
                signal: Some(signal),
            },
            (None, None) => return,
        };
        let found = self.processes.live.iter_mut().find(|(_, process)| {
            i32::try_from(process.info.pid) == Ok(pid) && process.exit.is_none()
        });
        let Some((&number, process)) = found else {
            return;
        };
        process.exit = Some(exit);
        self.output_ready(number, Stream::Out);
        self.output_ready(number, Stream::Err);
    }

    /// There may be something to read.
    pub(crate) fn output_ready(&mut self, number: u64, stream: Stream) {
        let room = self.room(number);
        let Some(process) = self.processes.live.get_mut(&number) else {
            return;
        };
        let source = match stream {
            Stream::Out => &mut process.output,
            Stream::Err => &mut process.errors,
        };
        if room > 0
            && let Some(open) = source
        {
            let mut buffer = [0; READ];
            let most = room.min(READ);
            match read(&*open, buffer.get_mut(..most).unwrap_or_default()) {
                Got::Bytes(len) => {
                    process
                        .log
                        .push(stream, buffer.get(..len).unwrap_or_default());
                    process.silent_at = None;
                    for channel in &process.attached {
                        self.channels.wake(*channel);
                    }
                }
                Got::Over => *source = None,
                // A terminal's user is gone, and what it wrote has been read.
                Got::Nothing if process.pty && process.exit.is_some() => *source = None,
                Got::Nothing => {}
            }
        }
        self.settle(number);
    }

    /// How much may be read of a process without losing what somebody attached is still to be sent.
    fn room(&self, number: u64) -> usize {
        let Some(process) = self.processes.live.get(&number) else {
            return 0;
        };
        let sent =
            process
                .attached
                .iter()
                .filter_map(|channel| match self.channels.get(*channel)?.work {
                    Work::Attached { at, .. } => Some(at),
                    _ => None,
                });
        match sent.min() {
            Some(oldest) => process.log.room(oldest),
            None => READ,
        }
    }

    /// Says what to wait for of a process, and ends it when that is nothing any more.
    pub(super) fn settle(&mut self, number: u64) {
        let wanted = self.room(number) > 0;
        let Some(process) = self.processes.live.get_mut(&number) else {
            return;
        };
        for source in [&mut process.output, &mut process.errors] {
            if let Some(open) = source
                && let Err(error) = open.want(wanted, false)
            {
                complain("wait for output", &error);
                *source = None;
            }
        }
        if process.exit.is_none() || !wanted {
            process.silent_at = None;
        } else {
            process
                .silent_at
                .get_or_insert_with(|| Instant::now() + SILENCE);
        }
        if process.is_over().is_some() {
            self.ended(number);
        }
    }

    /// The time of some may be over.
    pub(crate) fn end_silent(&mut self) {
        let now = Instant::now();
        let due = |process: &Process| process.silent_at.is_some_and(|at| at <= now);
        let silent: Vec<u64> = self
            .processes
            .live
            .iter()
            .filter(|(_, process)| due(process))
            .map(|(number, _)| *number)
            .collect();
        for number in silent {
            let Some(process) = self.processes.live.get_mut(&number) else {
                continue;
            };
            let open = [process.output.take(), process.errors.take()];
            for source in open.into_iter().flatten() {
                self.drain(source);
            }
            self.ended(number);
        }
    }

    /// Goes on reading, for nobody, so that who writes there is not killed.
    fn drain(&mut self, source: Source) {
        let number = self.processes.next_number();
        let moved = source.into_fd().and_then(|fd| {
            let mut source = Source::new(&self.poller, fd, Token::Drain(number));
            source.want(true, false).map(|()| source)
        });
        match moved {
            Ok(source) => self.processes.drains.push_back((number, source)),
            Err(error) => complain("go on reading output", &error),
        }
        if self.processes.drains.len() > MAX_DRAINS {
            self.processes.drains.pop_front();
        }
    }

    /// There is something that nobody wants.
    pub(crate) fn drain_ready(&mut self, number: u64) {
        let mut buffer = [0; READ];
        let drains = &mut self.processes.drains;
        let over = drains
            .iter()
            .find(|(one, _)| *one == number)
            .is_some_and(|(_, source)| matches!(read(source, &mut buffer), Got::Over));
        if over {
            drains.retain(|(one, _)| *one != number);
        }
    }

    /// A process has ended: nothing more comes from it.
    fn ended(&mut self, number: u64) {
        self.close_input(number);
        if let Some(process) = self.processes.live.get_mut(&number) {
            process.silent_at = None;
            process.log.close();
            for channel in &process.attached {
                self.channels.wake(*channel);
            }
        }
        self.processes.retire(number);
    }

    /// Sends an attached channel the next piece of its process's log, or its end.
    pub(crate) fn advance_attached(&mut self, number: u64) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        let Work::Attached { process, at } = &mut channel.work else {
            return;
        };
        let of = *process;
        let Some(process) = self.processes.get(of) else {
            channel.fail(gone());
            return self.channels.wake(number);
        };
        if *at >= process.log.end() {
            if let Some(exit) = process.is_over() {
                channel.done(Outcome::Exit(exit.clone()));
                self.channels.wake(number);
            }
            return;
        }
        let Some(piece) = process
            .log
            .piece(*at, channel.window.payload().min(MAX_DATA))
        else {
            return;
        };
        if piece.bytes.is_empty() || channel.window.take(piece.bytes.len()).is_err() {
            return;
        }
        *at += u64::try_from(piece.bytes.len()).unwrap_or(u64::MAX);
        let kind = match piece.stream {
            Stream::Out => Kind::Data,
            Stream::Err => Kind::Stderr,
        };
        self.wire.put(kind, channel.id, &piece.bytes);
        self.channels.wake(number);
        self.settle(of);
    }
}
