//! The connection to the daemon.
//!
//! Invariants: what waits to be sent is bounded. Whoever has much to send asks [`Wire::room`] first;
//! answers to requests are not held back, but no more requests are read while too much waits. Without a
//! connection nothing waits, and nothing of one is left for the next.

use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use floe_guest::frame::{self, Decoder, Frame, FrameError, Kind, Side};
use floe_guest::message::{End, Event};
use rustix::io::Errno;
use thiserror::Error;

use super::poll::{Poller, Source, Token};

/// Waiting bytes beyond which no more data is put behind them.
const DATA: usize = 256 * 1024;

/// Waiting bytes beyond which nothing more is read.
const ALL: usize = 4 * 1024 * 1024;

/// Bytes read at once.
const READ: usize = 64 * 1024;

/// Why the connection is over.
#[derive(Debug, Error)]
pub enum Over {
    /// The daemon has ended it.
    #[error("the daemon has closed the connection")]
    Closed,
    /// Neither side has ended it: this machine goes on from a snapshot of its memory, and the host has no
    /// such connection.
    #[error("the connection to the daemon was reset")]
    Reset,
    /// It does not work any more.
    #[error("the connection to the daemon failed: {0}")]
    Failed(io::Error),
    /// There is none, and nobody makes one.
    #[error("there is no connection to the daemon any more, and it does not call")]
    NoCall,
    /// The daemon sent what is no frame.
    #[error("the daemon broke the protocol: {0}")]
    Frame(#[from] FrameError),
    /// The daemon sent what may not come here.
    #[error("the daemon broke the protocol: {0}")]
    Broken(String),
}

/// What an error of the stream says about it.
///
/// A vsock stream that the transport has reset has ECONNRESET as its error, which epoll reports; reading
/// and writing give ENOTCONN, or ECONNRESET to who was in the middle of it. An orderly end, and that of a
/// host's program that has died, are the end of the data and EPIPE. Source: the kernel's
/// `virtio_vsock_reset_sock` and `vsock_connectible_recvmsg`.
fn over(error: Errno) -> Over {
    match error {
        Errno::CONNRESET | Errno::NOTCONN => Over::Reset,
        Errno::PIPE => Over::Closed,
        error => Over::Failed(error.into()),
    }
}

/// The connection, or that there is none.
#[derive(Debug)]
pub struct Wire {
    source: Option<Source>,
    decoder: Decoder,
    out: Vec<u8>,
    /// Bytes at the front of `out` that are sent.
    sent: usize,
}

impl Wire {
    /// Over a connected stream.
    pub fn new(poller: &Rc<Poller>, fd: OwnedFd) -> io::Result<Self> {
        rustix::io::ioctl_fionbio(&fd, true)?;
        let mut source = Source::new(poller, fd, Token::Wire);
        source.want(true, false)?;
        Ok(Self {
            source: Some(source),
            ..Self::none()
        })
    }

    /// No connection: nothing comes, and what is put on it is gone.
    pub fn none() -> Self {
        Self {
            source: None,
            decoder: Decoder::new(Side::Daemon),
            out: Vec::new(),
            sent: 0,
        }
    }

    /// Reads what is there, once.
    pub fn read(&mut self) -> Result<Vec<Frame>, Over> {
        let mut frames = Vec::new();
        let waiting = self.waiting();
        let Some(source) = self.source.as_ref().filter(|_| waiting <= ALL) else {
            return Ok(frames);
        };
        let mut buffer = [0; READ];
        let len = match rustix::io::read(source, &mut buffer) {
            Ok(0) => return Err(Over::Closed),
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(frames),
            Err(error) => return Err(over(error)),
        };
        let mut rest = buffer.get(..len).unwrap_or_default();
        while let Some(frame) = self.decoder.next(&mut rest)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Sends what waits, as far as that goes, and says what to wait for.
    pub fn flush(&mut self) -> Result<(), Over> {
        let Some(source) = &mut self.source else {
            return Ok(());
        };
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match rustix::io::write(&*source, rest) {
                Ok(len) => self.sent += len,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(over(error)),
            }
        }
        if self.sent >= self.out.len() {
            self.out.clear();
            self.out.shrink_to(2 * DATA);
            self.sent = 0;
        } else if self.sent > DATA {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
        let waiting = self.out.len().saturating_sub(self.sent);
        source
            .want(waiting <= ALL, waiting > 0)
            .map_err(Over::Failed)
    }

    /// Whether everything is sent.
    pub fn is_empty(&self) -> bool {
        self.waiting() == 0
    }

    fn waiting(&self) -> usize {
        self.out.len().saturating_sub(self.sent)
    }

    /// Whether data may be put behind what waits.
    pub fn room(&self) -> bool {
        self.waiting() < DATA
    }

    /// Puts a frame behind what waits.
    pub fn put(&mut self, kind: Kind, channel: u32, payload: &[u8]) {
        if self.source.is_none() {
            return;
        }
        if !frame::encode(kind, channel, payload, &mut self.out) {
            super::complain(
                "send a frame",
                &format!("{kind:?} of {} bytes", payload.len()),
            );
        }
    }

    /// Puts the last frame of a channel behind what waits.
    pub fn end(&mut self, channel: u32, end: &End) {
        match serde_json::to_vec(end) {
            Ok(json) if json.len() <= frame::MAX_END => self.put(Kind::End, channel, &json),
            // Cannot be: texts are cut when failures are made.
            _ => self.put(
                Kind::End,
                channel,
                br#"{"failed":{"kind":"other","message":"the answer is too long"}}"#,
            ),
        }
    }

    /// Grants the daemon room on a channel.
    pub fn credit(&mut self, channel: u32, bytes: u32) {
        self.put(Kind::Credit, channel, &bytes.to_le_bytes());
    }
}

/// The payload of an event, if it is not too long.
pub fn event(event: &Event) -> Option<Vec<u8>> {
    let json = serde_json::to_vec(event).ok()?;
    (json.len() <= frame::MAX_EVENT).then_some(json)
}

#[cfg(test)]
mod tests {
    use rustix::net::{AddressFamily, SocketType, socket};

    use super::*;

    /// What reading and writing a vsock stream give once the transport has reset it, and what a stream
    /// does that was never connected.
    #[test]
    fn a_stream_that_is_not_connected_any_more_was_reset() {
        let poller = Poller::new().unwrap();
        let wire = |family| {
            let fd = socket(family, SocketType::STREAM, None).unwrap();
            Wire::new(&poller, fd).unwrap()
        };
        let read = wire(AddressFamily::INET).read();
        assert!(matches!(read, Err(Over::Reset)), "{read:?}");
        let mut wire = wire(AddressFamily::UNIX);
        wire.put(Kind::Eof, 1, b"");
        let written = wire.flush();
        assert!(matches!(written, Err(Over::Reset)), "{written:?}");
    }

    #[test]
    fn an_end_in_order_is_no_reset() {
        let poller = Poller::new().unwrap();
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut wire = Wire::new(&poller, ours.into()).unwrap();
        drop(theirs);
        assert!(matches!(wire.read(), Err(Over::Closed)));
        wire.put(Kind::Eof, 1, b"");
        assert!(matches!(wire.flush(), Err(Over::Closed)));
    }

    #[test]
    fn without_a_connection_nothing_comes_and_nothing_waits() {
        let mut wire = Wire::none();
        wire.put(Kind::Eof, 1, b"");
        assert!(wire.is_empty() && wire.room());
        wire.flush().unwrap();
        assert!(wire.read().unwrap().is_empty());
    }
}
