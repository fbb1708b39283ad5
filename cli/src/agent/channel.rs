//! A channel: one request and what comes of it.
//!
//! Dropping one before its end cancels it. What was taken is granted again once it is half of the
//! window, so that a reader that keeps up is never waited for.

use std::sync::Arc;

use bytes::Bytes;
use floe_guest::frame::{self, Kind, MAX_DATA, MAX_OPEN};
use floe_guest::message::{End, Event, Outcome, Request, encode_open};
use floe_guest::window::cost;
use tokio::sync::mpsc;

use super::connection::{Connection, Incoming, LastHandle, SendWindow};
use super::error::AgentError;

/// One step of a channel.
#[derive(Debug)]
pub(super) enum Step {
    Data(Bytes),
    Stderr(Bytes),
    Event(Event),
    /// No more data, though the channel is not at its end.
    Eof,
    End(Outcome),
}

/// The receiving end of a channel, and who holds it open.
#[derive(Debug)]
pub(super) struct Channel {
    connection: Arc<Connection>,
    _last: Arc<LastHandle>,
    id: u32,
    incoming: mpsc::UnboundedReceiver<Incoming>,
    send: Arc<SendWindow>,
    window: u32,
    /// Taken and not granted again yet.
    taken: u32,
    over: bool,
}

/// The sending end of a channel.
#[derive(Clone, Debug)]
pub(super) struct Sender {
    connection: Arc<Connection>,
    id: u32,
    send: Arc<SendWindow>,
}

impl Channel {
    pub(super) async fn open(
        connection: &Arc<Connection>,
        last: &Arc<LastHandle>,
        window: u32,
        request: &Request,
    ) -> Result<Self, AgentError> {
        let payload = encode_open(window, request).ok_or_else(|| AgentError::InvalidArgument {
            message: format!("the request is longer than {MAX_OPEN} bytes"),
        })?;
        let opened = connection
            .open(window, |id| encode(Kind::Open, id, &payload))
            .await?;
        Ok(Self {
            connection: Arc::clone(connection),
            _last: Arc::clone(last),
            id: opened.id,
            incoming: opened.incoming,
            send: opened.send,
            window,
            taken: 0,
            over: false,
        })
    }

    pub(super) fn sender(&self) -> Sender {
        Sender {
            connection: Arc::clone(&self.connection),
            id: self.id,
            send: Arc::clone(&self.send),
        }
    }

    /// The next step. Not to be asked again after an end or an error. May be dropped while it waits.
    pub(super) async fn next(&mut self) -> Result<Step, AgentError> {
        let Some(incoming) = self.incoming.recv().await else {
            self.over = true;
            return Err(self.connection.why());
        };
        match incoming {
            Incoming::Data(bytes) => {
                self.took(bytes.len());
                Ok(Step::Data(bytes))
            }
            Incoming::Stderr(bytes) => {
                self.took(bytes.len());
                Ok(Step::Stderr(bytes))
            }
            Incoming::Event(bytes) => {
                self.took(bytes.len());
                match serde_json::from_slice(&bytes) {
                    Ok(event) => Ok(Step::Event(event)),
                    Err(error) => Err(self.broken(format!("an event that is none: {error}"))),
                }
            }
            Incoming::Eof => Ok(Step::Eof),
            Incoming::End(bytes) => {
                self.over = true;
                match serde_json::from_slice(&bytes) {
                    Ok(End::Ok(outcome)) => Ok(Step::End(outcome)),
                    Ok(End::Failed(failure)) => Err(failure.into()),
                    Err(error) => Err(self.broken(format!("an end that is none: {error}"))),
                }
            }
        }
    }

    /// The next step, where that must be an event.
    pub(super) async fn event(&mut self) -> Result<Event, AgentError> {
        match self.next().await? {
            Step::Event(event) => Ok(event),
            other => Err(self.unexpected(&other)),
        }
    }

    /// The end, where nothing else may come.
    pub(super) async fn outcome(&mut self) -> Result<Outcome, AgentError> {
        match self.next().await? {
            Step::End(outcome) => Ok(outcome),
            other => Err(self.unexpected(&other)),
        }
    }

    /// Ends the connection: this step must not come here.
    pub(super) fn unexpected(&self, step: &Step) -> AgentError {
        let what = match step {
            Step::Data(_) => "data",
            Step::Stderr(_) => "stderr",
            Step::Event(_) => "an event of another kind",
            Step::Eof => "eof",
            Step::End(outcome) => word(outcome),
        };
        self.broken(format!("an unexpected answer: {what}"))
    }

    fn broken(&self, reason: String) -> AgentError {
        self.connection.broken(reason)
    }

    fn took(&mut self, payload: usize) {
        self.taken = self.taken.saturating_add(cost(payload));
        if self.taken >= self.window / 2 {
            self.connection.grant(self.id, self.taken);
            self.taken = 0;
        }
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        if !self.over {
            self.connection.cancel(self.id);
        }
    }
}

impl Sender {
    /// Sends all of it; waits for room.
    pub(super) async fn data(&self, mut bytes: Bytes) -> Result<(), AgentError> {
        while !bytes.is_empty() {
            let room = self.room(bytes.len().min(MAX_DATA)).await?;
            let part = bytes.split_to(room);
            let frame = encode(Kind::Data, self.id, &part)?;
            self.connection.send(frame).await?;
        }
        Ok(())
    }

    /// Says that this was all.
    pub(super) async fn eof(&self) -> Result<(), AgentError> {
        let frame = encode(Kind::Eof, self.id, &[])?;
        self.connection.send(frame).await
    }

    /// Takes room for up to that many bytes out of the window; at least one.
    async fn room(&self, wanted: usize) -> Result<usize, AgentError> {
        loop {
            {
                let mut window = self.send.window.lock();
                let room = wanted.min(window.payload());
                if room > 0 && window.take(room).is_ok() {
                    return Ok(room);
                }
            }
            tokio::select! {
                biased;
                error = self.connection.ended() => return Err(error),
                () = self.send.more.notified() => {}
            }
        }
    }
}

fn encode(kind: Kind, id: u32, payload: &[u8]) -> Result<Vec<u8>, AgentError> {
    let mut bytes = Vec::new();
    if frame::encode(kind, id, payload, &mut bytes) {
        Ok(bytes)
    } else {
        Err(AgentError::InvalidArgument {
            message: format!("{} bytes are no frame of kind {kind:?}", payload.len()),
        })
    }
}

/// What kind of outcome it is.
pub(super) fn word(outcome: &Outcome) -> &'static str {
    match outcome {
        Outcome::Done => "done",
        Outcome::Exit(_) => "exit",
        Outcome::Entry(_) => "entry",
        Outcome::Metrics(_) => "metrics",
    }
}
