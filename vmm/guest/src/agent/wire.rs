//! The connection to the daemon.
//!
//! Invariant: what waits to be sent is bounded. Whoever has much to send asks [`Wire::room`] first;
//! answers to requests are not held back, but no more requests are read while too much waits.

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
    /// It does not work any more.
    #[error("the connection to the daemon failed: {0}")]
    Failed(io::Error),
    /// The daemon sent what is no frame.
    #[error("the daemon broke the protocol: {0}")]
    Frame(#[from] FrameError),
    /// The daemon sent what may not come here.
    #[error("the daemon broke the protocol: {0}")]
    Broken(String),
}

/// The connection.
#[derive(Debug)]
pub struct Wire {
    source: Source,
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
            source,
            decoder: Decoder::new(Side::Daemon),
            out: Vec::new(),
            sent: 0,
        })
    }

    /// Reads what is there, once.
    pub fn read(&mut self) -> Result<Vec<Frame>, Over> {
        let mut frames = Vec::new();
        if self.waiting() > ALL {
            return Ok(frames);
        }
        let mut buffer = [0; READ];
        let len = match rustix::io::read(&self.source, &mut buffer) {
            Ok(0) => return Err(Over::Closed),
            Ok(len) => len,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(frames),
            Err(Errno::CONNRESET) => return Err(Over::Closed),
            Err(error) => return Err(Over::Failed(error.into())),
        };
        let mut rest = buffer.get(..len).unwrap_or_default();
        while let Some(frame) = self.decoder.next(&mut rest)? {
            frames.push(frame);
        }
        Ok(frames)
    }

    /// Sends what waits, as far as that goes, and says what to wait for.
    pub fn flush(&mut self) -> Result<(), Over> {
        while let Some(rest) = self.out.get(self.sent..).filter(|rest| !rest.is_empty()) {
            match rustix::io::write(&self.source, rest) {
                Ok(len) => self.sent += len,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(Errno::PIPE | Errno::CONNRESET) => return Err(Over::Closed),
                Err(error) => return Err(Over::Failed(error.into())),
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
        let waiting = self.waiting();
        self.source
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
