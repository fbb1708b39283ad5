//! The socket device (virtio-vsock; specification, section 5.10): stream connections between the
//! guest's ports and Unix sockets of the host.
//!
//! Invariants: everything is bounded, whatever guest or host send: connections and callers by
//! [`CONNECTIONS_MAX`], bytes of each by `connection::BUFFER`, answers to stray packets by
//! `STRAY_MAX`, after which the guest's packets stay in their queue. Data of the host's is read
//! only when the guest has a buffer and credit for it, so it waits in the host's sockets.

mod connection;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
mod host;
mod packet;
mod rx;
mod state;

use std::collections::{BTreeMap, VecDeque};

pub use host::HostSockets;
pub use state::VsockState;

use super::chain::Chain;
use super::{Fault, Queues, VirtioDevice};
use crate::devices::events::{EventSet, Registrar};
use connection::{Connection, Key, Step};
use host::{Called, Caller};
use packet::{DATA_MAX, HEADER_LEN, HEADER_LEN_U32, HOST_CID, Header, Op, TYPE_STREAM};

const ID: u32 = 19;
const RX: usize = 0;
const TX: usize = 1;
const EVENT: usize = 2;
const QUEUES: &[u16] = &[256, 256, 16];
/// Most connections and callers at once.
pub const CONNECTIONS_MAX: usize = 1024;
/// Most answers to stray packets that wait for a buffer of the guest's.
const STRAY_MAX: usize = 128;
/// Ports that the host's ends get: above all that programs name.
const PORTS: std::ops::Range<u32> = 1 << 30..1 << 31;
const LISTENER: u32 = 0;
/// Least address of a guest; those below are reserved.
pub const GUEST_CID_MIN: u32 = 3;

/// A guest's address is reserved.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "a guest's vsock address is at least {GUEST_CID_MIN} and not {}: {cid} is reserved",
    u32::MAX
)]
pub struct CidError {
    cid: u32,
}

/// Why a vsock device could not be made.
#[derive(Debug, thiserror::Error)]
pub enum VsockError {
    /// The address is reserved.
    #[error(transparent)]
    Cid(#[from] CidError),
    /// The socket cannot be watched.
    #[error("the machine's vsock socket cannot be used")]
    Socket(#[from] std::io::Error),
}

struct Slot {
    connection: Connection,
    /// The host's socket may have data.
    readable: bool,
    /// In `Vsock::ready`.
    queued: bool,
    watched: Option<EventSet>,
}

/// Whether the guest is to be told that its connections are gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reset {
    None,
    /// It is, as soon as it has room for it.
    Due,
    /// It was, and has not offered room for another event since. What the host begins now, the guest would
    /// give up with the rest: programs of the host wait.
    Told,
}

/// The device.
pub struct Vsock {
    guest_cid: u32,
    host: HostSockets,
    registrar: Registrar,
    next_token: u32,
    next_port: u32,
    callers: BTreeMap<u32, Caller>,
    connections: BTreeMap<u32, Slot>,
    by_key: BTreeMap<Key, u32>,
    /// Connections that may have something for the guest, in turn.
    ready: VecDeque<u32>,
    stray: VecDeque<Header>,
    reset: Reset,
    /// For the data of one packet, at most [`DATA_MAX`].
    scratch: Vec<u8>,
}

impl std::fmt::Debug for Vsock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vsock")
            .field("guest_cid", &self.guest_cid)
            .field("connections", &self.connections.len())
            .finish_non_exhaustive()
    }
}

impl Vsock {
    /// A device for the guest with the address `guest_cid`.
    ///
    /// # Errors
    /// [`VsockError`].
    pub fn new(
        guest_cid: u32,
        host: HostSockets,
        registrar: Registrar,
    ) -> Result<Self, VsockError> {
        if guest_cid < GUEST_CID_MIN || guest_cid == u32::MAX {
            return Err(CidError { cid: guest_cid }.into());
        }
        host.listener.set_nonblocking(true)?;
        registrar.add(&host.listener, LISTENER, EventSet::IN)?;
        Ok(Self {
            guest_cid,
            host,
            registrar,
            next_token: 1,
            next_port: PORTS.start,
            callers: BTreeMap::new(),
            connections: BTreeMap::new(),
            by_key: BTreeMap::new(),
            ready: VecDeque::new(),
            stray: VecDeque::new(),
            reset: Reset::None,
            scratch: Vec::new(),
        })
    }

    /// Connections, of whatever state.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    fn token(&mut self) -> u32 {
        loop {
            let token = self.next_token;
            // The last one is the transport's.
            self.next_token = (token + 1) % (u32::MAX - 1);
            let taken = token == LISTENER
                || self.callers.contains_key(&token)
                || self.connections.contains_key(&token);
            if !taken {
                return token;
            }
        }
    }

    /// Makes room for one more connection, if need be at the cost of the oldest whose host is gone.
    fn has_room(&mut self) -> bool {
        if self.connections.len() + self.callers.len() < CONNECTIONS_MAX {
            return true;
        }
        let gone = |slot: &Slot| slot.connection.socket.is_none();
        let oldest = self.connections.iter().find(|(_, slot)| gone(slot));
        let Some(token) = oldest.map(|(token, _)| *token) else {
            return false;
        };
        self.forget(token);
        true
    }

    fn accept(&mut self) {
        // A bound for one turn; the listener is reported again.
        for _ in 0..64 {
            let result = match self.host.accept() {
                Ok(None) => return,
                // Hung up on.
                Ok(Some(_)) if !self.has_room() => continue,
                Ok(Some(socket)) => {
                    let token = self.token();
                    let watched = self.registrar.add(&socket, token, EventSet::IN);
                    watched.map(|()| self.callers.insert(token, Caller::new(socket)))
                }
                Err(error) => Err(error),
            };
            // For want of descriptors or memory: the host's trouble, not the guest's.
            if let Err(error) = result {
                tracing::debug!(%error, "a vsock connection of the host failed");
                return;
            }
        }
    }

    fn call(&mut self, token: u32) {
        let Some(caller) = self.callers.get_mut(&token) else {
            return;
        };
        let called = caller.read();
        if called == Called::Wait {
            return;
        }
        let Some(caller) = self.callers.remove(&token) else {
            return;
        };
        if let Called::Port(guest_port) = called {
            let key = Key {
                host_port: self.free_port(guest_port),
                guest_port,
            };
            let cid = u64::from(self.guest_cid);
            let connection = Connection::from_host(key, token, cid, caller.socket);
            self.insert(connection, Some(EventSet::IN));
        }
    }

    /// A port of the host that is not connected to `guest_port`. There are far more than
    /// connections.
    fn free_port(&mut self, guest_port: u32) -> u32 {
        loop {
            let host_port = self.next_port;
            self.next_port = if host_port + 1 < PORTS.end {
                host_port + 1
            } else {
                PORTS.start
            };
            let key = Key {
                host_port,
                guest_port,
            };
            if !self.by_key.contains_key(&key) {
                return host_port;
            }
        }
    }

    fn insert(&mut self, connection: Connection, watched: Option<EventSet>) {
        let token = connection.token;
        self.by_key.insert(connection.key, token);
        let slot = Slot {
            connection,
            readable: false,
            queued: false,
            watched,
        };
        self.connections.insert(token, slot);
        self.update(token);
    }

    fn forget(&mut self, token: u32) {
        if let Some(slot) = self.connections.remove(&token) {
            self.by_key.remove(&slot.connection.key);
        }
    }

    /// After anything happened to a connection: watches its socket for what matters now, and has it
    /// take its turn if it may have something for the guest.
    fn update(&mut self, token: u32) {
        let Some(slot) = self.connections.get_mut(&token) else {
            return;
        };
        let wanted = slot.connection.watch(slot.readable);
        if let Some(socket) = &slot.connection.socket {
            let result = match (slot.watched, wanted) {
                (old, new) if old == new => Ok(()),
                (None, Some(events)) => self.registrar.add(socket, token, events),
                (Some(_), Some(events)) => self.registrar.modify(socket, token, events),
                (Some(_), None) => self.registrar.remove(socket),
                (None, None) => Ok(()),
            };
            if let Err(error) = result {
                tracing::warn!(%error, "a vsock connection cannot be watched");
                self.forget(token);
                return;
            }
        }
        slot.watched = wanted;
        let pending = slot.connection.has_due() || slot.readable && slot.connection.wants_data();
        if pending && !slot.queued {
            slot.queued = true;
            self.ready.push_back(token);
        } else if slot.connection.ended && !slot.connection.has_due() {
            self.forget(token);
        }
    }

    /// Serves the guest's packets as long as there is room for answers.
    fn transmit(&mut self, queues: &mut Queues<'_>) -> Result<(), Fault> {
        let mut used = false;
        let result = queues.serve_later(TX, |queues, chain| {
            if self.stray.len() >= STRAY_MAX {
                return Ok(false);
            }
            self.packet(&chain, queues)?;
            queues.put_used(TX, chain.head(), 0)?;
            used = true;
            Ok(true)
        });
        if used {
            queues.tell(TX)?;
        }
        result
    }

    fn packet(&mut self, chain: &Chain, queues: &mut Queues<'_>) -> Result<(), Fault> {
        let wrong = |what| Fault::Chain { queue: TX, what };
        let failed = |source| Fault::Memory { queue: TX, source };
        let mut bytes = [0; HEADER_LEN];
        if chain.read(queues.memory(), &mut bytes).map_err(failed)? < HEADER_LEN {
            return Err(wrong("is too short for a packet"));
        }
        let header = Header::decode(&bytes);
        if header.len > DATA_MAX || HEADER_LEN_U32 + header.len > chain.readable_len() {
            return Err(wrong("is shorter than its packet says, or too long"));
        }
        let mut data = std::mem::take(&mut self.scratch);
        data.clear();
        chain
            .append_to(queues.memory(), HEADER_LEN_U32, header.len, &mut data)
            .map_err(failed)?;
        self.dispatch(header, &data);
        self.scratch = data;
        Ok(())
    }

    fn dispatch(&mut self, header: Header, data: &[u8]) {
        let ours = header.src_cid == u64::from(self.guest_cid) && header.dst_cid == HOST_CID;
        if !ours {
            return;
        }
        let key = Key {
            host_port: header.dst_port,
            guest_port: header.src_port,
        };
        let token = self.by_key.get(&key).copied();
        if header.kind != TYPE_STREAM {
            self.refuse(header);
        } else if let Some(token) = token {
            let Some(slot) = self.connections.get_mut(&token) else {
                return;
            };
            match slot.connection.receive(&header, data) {
                Step::Go => self.update(token),
                Step::Drop => self.forget(token),
            }
        } else if header.op == Some(Op::Request) {
            self.request(header);
        } else {
            self.refuse(header);
        }
    }

    fn request(&mut self, header: Header) {
        let socket = if self.has_room() {
            self.host.connect(header.dst_port)
        } else {
            Err(std::io::ErrorKind::QuotaExceeded.into())
        };
        match socket {
            Ok(socket) => {
                let token = self.token();
                self.insert(Connection::from_guest(token, header, socket), None);
            }
            Err(error) => {
                tracing::debug!(%error, port = header.dst_port, "a guest's connection is refused");
                self.refuse(header);
            }
        }
    }

    /// Answers a packet of no connection, unless it is such an answer itself.
    fn refuse(&mut self, header: Header) {
        if header.op != Some(Op::Reset) {
            self.stray.push_back(header.reset_for());
        }
    }

    fn pump(&mut self, queues: &mut Queues<'_>) -> Result<(), Fault> {
        self.fill(queues)?;
        self.transmit(queues)?;
        self.fill(queues)
    }

    /// Takes calls of the host only when the guest keeps them.
    fn set_reset(&mut self, reset: Reset) {
        let listens = |reset| reset == Reset::None;
        if listens(reset) != listens(self.reset) {
            let events = match listens(reset) {
                true => EventSet::IN,
                false => EventSet::empty(),
            };
            let listener = &self.host.listener;
            if let Err(error) = self.registrar.modify(listener, LISTENER, events) {
                tracing::warn!(%error, "calls of the host are not taken");
            }
        }
        self.reset = reset;
    }

    fn tell_reset(&mut self, queues: &mut Queues<'_>) -> Result<(), Fault> {
        match self.reset {
            Reset::None => return Ok(()),
            // A driver gives room back after it has dealt with what was there.
            Reset::Told => {
                self.set_reset(Reset::None);
                return Ok(());
            }
            Reset::Due => {}
        }
        // In all the room that there is: a driver says that it has given some back only when there was none
        // left. To be told more than once is no harm.
        let mut told = false;
        queues.serve_later(EVENT, |queues, chain| {
            // VIRTIO_VSOCK_EVENT_TRANSPORT_RESET is 0.
            let len = chain
                .write(queues.memory(), 0, &0u32.to_le_bytes())
                .map_err(|source| Fault::Memory {
                    queue: EVENT,
                    source,
                })?;
            queues.put_used(EVENT, chain.head(), u32::try_from(len).unwrap_or(0))?;
            told = true;
            Ok(true)
        })?;
        if !told {
            return Ok(());
        }
        self.set_reset(Reset::Told);
        queues.tell(EVENT)
    }
}

impl VirtioDevice for Vsock {
    type State = VsockState;

    fn id(&self) -> u32 {
        ID
    }

    fn queue_sizes(&self) -> &'static [u16] {
        QUEUES
    }

    /// `struct virtio_vsock_config`: the guest's address.
    fn config(&self) -> Vec<u8> {
        u64::from(self.guest_cid).to_le_bytes().to_vec()
    }

    fn activate(&mut self, _: &mut Queues<'_>) -> Result<(), Fault> {
        Ok(())
    }

    fn notified(&mut self, index: u16, queues: &mut Queues<'_>) -> Result<(), Fault> {
        if usize::from(index) == EVENT {
            return self.tell_reset(queues);
        }
        self.pump(queues)
    }

    fn ready(
        &mut self,
        token: u32,
        events: EventSet,
        queues: &mut Queues<'_>,
    ) -> Result<(), Fault> {
        if token == LISTENER {
            // One event may have come before nothing was listened to.
            if self.reset == Reset::None {
                self.accept();
            }
        } else if self.callers.contains_key(&token) {
            self.call(token);
        } else if let Some(slot) = self.connections.get_mut(&token) {
            match slot.connection.event(events, &mut slot.readable) {
                Step::Go => self.update(token),
                Step::Drop => self.forget(token),
            }
        }
        self.pump(queues)
    }

    fn ready_inactive(&mut self, token: u32, _: EventSet) {
        // Nobody to talk to: a program that calls is hung up on.
        if token == LISTENER
            && let Err(error) = self.host.accept()
        {
            tracing::debug!(%error, "a vsock connection of the host failed");
        }
        self.callers.remove(&token);
    }

    fn reset(&mut self) {
        self.callers.clear();
        self.connections.clear();
        self.by_key.clear();
        self.ready.clear();
        self.stray.clear();
        self.set_reset(Reset::None);
    }

    fn save(&self) -> VsockState {
        VsockState {
            guest_cid: self.guest_cid,
            next_port: self.next_port,
            reset_due: self.reset != Reset::None || !self.connections.is_empty(),
        }
    }

    fn restore(&mut self, state: VsockState) {
        self.next_port = state.next_port.clamp(PORTS.start, PORTS.end - 1);
        // A guest reads its address again when it is told of a reset.
        if state.reset_due || state.guest_cid != self.guest_cid {
            self.set_reset(Reset::Due);
        }
    }
}

#[cfg(test)]
mod tests;
