//! The socket to the server: frames out and in, without ever blocking.
//!
//! Invariants: at most one frame that did not fit into the socket (plus a reset) waits in memory;
//! while it does, [`Link::is_full`] and no request is taken from a queue. What was read and is not
//! a whole frame yet is at most one frame.

use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;

use super::frame::{HEADER_LEN, Header, Kind};
use crate::devices::events::{EventSet, Registrar};

/// The token of the socket.
pub(super) const TOKEN: u32 = 0;
/// Bytes read at once.
const READ_AT_ONCE: usize = 256 * 1024;

/// Why the link is of no use any more.
#[derive(Debug, thiserror::Error)]
pub(super) enum LinkError {
    #[error("the server closed its socket")]
    Closed,
    #[error("the server's socket failed")]
    Socket(#[from] io::Error),
    #[error("the server sent {0}")]
    Frame(#[from] super::frame::FrameError),
    #[error("the server sent {0}")]
    Protocol(&'static str),
}

#[derive(Debug)]
pub(super) struct Link {
    socket: UnixStream,
    registrar: Registrar,
    // What waits for room; the first `sent` bytes of it are sent. Empty when all are.
    unsent: Vec<u8>,
    sent: usize,
    // The first `filled` bytes are received and not yet taken.
    buffer: Vec<u8>,
    filled: usize,
    waits_for_room: bool,
}

impl Link {
    pub(super) fn new(socket: UnixStream, registrar: Registrar) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        registrar.add(&socket, TOKEN, EventSet::IN)?;
        Ok(Self {
            socket,
            registrar,
            unsent: Vec::new(),
            sent: 0,
            buffer: vec![0; READ_AT_ONCE],
            filled: 0,
            waits_for_room: false,
        })
    }

    /// Whether nothing more can be sent now.
    pub(super) fn is_full(&self) -> bool {
        !self.unsent.is_empty()
    }

    /// Sends `frame`, or keeps what does not fit until there is room. Leaves anything in `frame`.
    pub(super) fn send(&mut self, frame: &mut Vec<u8>) -> Result<(), LinkError> {
        if self.is_full() {
            self.unsent.extend_from_slice(frame);
            return Ok(());
        }
        let sent = write(&self.socket, frame)?;
        if sent < frame.len() {
            std::mem::swap(&mut self.unsent, frame);
            self.sent = sent;
        }
        self.wait_for_room(self.is_full())
    }

    /// There is room: sends what waits.
    pub(super) fn flush(&mut self) -> Result<(), LinkError> {
        self.sent += write(&self.socket, &self.unsent[self.sent..])?;
        if self.sent == self.unsent.len() {
            self.unsent = Vec::new();
            self.sent = 0;
        }
        self.wait_for_room(self.is_full())
    }

    fn wait_for_room(&mut self, wait: bool) -> Result<(), LinkError> {
        if wait == self.waits_for_room {
            return Ok(());
        }
        let room = if wait {
            EventSet::OUT
        } else {
            EventSet::empty()
        };
        self.registrar
            .modify(&self.socket, TOKEN, EventSet::IN | room)?;
        self.waits_for_room = wait;
        Ok(())
    }

    /// Reads once what the server sent and hands each whole reply to `take` as (tag, body).
    pub(super) fn receive(
        &mut self,
        mut take: impl FnMut(u64, &[u8]) -> Result<(), LinkError>,
    ) -> Result<(), LinkError> {
        match self.socket.read(&mut self.buffer[self.filled..]) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(len) => self.filled += len,
            Err(error) => {
                return match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(()),
                    _ => Err(error.into()),
                };
            }
        }
        let mut rest = &self.buffer[..self.filled];
        let mut wanted = 0;
        while let Some((head, tail)) = rest.split_first_chunk::<HEADER_LEN>() {
            let header = Header::decode(head)?;
            let len = usize::try_from(header.body_len).unwrap_or(usize::MAX);
            let Some((body, after)) = tail.split_at_checked(len) else {
                wanted = HEADER_LEN + len;
                break;
            };
            if header.kind != Kind::Reply {
                return Err(LinkError::Protocol("something that is no reply"));
            }
            take(header.tag, body)?;
            rest = after;
        }
        let left = rest.len();
        if left < self.filled {
            self.buffer.copy_within(self.filled - left..self.filled, 0);
            self.filled = left;
        }
        // Room for a whole frame, of which decoding has checked the length.
        if wanted > self.buffer.len() {
            self.buffer.resize(wanted, 0);
        }
        Ok(())
    }
}

/// Sends as much of `bytes` as the socket takes; how much that is.
fn write(mut socket: &UnixStream, bytes: &[u8]) -> Result<usize, LinkError> {
    let mut sent = 0;
    while sent < bytes.len() {
        match socket.write(&bytes[sent..]) {
            Ok(0) => return Err(LinkError::Closed),
            Ok(len) => sent += len,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(sent)
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Err(error) = self.registrar.remove(&self.socket) {
            tracing::debug!(%error, "the server's socket was not watched");
        }
    }
}
