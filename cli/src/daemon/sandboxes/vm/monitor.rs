//! The daemon's side of a monitor: one process, and one socket with a line of JSON for each thing said.
//!
//! Nothing the monitor says is trusted further than to be shown: a guest may have taken it over.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, IoSlice, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use floe_guest::vm::GAVE_UP;
use floe_vmm::monitor::{Command, Counts, Event, How, LINE_MAX, MonitorConfig};
use floe_vmm::snapshot::Stats;
use parking_lot::{Condvar, Mutex};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
use tracing::{debug, info, warn};

use super::VmError;
use crate::daemon::sandboxes::process::{Cgroup, Host, entering, open_log, wait_ended};
use crate::error::{ApiError, ErrorKind};
use crate::output::printable;

/// How long the monitor may take for anything that it is told.
const WAIT: Duration = Duration::from_secs(30);
/// How long it may take to take what is said.
const SAY_WAIT: Duration = Duration::from_secs(2);
/// How long it may take to end by itself.
const END_WAIT: Duration = Duration::from_secs(2);
/// How long to rest before looking again.
const REST: Duration = Duration::from_millis(1);
/// How long a snapshot may take between two things that the monitor says: for copying all of a large memory.
const SNAPSHOT_WAIT: Duration = Duration::from_secs(600);
/// Most that a monitor says of one snapshot.
const SNAPSHOT_EVENTS: usize = 4;
/// Causes of a failure that are told.
const CAUSES_TOLD: usize = 8;
/// Lines of the console that are told.
const LINES_TOLD: usize = 5;

/// How a machine ended.
#[derive(Clone, Debug)]
pub(super) struct Ended {
    how: How,
    message: String,
    panic: Option<String>,
    lines: Vec<String>,
}

impl Ended {
    /// Whether it did not end because somebody wanted it to.
    pub(super) fn is_failure(&self) -> bool {
        // Init says why it gives up, and switches the machine off.
        let gave_up = self.lines.iter().any(|line| line.starts_with(GAVE_UP));
        gave_up || self.panic.is_some() || matches!(self.how, How::GuestFault | How::HostFault)
    }

    /// In words, with what its console said last.
    pub(super) fn told(&self) -> String {
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

#[derive(Default)]
struct Said {
    answer: Option<Event>,
    running: bool,
    failed: Option<(String, Option<String>)>,
    ended: Option<Ended>,
    /// About the snapshot that is being taken.
    snapshot: VecDeque<Event>,
    closed: bool,
}

impl Said {
    /// How the machine ended, if it has.
    fn over(&self) -> Option<Ended> {
        let lost = || Ended {
            how: How::HostFault,
            message: "its monitor was killed".to_owned(),
            panic: None,
            lines: Vec::new(),
        };
        self.ended.clone().or_else(|| self.closed.then(lost))
    }
}

#[derive(Default)]
struct Shared {
    said: Mutex<Said>,
    changed: Condvar,
}

/// One monitor.
pub(super) struct Monitor {
    child: Child,
    socket: Mutex<UnixStream>,
    shared: Arc<Shared>,
    paused: AtomicBool,
}

impl Monitor {
    /// Starts one in control groups.
    pub(super) fn spawn(host: &Host, cgroup: &Cgroup, log: &Path) -> Result<Self, VmError> {
        let failed = |source| VmError::Spawn { source };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        // A monitor that its guest has taken over may not read; nobody waits for it long.
        ours.set_write_timeout(Some(SAY_WAIT)).map_err(failed)?;
        let reader = ours.try_clone().map_err(failed)?;
        let log = open_log(log).map_err(VmError::file(log))?;
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = entering(&cgroup.ways_in());
        command
            .arg(program)
            .args(["vm", "monitor"])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            .stderr(log);
        let child = host.spawner.spawn(command).map_err(failed)?;
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        let listening = std::thread::Builder::new()
            .name("floe-vm-said".to_owned())
            .spawn(move || listen(reader, &told));
        let monitor = Self {
            child,
            socket: Mutex::new(ours),
            shared,
            paused: AtomicBool::new(false),
        };
        listening.map_err(failed)?;
        Ok(monitor)
    }

    /// Says what the machine is.
    pub(super) fn configure(&self, config: &MonitorConfig) -> Result<(), VmError> {
        self.say(config)
    }

    /// A connection of the monitor's to one of its servers.
    pub(super) fn connection(&self, listener: &UnixListener) -> Result<UnixStream, VmError> {
        let failed = |source| VmError::Monitor { source };
        listener.set_nonblocking(true).map_err(failed)?;
        let give_up = Instant::now() + WAIT;
        loop {
            match listener.accept() {
                Ok((socket, _)) => {
                    socket.set_nonblocking(false).map_err(failed)?;
                    return Ok(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
            self.refuse_if_over()?;
            if Instant::now() >= give_up {
                return Err(silent(WAIT));
            }
            std::thread::sleep(REST);
        }
    }

    /// Waits until the guest runs.
    pub(super) fn wait_until_running(&self) -> Result<(), VmError> {
        self.wait(WAIT, |said| said.running.then_some(()))
    }

    /// Has the machine held. The monitor waits for what its file systems were asked first, but not for
    /// ever: a request that is left is one that nobody in the machine has an answer to.
    pub(super) fn pause(&self) -> Result<(), VmError> {
        self.paused.store(true, Ordering::Relaxed);
        let held = self.command(Command::Pause);
        if held.is_err() {
            // Perhaps it was not held, and perhaps it was.
            self.resume()?;
        }
        held.map(drop)
    }

    /// Has a snapshot taken into files: `held` is called while the machine stands still.
    ///
    /// # Errors
    /// What `held` says, or why the monitor took none. The machine runs on.
    pub(super) fn snapshot(
        &self,
        id: &str,
        over: Option<&str>,
        files: [&File; 2],
        held: &mut dyn FnMut() -> Result<(), ApiError>,
    ) -> Result<Stats, ApiError> {
        let command = Command::Snapshot {
            id: id.to_owned(),
            over: over.map(str::to_owned),
        };
        self.shared.said.lock().snapshot.clear();
        say_with(&self.socket.lock(), &command, &files)?;
        let mut failed = None;
        loop {
            let next = self.wait(SNAPSHOT_WAIT, |said| said.snapshot.pop_front());
            let event = next.inspect_err(|_| {
                // It may be held by now: what it then asks is not answered, and it goes on.
                if let Err(error) = self.say(&Command::Cancel) {
                    debug!(%error, "a monitor is gone");
                }
            })?;
            match event {
                Event::Held { id: of } if of == id => {
                    failed = held().err();
                    let ok = failed.is_none();
                    self.say(&Command::Frozen { ok })?;
                }
                Event::Taken { id: of, stats } if of == id => return Ok(stats),
                Event::NotTaken { id: of, causes } if of == id => {
                    return Err(failed.unwrap_or_else(|| not_taken(&causes)));
                }
                // Of one that was given up.
                _ => {}
            }
        }
    }

    /// Lets it run on.
    pub(super) fn resume(&self) -> Result<(), VmError> {
        self.command(Command::Resume)?;
        self.paused.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the machine is held.
    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// How the machine ended, if it has.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.shared.said.lock().over()
    }

    /// How the machine ended, if it does within the time.
    pub(super) fn wait_ended(&self, wait: Duration) -> Option<Ended> {
        let give_up = Instant::now() + wait;
        let mut said = self.shared.said.lock();
        while said.over().is_none() {
            if self
                .shared
                .changed
                .wait_until(&mut said, give_up)
                .timed_out()
            {
                break;
            }
        }
        said.over()
    }

    /// Ends it, however it is.
    pub(super) fn end(self) {
        drop(self);
    }

    /// Has a command carried out, and returns the answer.
    fn command(&self, command: Command) -> Result<Event, VmError> {
        let socket = self.socket.lock();
        self.shared.said.lock().answer = None;
        say(&socket, &command)?;
        // A late answer to an earlier command is none to this one.
        let is_to_this = |event: &Event| match event {
            Event::Done { command: done }
            | Event::Refused {
                command: Some(done),
                ..
            } => *done == command,
            Event::Status { .. } => command == Command::Status,
            _ => true,
        };
        let answer = self.wait(WAIT, |said| said.answer.take().filter(is_to_this))?;
        drop(socket);
        match answer {
            Event::Refused { message, .. } => Err(VmError::Refused {
                message: printable(&message),
                hint: None,
            }),
            answer => Ok(answer),
        }
    }

    fn say(&self, message: &impl serde::Serialize) -> Result<(), VmError> {
        say(&self.socket.lock(), message)
    }

    fn wait<T>(
        &self,
        wait: Duration,
        mut look: impl FnMut(&mut Said) -> Option<T>,
    ) -> Result<T, VmError> {
        let give_up = Instant::now() + wait;
        let mut said = self.shared.said.lock();
        loop {
            if let Some(found) = look(&mut said) {
                return Ok(found);
            }
            over(&said)?;
            if self
                .shared
                .changed
                .wait_until(&mut said, give_up)
                .timed_out()
            {
                return Err(silent(wait));
            }
        }
    }

    fn refuse_if_over(&self) -> Result<(), VmError> {
        over(&self.shared.said.lock())
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Told by the end of the socket, if not so.
        if let Err(error) = self.say(&Command::Stop) {
            debug!(%error, "a monitor is gone already");
        }
        if wait_ended(&mut self.child, END_WAIT).is_some() {
            return;
        }
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            warn!(%error, "cannot end a monitor");
        }
    }
}

fn not_taken(causes: &[String]) -> ApiError {
    let mut causes = causes.iter().map(|cause| printable(cause));
    let what = causes
        .next()
        .unwrap_or_else(|| "no reason was given".to_owned());
    let what = format!("no snapshot of the virtual machine was taken: {what}");
    ApiError {
        causes: causes.take(CAUSES_TOLD).collect(),
        ..ApiError::new(ErrorKind::Failed, what)
    }
}

fn silent(wait: Duration) -> VmError {
    VmError::Silent {
        seconds: wait.as_secs(),
    }
}

/// An error if the monitor has nothing more to say.
fn over(said: &Said) -> Result<(), VmError> {
    if let Some((message, hint)) = &said.failed {
        return Err(VmError::Refused {
            message: message.clone(),
            hint: hint.clone(),
        });
    }
    if let Some(ended) = &said.ended {
        return Err(VmError::Ended { told: ended.told() });
    }
    if said.closed {
        let source = io::Error::from(io::ErrorKind::UnexpectedEof);
        return Err(VmError::Monitor { source });
    }
    Ok(())
}

fn say(mut socket: &UnixStream, message: &impl serde::Serialize) -> Result<(), VmError> {
    let failed = |source| VmError::Monitor { source };
    let mut line = serde_json::to_vec(message).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    socket.write_all(&line).map_err(failed)
}

/// The same with descriptors.
fn say_with(
    mut socket: &UnixStream,
    message: &impl serde::Serialize,
    files: &[&File],
) -> Result<(), VmError> {
    let failed = |source| VmError::Monitor { source };
    let mut line = serde_json::to_vec(message).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    let files: Vec<BorrowedFd<'_>> = files.iter().map(|file| file.as_fd()).collect();
    if !ancillary.push(SendAncillaryMessage::ScmRights(&files)) {
        return Err(failed(io::ErrorKind::InvalidInput.into()));
    }
    let parts = [IoSlice::new(&line)];
    let sent = sendmsg(socket, &parts, &mut ancillary, SendFlags::NOSIGNAL);
    let sent = sent.map_err(|error| failed(error.into()))?;
    socket.write_all(&line[sent..]).map_err(failed)
}

/// Keeps what a monitor says, until it says nothing any more.
fn listen(socket: UnixStream, shared: &Shared) {
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
