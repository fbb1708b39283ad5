//! One connection: a task that reads frames, a task that writes them, and what they share.
//!
//! Invariants:
//! * A channel is in the table from before its request is written until the agent's `end` of it was
//!   read, and no longer. A frame for any other channel breaks the protocol.
//! * What a channel's reader has not taken yet is at most the window that was granted to the agent:
//!   every frame is counted before it is queued, so the queues themselves need no bound.
//! * The queue of the writer is bounded; credit and cancels, which must not wait, are kept beside it, at
//!   most one of each for a channel.
//! * Once `ended` is set there are no channels any more, and no frame is written.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use floe_guest::frame::{self, HEADER, Header, Kind, Side};
use floe_guest::hello::Hello;
use floe_guest::window::{INPUT_WINDOW, Window, decode_credit};
use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};
use tokio::sync::{Notify, mpsc, watch};

use super::error::AgentError;

/// Most channels at once. The agent takes more.
pub(super) const CHANNELS: usize = 512;

/// Frames that may wait for the writer.
const QUEUE: usize = 16;

/// Bytes that the writer puts together for one call.
const BATCH: usize = 64 * 1024;

/// Something on a channel, not looked into yet.
#[derive(Debug)]
pub(super) enum Incoming {
    Data(Bytes),
    Stderr(Bytes),
    Event(Bytes),
    Eof,
    End(Bytes),
}

/// What the writer is to send.
#[derive(Debug)]
pub(super) enum Outgoing {
    /// The first frame of a channel. Not sent if nobody wants it any more.
    Open(u32, Vec<u8>),
    /// Any other.
    Frame(Vec<u8>),
}

/// How much may be sent on a channel, and who waits for more. One waiter at a time.
#[derive(Debug)]
pub(super) struct SendWindow {
    pub(super) window: Mutex<Window>,
    pub(super) more: Notify,
}

#[derive(Debug)]
struct Slot {
    to: mpsc::UnboundedSender<Incoming>,
    /// What the agent may still send.
    receive: Window,
    send: Arc<SendWindow>,
    /// Whether the writer has taken the request.
    opened: bool,
    /// Whether nobody waits for it any more.
    dropped: bool,
    /// Whether the agent has said that no more data comes.
    eof: bool,
}

#[derive(Debug, Default)]
struct State {
    channels: BTreeMap<u32, Slot>,
    last: u32,
    credits: BTreeMap<u32, u32>,
    cancels: BTreeSet<u32>,
    over: bool,
}

/// What the tasks and the channels share.
#[derive(Debug)]
pub(super) struct Connection {
    state: Mutex<State>,
    /// There are credits or cancels to send.
    urgent: Notify,
    queue: mpsc::Sender<Outgoing>,
    ended: watch::Sender<Option<AgentError>>,
}

/// Ends the connection when it is dropped.
#[derive(Debug)]
pub(super) struct LastHandle(Arc<Connection>);

impl LastHandle {
    pub(super) fn new(connection: &Arc<Connection>) -> Self {
        Self(Arc::clone(connection))
    }
}

impl Drop for LastHandle {
    fn drop(&mut self) {
        self.0.fail(AgentError::Gone {
            reason: "it was closed".to_owned(),
        });
    }
}

/// A channel as it was made: its number, and both directions.
#[derive(Debug)]
pub(super) struct Opened {
    pub(super) id: u32,
    pub(super) incoming: mpsc::UnboundedReceiver<Incoming>,
    pub(super) send: Arc<SendWindow>,
}

/// Shakes hands and starts the tasks.
pub(super) async fn open(
    stream: UnixStream,
    limit: Duration,
) -> Result<Arc<Connection>, AgentError> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::with_capacity(BATCH, read);
    super::within(limit, shake_hands(&mut read, &mut write)).await?;
    let (queue, waiting) = mpsc::channel(QUEUE);
    let connection = Arc::new(Connection {
        state: Mutex::default(),
        urgent: Notify::new(),
        queue,
        ended: watch::Sender::new(None),
    });
    tokio::spawn(read_frames(Arc::clone(&connection), read));
    tokio::spawn(write_frames(Arc::clone(&connection), write, waiting));
    Ok(connection)
}

async fn shake_hands(
    read: &mut BufReader<OwnedReadHalf>,
    write: &mut OwnedWriteHalf,
) -> Result<(), AgentError> {
    let mut bytes = Vec::new();
    let ours = Hello::ours();
    if !frame::encode(Kind::Hello, 0, &ours.encode(), &mut bytes) {
        return Err(protocol("no hello can be made"));
    }
    write.write_all(&bytes).await.map_err(gone)?;
    let (header, payload) = read_frame(read).await?;
    if header.kind != Kind::Hello {
        return Err(protocol("it does not begin with a hello"));
    }
    let theirs = Hello::decode(&payload).map_err(protocol)?;
    ours.accept(theirs).map_err(protocol)?;
    Ok(())
}

/// The next frame. Its payload is memory of its own, so that a small one keeps no large one alive.
async fn read_frame(read: &mut (impl AsyncRead + Unpin)) -> Result<(Header, Bytes), AgentError> {
    let mut head = [0; HEADER];
    read.read_exact(&mut head).await.map_err(gone)?;
    let header = Header::decode(head, Side::Agent).map_err(protocol)?;
    let mut payload = vec![0; header.len];
    read.read_exact(&mut payload).await.map_err(gone)?;
    Ok((header, payload.into()))
}

fn protocol(reason: impl ToString) -> AgentError {
    AgentError::Protocol {
        reason: reason.to_string(),
    }
}

#[allow(clippy::needless_pass_by_value)] // as `map_err` passes it
fn gone(error: std::io::Error) -> AgentError {
    let reason = if error.kind() == std::io::ErrorKind::UnexpectedEof {
        "the agent has ended".to_owned()
    } else {
        error.to_string()
    };
    AgentError::Gone { reason }
}

async fn read_frames(connection: Arc<Connection>, mut read: BufReader<OwnedReadHalf>) {
    loop {
        let frame = tokio::select! {
            biased;
            _ = connection.ended() => return,
            frame = read_frame(&mut read) => frame,
        };
        let taken = frame.and_then(|(header, payload)| connection.take(header, payload));
        if let Err(error) = taken {
            connection.fail(error);
            return;
        }
    }
}

async fn write_frames(
    connection: Arc<Connection>,
    mut write: OwnedWriteHalf,
    mut queue: mpsc::Receiver<Outgoing>,
) {
    let mut bytes = Vec::with_capacity(BATCH);
    loop {
        connection.take_urgent(&mut bytes);
        if bytes.is_empty() {
            let next = tokio::select! {
                biased;
                _ = connection.ended() => return,
                () = connection.urgent.notified() => continue,
                next = queue.recv() => next,
            };
            let Some(next) = next else { return };
            connection.put(next, &mut bytes);
        }
        while bytes.len() < BATCH
            && let Ok(next) = queue.try_recv()
        {
            connection.put(next, &mut bytes);
        }
        let written = tokio::select! {
            biased;
            _ = connection.ended() => return,
            written = write.write_all(&bytes) => written,
        };
        if let Err(error) = written {
            connection.fail(gone(error));
            return;
        }
        bytes.clear();
        // One large request is no reason to keep its memory.
        bytes.shrink_to(2 * BATCH);
    }
}

impl Connection {
    /// Makes a channel and queues its request; waits for room in the queue. `frame` encodes the
    /// request for the channel's number.
    pub(super) async fn open(
        &self,
        window: u32,
        frame: impl FnOnce(u32) -> Result<Vec<u8>, AgentError>,
    ) -> Result<Opened, AgentError> {
        let room = tokio::select! {
            biased;
            error = self.ended() => return Err(error),
            room = self.queue.reserve() => room.map_err(|_| self.why())?,
        };
        let (to, incoming) = mpsc::unbounded_channel();
        let send = Arc::new(SendWindow {
            window: Mutex::new(Window::new(INPUT_WINDOW)),
            more: Notify::new(),
        });
        let mut state = self.state.lock();
        if state.over {
            drop(state);
            return Err(self.why());
        }
        if state.channels.len() >= CHANNELS {
            return Err(AgentError::Exhausted {
                message: format!("{CHANNELS} requests to the sandbox are under way"),
            });
        }
        let mut id = state.last;
        loop {
            id = id.wrapping_add(1);
            if id != 0 && !state.channels.contains_key(&id) {
                break;
            }
        }
        let frame = frame(id)?;
        state.last = id;
        state.channels.insert(
            id,
            Slot {
                to,
                receive: Window::new(window),
                send: Arc::clone(&send),
                opened: false,
                dropped: false,
                eof: false,
            },
        );
        drop(state);
        room.send(Outgoing::Open(id, frame));
        Ok(Opened { id, incoming, send })
    }

    /// Queues a frame; waits for room.
    pub(super) async fn send(&self, frame: Vec<u8>) -> Result<(), AgentError> {
        tokio::select! {
            biased;
            error = self.ended() => Err(error),
            sent = self.queue.send(Outgoing::Frame(frame)) => sent.map_err(|_| self.why()),
        }
    }

    /// The reader of a channel has taken that much.
    pub(super) fn grant(&self, id: u32, bytes: u32) {
        let mut state = self.state.lock();
        let Some(slot) = state.channels.get_mut(&id) else {
            return;
        };
        // Cannot fail: no more is given back than was taken.
        if slot.receive.add(bytes).is_ok() {
            let credit = state.credits.entry(id).or_default();
            *credit = credit.saturating_add(bytes);
            drop(state);
            self.urgent.notify_one();
        }
    }

    /// Nobody waits for a channel any more.
    pub(super) fn cancel(&self, id: u32) {
        let mut state = self.state.lock();
        let Some(slot) = state.channels.get_mut(&id) else {
            return;
        };
        slot.dropped = true;
        if slot.opened {
            state.credits.remove(&id);
            state.cancels.insert(id);
            drop(state);
            self.urgent.notify_one();
        }
    }

    /// Ends the connection, for the first reason that is given.
    pub(super) fn fail(&self, error: AgentError) {
        let channels = {
            let mut state = self.state.lock();
            if state.over {
                return;
            }
            state.over = true;
            state.credits.clear();
            state.cancels.clear();
            std::mem::take(&mut state.channels)
        };
        self.ended.send_replace(Some(error));
        // Their readers wake up and ask why. After the reason is there.
        drop(channels);
    }

    /// Ends the connection because of what the agent sent. The error to return.
    pub(super) fn broken(&self, reason: String) -> AgentError {
        self.fail(AgentError::Protocol { reason });
        self.why()
    }

    /// Waits for the end, and says why.
    pub(super) async fn ended(&self) -> AgentError {
        let mut ended = self.ended.subscribe();
        match ended.wait_for(Option::is_some).await {
            Ok(error) => error.clone().unwrap_or_else(no_reason),
            Err(_) => no_reason(),
        }
    }

    /// Whether it has ended.
    pub(super) fn has_ended(&self) -> bool {
        self.ended.borrow().is_some()
    }

    /// Why it has ended.
    pub(super) fn why(&self) -> AgentError {
        self.ended.borrow().clone().unwrap_or_else(no_reason)
    }

    /// Appends credits and cancels.
    fn take_urgent(&self, bytes: &mut Vec<u8>) {
        let mut state = self.state.lock();
        for (id, credit) in std::mem::take(&mut state.credits) {
            put(Kind::Credit, id, &credit.to_le_bytes(), bytes);
        }
        for id in std::mem::take(&mut state.cancels) {
            put(Kind::Cancel, id, &[], bytes);
        }
    }

    /// Appends a frame from the queue.
    fn put(&self, next: Outgoing, bytes: &mut Vec<u8>) {
        match next {
            Outgoing::Frame(frame) => bytes.extend_from_slice(&frame),
            Outgoing::Open(id, frame) => {
                let mut state = self.state.lock();
                match state.channels.get_mut(&id) {
                    Some(slot) if !slot.dropped => {
                        slot.opened = true;
                        bytes.extend_from_slice(&frame);
                    }
                    _ => {
                        state.channels.remove(&id);
                    }
                }
            }
        }
    }

    /// Gives a frame to whom it is for.
    fn take(&self, header: Header, payload: Bytes) -> Result<(), AgentError> {
        let id = header.channel;
        let mut state = self.state.lock();
        let Some(slot) = state.channels.get_mut(&id).filter(|slot| slot.opened) else {
            return Err(protocol(format!(
                "a frame of kind {:?} on channel {id}, which is not open",
                header.kind
            )));
        };
        if header.kind.counted() {
            slot.receive.take(payload.len()).map_err(protocol)?;
        }
        let incoming = match header.kind {
            Kind::Data => Incoming::Data(payload),
            Kind::Stderr => Incoming::Stderr(payload),
            Kind::Event => Incoming::Event(payload),
            Kind::Eof if !slot.eof => {
                slot.eof = true;
                Incoming::Eof
            }
            Kind::Credit => {
                let credit = decode_credit(&payload).unwrap_or(0);
                slot.send.window.lock().add(credit).map_err(protocol)?;
                slot.send.more.notify_one();
                return Ok(());
            }
            Kind::End => {
                let slot = state.channels.remove(&id);
                state.credits.remove(&id);
                state.cancels.remove(&id);
                drop(state);
                if let Some(slot) = slot {
                    deliver(&slot.to, Incoming::End(payload));
                }
                return Ok(());
            }
            kind @ (Kind::Eof | Kind::Hello | Kind::Open | Kind::Cancel) => {
                return Err(protocol(format!(
                    "a frame of kind {kind:?} where none may be"
                )));
            }
        };
        deliver(&slot.to, incoming);
        Ok(())
    }
}

/// Queues something for a reader; one that is gone does not want it.
fn deliver(to: &mpsc::UnboundedSender<Incoming>, incoming: Incoming) {
    if to.send(incoming).is_err() {
        tracing::trace!("a frame for a channel that nobody reads any more");
    }
}

fn put(kind: Kind, id: u32, payload: &[u8], bytes: &mut Vec<u8>) {
    if !frame::encode(kind, id, payload, bytes) {
        tracing::error!(?kind, "a frame of the wrong length was not sent");
    }
}

fn no_reason() -> AgentError {
    AgentError::Gone {
        reason: "it was closed".to_owned(),
    }
}
