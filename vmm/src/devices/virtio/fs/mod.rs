//! The file system device (virtio-fs; specification, section 5.11), whose server is elsewhere.
//!
//! The device understands next to nothing of FUSE: it takes each message from its queue, sends it to
//! the server in a [`frame`], and puts the server's reply into the chain that the message came in.
//! So a monitor that its guest has taken over holds no part of any store, only this socket.
//!
//! Invariants:
//! - a chain is answered once: by the server's reply, or with an error when the server is gone;
//! - a reply is written only into the chain of its own request, checked when it was taken, and only
//!   while the driver that offered it has not been reset;
//! - requests that wait for a reply are at most [`IN_FLIGHT_MAX`]; more stay in the queue.

pub mod frame;
mod link;
mod state;

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::unix::net::UnixStream;

pub use state::{FsState, InFlight};

use super::chain::Chain;
use super::{Fault, Queues, VirtioDevice};
use crate::devices::events::{EventSet, Registrar};
use crate::machine::memory::GuestMemory;
use frame::{HEADER_LEN, Header, IN_HEADER_LEN, Kind, OUT_HEADER_LEN, REPLY_MAX, REQUEST_MAX};
use link::{Link, LinkError};

const ID: u32 = 26;
/// One queue for messages that must not wait (FORGET), one for requests.
const QUEUES: &[u16] = &[64, 512];
/// Most requests that wait for a reply: as many as the queues hold, which a driver that keeps to
/// the specification never exceeds.
pub const IN_FLIGHT_MAX: usize = 64 + 512;
const TAG_LEN: usize = 36;
const OUT_HEADER_LEN_U32: u32 = 16;
/// Most bytes that the buffer for frames keeps between two requests.
const FRAME_KEPT: usize = 256 << 10;

/// The name that a guest mounts the file system by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FsTag([u8; TAG_LEN]);

/// The name is empty, too long, or has a NUL.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("a file system's tag has 1 to {TAG_LEN} bytes without NUL, unlike {tag:?}")]
pub struct TagError {
    tag: String,
}

impl FsTag {
    /// Checks a tag.
    ///
    /// # Errors
    /// [`TagError`].
    pub fn new(tag: &str) -> Result<Self, TagError> {
        if tag.is_empty() || tag.len() > TAG_LEN || tag.contains('\0') {
            return Err(TagError { tag: tag.into() });
        }
        let mut bytes = [0; TAG_LEN];
        bytes[..tag.len()].copy_from_slice(tag.as_bytes());
        Ok(Self(bytes))
    }
}

/// A chain that waits for the server's reply.
#[derive(Debug)]
struct Pending {
    queue: usize,
    /// The `unique` of the request, which the reply must have too.
    unique: u64,
    chain: Chain,
}

/// The device.
#[derive(Debug)]
pub struct Fs {
    tag: FsTag,
    link: Option<Link>,
    next_tag: u64,
    // The first tag since the last reset.
    first_tag: u64,
    // The server may know something of the driver: a reset has to be told.
    known: bool,
    pending: BTreeMap<u64, Pending>,
    // A chain was left in its queue for want of room.
    held: bool,
    // Requests whose outcome nobody knows: the machine was saved while they were under way.
    lost: Vec<Pending>,
    // For the frame that is being sent; empty in between.
    frame: Vec<u8>,
}

impl Fs {
    /// A device whose server is at the other end of `server`.
    ///
    /// # Errors
    /// The system's, when the socket cannot be watched.
    pub fn new(tag: FsTag, server: UnixStream, registrar: Registrar) -> std::io::Result<Self> {
        Ok(Self {
            tag,
            link: Some(Link::new(server, registrar)?),
            next_tag: 1,
            first_tag: 1,
            known: false,
            pending: BTreeMap::new(),
            held: false,
            lost: Vec::new(),
            frame: Vec::new(),
        })
    }

    /// Requests that wait for the server.
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.pending.len()
    }

    /// Frames that were sent to the server, by this device or the one that it goes on from.
    #[must_use]
    pub fn requests(&self) -> u64 {
        self.next_tag - 1
    }

    /// Whether everything that was taken from the queues is with the server, and answered.
    #[must_use]
    pub fn is_quiet(&self) -> bool {
        let sent = self.link.as_ref().is_none_or(|link| !link.is_full());
        self.pending.is_empty() && sent && !self.held
    }

    /// Takes chains from the queue `index` as long as the server can be sent more.
    fn take(&mut self, index: usize, queues: &mut Queues<'_>) -> Result<(), Fault> {
        queues.serve_later(index, |queues, chain| {
            let full = self.link.as_ref().is_some_and(Link::is_full);
            if full || self.pending.len() >= IN_FLIGHT_MAX {
                self.held = true;
                return Ok(false);
            }
            self.request(index, chain, queues)?;
            Ok(true)
        })
    }

    /// Takes from every queue, if one was left with something in it.
    fn take_held(&mut self, queues: &mut Queues<'_>) -> Result<(), Fault> {
        if !std::mem::take(&mut self.held) {
            return Ok(());
        }
        (0..QUEUES.len()).try_for_each(|queue| self.take(queue, queues))
    }

    fn request(
        &mut self,
        queue: usize,
        chain: Chain,
        queues: &mut Queues<'_>,
    ) -> Result<(), Fault> {
        let len = chain.readable_len();
        if !(IN_HEADER_LEN..=REQUEST_MAX).contains(&len) {
            return Err(Fault::Chain {
                queue,
                what: "has the length of no FUSE request",
            });
        }
        let reply_max = chain.writable_len().min(REPLY_MAX);
        if (1..OUT_HEADER_LEN_U32).contains(&reply_max) {
            return Err(Fault::Chain {
                queue,
                what: "has no room for a FUSE reply",
            });
        }
        let header = Header {
            kind: Kind::Request,
            body_len: len,
            queue: u16::try_from(queue).unwrap_or(0),
            tag: self.next_tag,
            reply_max,
        };
        self.frame.clear();
        self.frame
            .reserve(HEADER_LEN + usize::try_from(len).unwrap_or(0));
        self.frame.extend(header.encode());
        chain
            .append_to(queues.memory(), 0, len, &mut self.frame)
            .map_err(|source| Fault::Memory { queue, source })?;
        let unique = unique_of(&self.frame[HEADER_LEN..]);
        self.next_tag += 1;
        self.known = true;
        let pending = Pending {
            queue,
            unique,
            chain,
        };
        if self.link.is_none() {
            return refuse(&pending, libc::ENOTCONN, queues);
        }
        if reply_max == 0 {
            queues.put_used(queue, pending.chain.head(), 0)?;
            queues.tell(queue)?;
        } else {
            self.pending.insert(header.tag, pending);
        }
        if let Err(error) = self.send() {
            self.lose(&error, queues)?;
        }
        Ok(())
    }

    /// Sends `frame`, if there is a server.
    fn send(&mut self) -> Result<(), LinkError> {
        let result = match &mut self.link {
            None => Ok(()),
            Some(link) => link.send(&mut self.frame),
        };
        self.frame.clear();
        self.frame.shrink_to(FRAME_KEPT);
        result
    }

    /// The server is of no use: every request fails from now on, those under way included.
    fn lose(&mut self, error: &LinkError, queues: &mut Queues<'_>) -> Result<(), Fault> {
        self.disconnect(error);
        for pending in std::mem::take(&mut self.pending).into_values() {
            refuse(&pending, libc::ENOTCONN, queues)?;
        }
        Ok(())
    }

    fn disconnect(&mut self, error: &LinkError) {
        tracing::warn!(%error, "a file system lost its server");
        self.link = None;
    }

    fn receive(&mut self, queues: &mut Queues<'_>) -> Result<(), Fault> {
        let Some(link) = &mut self.link else {
            return Ok(());
        };
        let mut told = [false; QUEUES.len()];
        let mut fault = None;
        let result = link.receive(|tag, body| {
            let Entry::Occupied(entry) = self.pending.entry(tag) else {
                // An answer to the driver before the last reset.
                return if tag < self.first_tag {
                    Ok(())
                } else {
                    Err(LinkError::Protocol("a reply to no request"))
                };
            };
            // One that is wrong leaves its request to be refused with the others.
            check_reply(entry.get(), body)?;
            let pending = entry.remove();
            told[pending.queue.min(QUEUES.len() - 1)] = true;
            if let Err(error) = answer(&pending, body, queues) {
                fault.get_or_insert(error);
            }
            Ok(())
        });
        for (queue, _) in told.iter().enumerate().filter(|(_, told)| **told) {
            queues.tell(queue)?;
        }
        if let Some(fault) = fault {
            return Err(fault);
        }
        if let Err(error) = result {
            self.lose(&error, queues)?;
        }
        Ok(())
    }

    fn refuse_lost(&mut self, queues: &mut Queues<'_>) -> Result<(), Fault> {
        std::mem::take(&mut self.lost)
            .iter()
            .try_for_each(|pending| refuse(pending, libc::EIO, queues))
    }
}

/// The `unique` of a request or a reply, at the same place in both headers.
fn unique_of(message: &[u8]) -> u64 {
    message
        .get(8..16)
        .and_then(|bytes| bytes.try_into().ok())
        .map_or(0, u64::from_le_bytes)
}

/// A reply is a FUSE message of its own length, to this request, that fits.
fn check_reply(pending: &Pending, body: &[u8]) -> Result<(), LinkError> {
    let stated = body
        .first_chunk::<4>()
        .map(|bytes| u32::from_le_bytes(*bytes));
    let len = u32::try_from(body.len()).unwrap_or(u32::MAX);
    if body.len() < OUT_HEADER_LEN || stated != Some(len) {
        return Err(LinkError::Protocol("a reply that is no FUSE message"));
    }
    if unique_of(body) != pending.unique {
        return Err(LinkError::Protocol("a reply to another request"));
    }
    if len > pending.chain.writable_len() {
        return Err(LinkError::Protocol("a reply that is too long"));
    }
    Ok(())
}

/// Writes a checked reply into its chain and gives the chain back.
fn answer(pending: &Pending, body: &[u8], queues: &mut Queues<'_>) -> Result<(), Fault> {
    let queue = pending.queue;
    let memory: &GuestMemory = queues.memory();
    let len = pending
        .chain
        .write(memory, 0, body)
        .map_err(|source| Fault::Memory { queue, source })?;
    let len = u32::try_from(len).unwrap_or(u32::MAX);
    queues.put_used(queue, pending.chain.head(), len)
}

/// Answers a request with an error, if it takes an answer.
fn refuse(pending: &Pending, errno: i32, queues: &mut Queues<'_>) -> Result<(), Fault> {
    let mut body = [0; OUT_HEADER_LEN];
    body[..4].copy_from_slice(&16u32.to_le_bytes());
    body[4..8].copy_from_slice(&(-errno).to_le_bytes());
    body[8..].copy_from_slice(&pending.unique.to_le_bytes());
    let fits = pending.chain.writable_len() >= OUT_HEADER_LEN_U32;
    answer(pending, if fits { &body } else { &[] }, queues)?;
    queues.tell(pending.queue)
}

impl VirtioDevice for Fs {
    type State = FsState;

    fn id(&self) -> u32 {
        ID
    }

    fn queue_sizes(&self) -> &'static [u16] {
        QUEUES
    }

    /// `struct virtio_fs_config`: the tag and the number of request queues.
    fn config(&self) -> Vec<u8> {
        let mut config = self.tag.0.to_vec();
        config.extend(1u32.to_le_bytes());
        config
    }

    fn activate(&mut self, _: &mut Queues<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn notified(&mut self, index: u16, queues: &mut Queues<'_>) -> Result<(), Fault> {
        self.refuse_lost(queues)?;
        self.take_held(queues)?;
        self.take(usize::from(index), queues)
    }

    fn ready(&mut self, _: u32, events: EventSet, queues: &mut Queues<'_>) -> Result<(), Fault> {
        if events.intersects(EventSet::OUT)
            && let Some(Err(error)) = self.link.as_mut().map(Link::flush)
        {
            self.lose(&error, queues)?;
        }
        if events.intersects(EventSet::IN | EventSet::HANG_UP | EventSet::ERROR) {
            self.receive(queues)?;
        }
        // There may be room again, in the socket or among the requests under way.
        self.take_held(queues)
    }

    fn ready_inactive(&mut self, _: u32, events: EventSet) {
        let Some(link) = &mut self.link else { return };
        let mut result = Ok(());
        if events.intersects(EventSet::OUT) {
            result = link.flush();
        }
        if result.is_ok() && !events.difference(EventSet::OUT).is_empty() {
            // Answers to a driver that has forgotten its questions.
            result = link.receive(|_, _| Ok(()));
        }
        if let Err(error) = result {
            self.disconnect(&error);
        }
    }

    fn reset(&mut self) {
        self.lost.clear();
        self.pending.clear();
        self.held = false;
        let tag = self.next_tag;
        self.next_tag += 1;
        self.first_tag = self.next_tag;
        // A driver that only probes resets several times: one word is enough.
        if !std::mem::take(&mut self.known) {
            return;
        }
        let header = Header {
            kind: Kind::Reset,
            body_len: 0,
            queue: 0,
            tag,
            reply_max: 0,
        };
        self.frame.clear();
        self.frame.extend(header.encode());
        if let Err(error) = self.send() {
            self.disconnect(&error);
        }
    }

    fn save(&self) -> FsState {
        let all = self.pending.values().chain(&self.lost);
        FsState {
            next_tag: self.next_tag,
            in_flight: all.map(Pending::save).collect(),
        }
    }

    fn restore(&mut self, state: FsState) {
        self.next_tag = state.next_tag.max(1);
        self.first_tag = self.next_tag;
        // The server may know the driver from the device that was saved.
        self.known = true;
        self.lost = state.in_flight.into_iter().map(Pending::restore).collect();
    }
}

#[cfg(test)]
mod tests;
