//! The connection while the command runs: what it prints comes out here, whoever else has something to
//! say to it says it through [`Steering`].

use std::io::{self, BufRead};
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use parking_lot::Mutex;

use super::input::Window;
use super::sink::{Sink, Stream};
use crate::error::{ApiError, ErrorKind};
use crate::wire::exec::{ExecEnd, ExecInput, ExecOutput, Payload};
use crate::wire::line::{self, REPLY_BYTES_MAX};

/// The sending half, for whoever has something to send.
pub(super) struct Steering {
    stream: Mutex<UnixStream>,
}

impl Steering {
    /// A sending half of a connection.
    ///
    /// # Errors
    /// When there are no descriptors left.
    pub(super) fn new(stream: &UnixStream) -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            stream: Mutex::new(stream.try_clone()?),
        }))
    }

    /// Sends a line.
    ///
    /// # Errors
    /// When the connection is gone.
    pub(super) fn send(&self, input: &ExecInput) -> io::Result<()> {
        line::write(&mut *self.stream.lock(), input)
    }
}

/// What became of a command.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ended {
    /// How it ended.
    pub(super) end: ExecEnd,
    /// Whether it ran at all.
    pub(super) started: bool,
}

/// Takes everything the daemon sends, up to the end of the command.
///
/// # Errors
/// When the connection is gone before, or output cannot be written.
pub(super) fn follow(
    connection: &mut impl BufRead,
    sink: &mut dyn Sink,
    window: &Window,
) -> Result<Ended, ApiError> {
    let mut buffer = Vec::new();
    let mut started = false;
    loop {
        let output = line::read(connection, &mut buffer, REPLY_BYTES_MAX).map_err(|error| {
            let what = "the daemon is gone, and with it the command";
            ApiError::new(ErrorKind::DaemonUnreachable, what)
                .caused_by(&error)
                .hint("see what became of the sandbox with `floe sandbox list`")
        })?;
        match output {
            ExecOutput::Started { .. } => started = true,
            ExecOutput::Stdout(bytes) | ExecOutput::Terminal(bytes) => {
                sink.printed(Stream::Out, &decoded(bytes)?)?;
            }
            ExecOutput::Stderr(bytes) => sink.printed(Stream::Err, &decoded(bytes)?)?,
            ExecOutput::Lost { bytes } => sink.lost(bytes)?,
            ExecOutput::Taken { bytes } => window.grow(bytes),
            ExecOutput::End(end) => {
                sink.ended(&end)?;
                return Ok(Ended { end, started });
            }
        }
    }
}

fn decoded(payload: Payload) -> Result<Vec<u8>, ApiError> {
    payload
        .into_bytes()
        .map_err(|error| ApiError::from_error(ErrorKind::Internal, &error))
}
