//! Requests about processes, and their input.

use floe_guest::message::{
    Event, Failure, FailureKind, Outcome, ProcessInfo, ProcessRef, PtySize, StartProcess,
};
use floe_guest::window::cost;
use rustix::io::Errno;

use super::log::Log;
use super::spawn::{self, no_such};
use super::{MAX_LIVE, Process};
use crate::agent::channel::{Input, Work};
use crate::agent::failure::{failed, failure, invalid};
use crate::agent::poll::{Source, Token};
use crate::agent::{Agent, complain, sys, wire};

/// Channels that wait to give a process input.
const MAX_INPUTS: usize = 64;

impl Agent {
    /// Starts a command and attaches the channel to it.
    pub(crate) fn start(&mut self, number: u64, request: StartProcess) -> Result<(), Failure> {
        if self.processes.live.len() >= MAX_LIVE {
            return Err(failure(
                FailureKind::Exhausted,
                format!("{MAX_LIVE} processes that were started run already"),
            ));
        }
        let spawned = spawn::spawn(&request, &self.env, self.files)?;
        let pty = request.pty.is_some();
        let process = self.processes.next_number();
        let source = |fd, token: fn(u64) -> Token| Source::new(&self.poller, fd, token(process));
        self.processes.live.insert(
            process,
            Process {
                pty,
                log: Log::default(),
                output: Some(source(spawned.output, Token::Output)),
                errors: spawned.errors.map(|fd| source(fd, Token::ErrorOutput)),
                input: spawned.input.map(|fd| source(fd, Token::Input)),
                takes_input: pty || request.stdin,
                inputs: std::collections::VecDeque::new(),
                attached: Vec::new(),
                exit: None,
                silent_at: None,
                info: ProcessInfo {
                    pid: spawned.pid,
                    cmd: request.cmd,
                    args: request.args,
                    env: request.env,
                    cwd: request.cwd,
                    tag: request.tag,
                },
            },
        );
        self.attach_to(number, process);
        self.settle(process);
        Ok(())
    }

    /// Attaches the channel to a process.
    pub(crate) fn attach(&mut self, number: u64, process: &ProcessRef) -> Result<(), Failure> {
        let found = self
            .processes
            .find(process)
            .ok_or_else(|| no_such(process))?;
        self.attach_to(number, found);
        self.settle(found);
        Ok(())
    }

    fn attach_to(&mut self, number: u64, process: u64) {
        let (Some(channel), Some(one)) = (
            self.channels.get_mut(number),
            self.processes.get_mut(process),
        ) else {
            return;
        };
        let at = one.log.start();
        one.attached.push(number);
        channel.push(&Event::Started {
            pid: one.info.pid,
            pty: one.pty,
        });
        if at > 0 {
            channel.push(&Event::Lost { bytes: at });
        }
        channel.work = Work::Attached { process, at };
        self.channels.wake(number);
    }

    /// A channel is not attached any more.
    pub(crate) fn detach(&mut self, number: u64, process: u64) {
        if let Some(process) = self.processes.get_mut(process) {
            process.attached.retain(|channel| *channel != number);
        }
        self.settle(process);
    }

    /// Lists those that run.
    pub(crate) fn list_processes(&mut self, number: u64) {
        let Some(channel) = self.channels.get_mut(number) else {
            return;
        };
        for process in self.processes.live.values() {
            let info = &process.info;
            let json = wire::event(&Event::Process(info.clone())).or_else(|| {
                // Cannot be, as long as an event may be longer than a request.
                wire::event(&Event::Process(ProcessInfo {
                    args: Vec::new(),
                    env: std::collections::BTreeMap::new(),
                    ..info.clone()
                }))
            });
            channel.pending.extend(json);
        }
        channel.done(Outcome::Done);
    }

    /// Sends a signal to a process and its group.
    pub(crate) fn signal(&mut self, process: &ProcessRef, signal: i32) -> Result<(), Failure> {
        let live = self.processes.find_live(process);
        let running = live
            .and_then(|number| self.processes.live.get(&number))
            .filter(|one| one.exit.is_none())
            .ok_or_else(|| no_such(process))?;
        let pid = i32::try_from(running.info.pid).unwrap_or(0);
        sys::kill_group(pid, signal)
            .map_err(|error| failed(&format!("send signal {signal} to {process}"), error))
    }

    /// Changes the size of a terminal.
    pub(crate) fn resize(&mut self, process: &ProcessRef, size: PtySize) -> Result<(), Failure> {
        let live = self.processes.find_live(process);
        let one = live
            .and_then(|number| self.processes.live.get(&number))
            .ok_or_else(|| no_such(process))?;
        if !one.pty {
            return Err(invalid(format!("{process} has no terminal")));
        }
        let Some(terminal) = &one.output else {
            return Err(no_such(process));
        };
        spawn::resize(terminal, size)
            .map_err(|error| failed(&format!("resize the terminal of {process}"), error))
    }

    /// Lets the channel give a process input, after those that do already.
    pub(crate) fn input(&mut self, number: u64, process: &ProcessRef) -> Result<(), Failure> {
        let found = self.takes_input(process)?;
        if let Some(channel) = self.channels.get_mut(number) {
            channel.work = Work::Input(Input {
                process: found,
                frames: std::collections::VecDeque::new(),
                written: 0,
            });
        }
        self.queue_input(number, found)
    }

    /// Ends the input of a process, after what is being given.
    pub(crate) fn end_input(&mut self, number: u64, process: &ProcessRef) -> Result<(), Failure> {
        let found = match self.takes_input(process) {
            Ok(found) => found,
            Err(failure) => {
                let live = self.processes.find_live(process);
                let closed = live
                    .and_then(|number| self.processes.live.get(&number))
                    .is_some_and(|one| one.takes_input && one.input.is_none());
                if !closed {
                    return Err(failure);
                }
                if let Some(channel) = self.channels.get_mut(number) {
                    channel.done(Outcome::Done);
                }
                return Ok(());
            }
        };
        if self.processes.get(found).is_some_and(|one| one.pty) {
            return Err(invalid(format!(
                "{process} has a terminal, whose input ends when Ctrl-D is typed"
            )));
        }
        if let Some(channel) = self.channels.get_mut(number) {
            channel.work = Work::CloseInput { process: found };
        }
        self.queue_input(number, found)
    }

    fn takes_input(&self, process: &ProcessRef) -> Result<u64, Failure> {
        let number = self
            .processes
            .find_live(process)
            .ok_or_else(|| no_such(process))?;
        match self.processes.live.get(&number) {
            Some(one) if one.input.is_some() => Ok(number),
            _ => Err(takes_none(&process.to_string())),
        }
    }

    fn queue_input(&mut self, number: u64, process: u64) -> Result<(), Failure> {
        if let Some(one) = self.processes.live.get_mut(&process) {
            if one.inputs.len() >= MAX_INPUTS {
                return Err(failure(
                    FailureKind::Exhausted,
                    format!("{MAX_INPUTS} others give process {} input", one.info.pid),
                ));
            }
            one.inputs.push_back(number);
        }
        self.feed(process);
        Ok(())
    }

    /// A channel does not give input any more.
    pub(crate) fn forget_input(&mut self, number: u64, process: u64) {
        if let Some(one) = self.processes.live.get_mut(&process) {
            one.inputs.retain(|channel| *channel != number);
        }
        self.feed(process);
    }

    /// No channel gives any process input any more. What was not given to it yet is not.
    pub(crate) fn forget_inputs(&mut self) {
        for one in self.processes.live.values_mut() {
            one.inputs.clear();
        }
    }

    /// Gives a process what has come for it, as far as it takes it.
    pub(crate) fn feed(&mut self, process: u64) {
        loop {
            let Some(one) = self.processes.live.get_mut(&process) else {
                return;
            };
            let Some(input) = &mut one.input else {
                return;
            };
            let front = one.inputs.front().copied();
            let channel = front.and_then(|number| self.channels.get_mut(number));
            let (Some(number), Some(channel)) = (front, channel) else {
                if one.inputs.pop_front().is_some() {
                    continue;
                }
                return wait_to_write(input, false);
            };
            let Work::Input(given) = &mut channel.work else {
                // What comes before it has been given.
                channel.done(Outcome::Done);
                self.channels.wake(number);
                return self.close_input(process);
            };
            let Some(frame) = given.frames.front() else {
                if !channel.input_over {
                    return wait_to_write(input, false);
                }
                one.inputs.pop_front();
                channel.done(Outcome::Done);
                self.channels.wake(number);
                continue;
            };
            let rest = frame.get(given.written..).unwrap_or_default();
            match rustix::io::write(&*input, rest) {
                Ok(len) if len < rest.len() => given.written += len,
                Ok(_) => {
                    let room = cost(frame.len());
                    given.frames.pop_front();
                    given.written = 0;
                    // Cannot fail: it was taken out when the frame came.
                    if channel.input.add(room).is_ok() {
                        self.wire.credit(channel.id, room);
                    }
                }
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return wait_to_write(input, true),
                // Nobody reads there any more.
                Err(_) => return self.close_input(process),
            }
        }
    }

    /// Closes the input of a process; who was giving it some is told that it takes no more.
    pub(super) fn close_input(&mut self, process: u64) {
        let Some(one) = self.processes.live.get_mut(&process) else {
            return;
        };
        one.input = None;
        let name = format!("process {}", one.info.pid);
        for number in std::mem::take(&mut one.inputs) {
            if let Some(channel) = self.channels.get_mut(number) {
                channel.fail(takes_none(&name));
                self.channels.wake(number);
            }
        }
    }

    /// The processes that were started and have not ended, for the end of the agent.
    pub(crate) fn running(&self) -> impl Iterator<Item = i32> {
        self.processes
            .live
            .values()
            .filter(|one| one.exit.is_none())
            .filter_map(|one| i32::try_from(one.info.pid).ok())
    }
}

fn takes_none(process: &str) -> Failure {
    invalid(format!("{process} takes no input"))
}

fn wait_to_write(input: &mut Source, wanted: bool) {
    if let Err(error) = input.want(false, wanted) {
        complain("wait for a process to take input", &error);
    }
}
