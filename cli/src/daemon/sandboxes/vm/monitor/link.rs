//! The socket to a monitor: what is said to it, and waiting for what it says.

use std::fs::File;
use std::io::{self, IoSlice, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_vmm::monitor::{Command, Event};
use parking_lot::Mutex;
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

use super::super::VmError;
use super::WAIT;
use super::said::{Said, Shared, listen};
use crate::output::printable;

/// How long a monitor may take to take what is said.
const SAY_WAIT: Duration = Duration::from_secs(2);

/// See the module.
pub(super) struct Link {
    socket: Mutex<UnixStream>,
    pub(super) shared: Arc<Shared>,
}

impl Link {
    /// Listens to a monitor from now on.
    pub(super) fn new(socket: UnixStream) -> io::Result<Self> {
        // A monitor that its guest has taken over may not read; nobody waits for it long.
        socket.set_write_timeout(Some(SAY_WAIT))?;
        let reader = socket.try_clone()?;
        let shared = Arc::new(Shared::default());
        let told = Arc::clone(&shared);
        std::thread::Builder::new()
            .name("floe-vm-said".to_owned())
            .spawn(move || listen(reader, &told))?;
        Ok(Self {
            socket: Mutex::new(socket),
            shared,
        })
    }

    /// Has a command carried out, and returns the answer.
    pub(super) fn command(&self, command: Command) -> Result<Event, VmError> {
        self.command_with(command, &[])
    }

    /// The same with descriptors.
    pub(super) fn command_with(&self, command: Command, files: &[&File]) -> Result<Event, VmError> {
        self.command_within(command, files, WAIT)
    }

    /// The same, and waits that long for the answer.
    pub(super) fn command_within(
        &self,
        command: Command,
        files: &[&File],
        wait: Duration,
    ) -> Result<Event, VmError> {
        let socket = self.socket.lock();
        self.shared.said.lock().answer = None;
        say_with(&socket, &command, files)?;
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
        let answer = self.wait(wait, |said| said.answer.take().filter(is_to_this))?;
        drop(socket);
        match answer {
            Event::Refused { message, .. } => Err(VmError::Refused {
                message: printable(&message),
                hint: None,
            }),
            answer => Ok(answer),
        }
    }

    pub(super) fn say(&self, message: &impl serde::Serialize) -> Result<(), VmError> {
        say_with(&self.socket.lock(), message, &[])
    }

    /// Says something with descriptors.
    pub(super) fn say_with(
        &self,
        message: &impl serde::Serialize,
        files: &[&File],
    ) -> Result<(), VmError> {
        say_with(&self.socket.lock(), message, files)
    }

    /// Waits until there is what is looked for.
    pub(super) fn wait<T>(
        &self,
        wait: Duration,
        look: impl FnMut(&mut Said) -> Option<T>,
    ) -> Result<T, VmError> {
        let found = self.wait_until(Instant::now() + wait, look)?;
        found.ok_or_else(|| silent(wait))
    }

    /// The same, not longer than until then.
    pub(super) fn wait_until<T>(
        &self,
        until: Instant,
        mut look: impl FnMut(&mut Said) -> Option<T>,
    ) -> Result<Option<T>, VmError> {
        let mut said = self.shared.said.lock();
        loop {
            if let Some(found) = look(&mut said) {
                return Ok(Some(found));
            }
            over(&said)?;
            let changed = &self.shared.changed;
            if changed.wait_until(&mut said, until).timed_out() {
                return Ok(look(&mut said));
            }
        }
    }

    /// An error if the monitor has nothing more to say.
    pub(super) fn refuse_if_over(&self) -> Result<(), VmError> {
        over(&self.shared.said.lock())
    }
}

/// It did not answer within the time.
pub(super) fn silent(wait: Duration) -> VmError {
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

/// A line, with descriptors if there are any.
fn say_with(
    mut socket: &UnixStream,
    message: &impl serde::Serialize,
    files: &[&File],
) -> Result<(), VmError> {
    let failed = |source| VmError::Monitor { source };
    let mut line = serde_json::to_vec(message).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    if files.is_empty() {
        return socket.write_all(&line).map_err(failed);
    }
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
