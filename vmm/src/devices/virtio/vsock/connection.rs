//! One connection between a guest's port and a socket of the host.
//!
//! Flow control (specification, section 5.10.6.3): each side tells how many bytes its buffer holds
//! and how many it has passed on. Invariants: what the guest sent and the host's socket has not
//! taken is at most [`BUFFER`], since a guest that sends more is disconnected; never more is sent
//! to the guest than fits into what it says it has free.

use std::collections::VecDeque;
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use super::packet::{DATA_MAX, HOST_CID, Header, NO_RECEIVE, NO_SEND, Op, TYPE_STREAM};
use crate::devices::events::EventSet;
use crate::devices::sockets::hung_up;

/// Bytes of a guest's that are kept for a slow host.
pub(super) const BUFFER: u32 = 256 * 1024;

/// A connection by its two ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Key {
    pub(super) host_port: u32,
    pub(super) guest_port: u32,
}

/// What the guest is to be told, besides data. One flag each, so that it is bounded.
#[derive(Debug, Default)]
struct Due {
    request: bool,
    response: bool,
    reset: bool,
    shutdown: bool,
    credit_update: bool,
    credit_request: bool,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) key: Key,
    pub(super) token: u32,
    guest_cid: u64,
    // None once the host's side is gone.
    pub(super) socket: Option<UnixStream>,
    to_host: VecDeque<u8>,
    // The guest has agreed, or asked itself.
    pub(super) open: bool,
    due: Due,
    /// SHUTDOWN flags of the guest, and those that the host's side stands for.
    guest_done: u32,
    host_done: u32,
    // Bytes of the guest's: received, passed on, and the latter as last told.
    received: u32,
    passed_on: u32,
    told: u32,
    // Bytes of the host's, and the guest's buffer.
    sent: u32,
    guest_buffer: u32,
    guest_passed_on: u32,
    // The connection may be forgotten once what is due was sent.
    pub(super) ended: bool,
}

/// What a step did to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Go,
    /// The guest broke the rules or is gone: forget the connection now.
    Drop,
}

impl Connection {
    /// A connection that the host began: the guest is asked.
    pub(super) fn from_host(key: Key, token: u32, guest_cid: u64, socket: UnixStream) -> Self {
        let mut new = Self::new(key, token, guest_cid, socket);
        new.due.request = true;
        new
    }

    /// A connection that the guest began with `request`: it is accepted.
    pub(super) fn from_guest(token: u32, request: Header, socket: UnixStream) -> Self {
        let key = Key {
            host_port: request.dst_port,
            guest_port: request.src_port,
        };
        let mut new = Self::new(key, token, request.src_cid, socket);
        new.open = true;
        new.due.response = true;
        new.take_credit(&request);
        new
    }

    fn new(key: Key, token: u32, guest_cid: u64, socket: UnixStream) -> Self {
        Self {
            key,
            token,
            guest_cid,
            socket: Some(socket),
            to_host: VecDeque::new(),
            open: false,
            due: Due::default(),
            guest_done: 0,
            host_done: 0,
            received: 0,
            passed_on: 0,
            told: 0,
            sent: 0,
            guest_buffer: 0,
            guest_passed_on: 0,
            ended: false,
        }
    }

    fn take_credit(&mut self, header: &Header) {
        self.guest_buffer = header.buf_alloc;
        self.guest_passed_on = header.fwd_cnt;
        self.due.credit_request &= self.credit() == 0;
    }

    /// Bytes that the guest has room for. Counters wrap; a guest that lies about them only harms
    /// itself.
    fn credit(&self) -> u32 {
        let under_way = self.sent.wrapping_sub(self.guest_passed_on);
        self.guest_buffer.saturating_sub(under_way)
    }

    /// Serves a packet of the guest's; `data` has as many bytes as the header says.
    pub(super) fn receive(&mut self, header: &Header, data: &[u8]) -> Step {
        self.take_credit(header);
        match header.op {
            Some(Op::Response) if !self.open => {
                self.open = true;
                let answer = format!("OK {}\n", self.key.host_port);
                self.to_host.extend(answer.as_bytes());
                self.flush()
            }
            Some(Op::Data) if self.open && self.guest_done & NO_SEND == 0 => self.data(data),
            Some(Op::CreditUpdate) => Step::Go,
            Some(Op::CreditRequest) => {
                self.due.credit_update = true;
                Step::Go
            }
            Some(Op::Shutdown) if self.open => {
                self.guest_done |= header.flags & (NO_RECEIVE | NO_SEND);
                self.flush()
            }
            Some(Op::Reset) => {
                self.due = Due::default();
                Step::Drop
            }
            _ => self.refuse(),
        }
    }

    fn data(&mut self, data: &[u8]) -> Step {
        // Its length was checked to be at most DATA_MAX.
        let len = u32::try_from(data.len()).unwrap_or(u32::MAX);
        let waiting = self.received.wrapping_sub(self.passed_on);
        if waiting.saturating_add(len) > BUFFER {
            return self.refuse();
        }
        self.received = self.received.wrapping_add(len);
        self.to_host.extend(data);
        self.flush()
    }

    /// Sends the guest a reset and ends.
    fn refuse(&mut self) -> Step {
        self.due = Due {
            reset: true,
            ..Due::default()
        };
        self.ended = true;
        self.socket = None;
        Step::Go
    }

    /// Passes on to the host what it takes now.
    pub(super) fn flush(&mut self) -> Step {
        while !self.to_host.is_empty() {
            let Some(mut socket) = self.socket.as_ref() else {
                // Nobody reads it: as good as passed on.
                self.pass_on(self.to_host.len());
                break;
            };
            match socket.write(self.to_host.as_slices().0) {
                Ok(len) => {
                    self.to_host.drain(..len);
                    let len = u32::try_from(len).unwrap_or(u32::MAX);
                    // The answer to CONNECT is not the guest's and counts for nothing.
                    let waiting = self.received.wrapping_sub(self.passed_on);
                    self.passed_on = self.passed_on.wrapping_add(len.min(waiting));
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => self.host_stops_receiving(),
            }
        }
        self.after_flush()
    }

    fn pass_on(&mut self, len: usize) {
        self.to_host.drain(..len);
        self.passed_on = self.received;
    }

    fn after_flush(&mut self) -> Step {
        if self.passed_on.wrapping_sub(self.told) >= BUFFER / 4 {
            self.due.credit_update = true;
        }
        if !self.to_host.is_empty() {
            return Step::Go;
        }
        if self.guest_done == NO_RECEIVE | NO_SEND {
            return self.refuse();
        }
        if self.guest_done & NO_SEND != 0
            && let Some(socket) = &self.socket
            && socket.shutdown(Shutdown::Write).is_err()
        {
            self.host_stops_receiving();
        }
        Step::Go
    }

    /// The host's side takes nothing more, but may have sent something that was not read yet.
    fn host_stops_receiving(&mut self) {
        if self.host_done & NO_RECEIVE == 0 {
            self.host_done |= NO_RECEIVE;
            self.due.shutdown = true;
        }
        self.pass_on(self.to_host.len());
    }

    /// The host's socket is closed and has nothing more: the guest is told once, and what it still
    /// sends is dropped.
    fn host_is_gone(&mut self) {
        self.socket = None;
        self.due.shutdown |= self.host_done != NO_RECEIVE | NO_SEND;
        self.host_done = NO_RECEIVE | NO_SEND;
        self.pass_on(self.to_host.len());
    }

    /// An event of the host's socket. `readable` is set when it may have something.
    pub(super) fn event(&mut self, events: EventSet, readable: &mut bool) -> Step {
        let closed = events.intersects(EventSet::HANG_UP | EventSet::ERROR);
        if closed && !self.may_read() {
            self.host_is_gone();
        } else if closed || events.intersects(EventSet::IN) {
            *readable = true;
        }
        if events.intersects(EventSet::OUT) {
            return self.flush();
        }
        Step::Go
    }

    /// Whether data of the host's may still go to the guest, now or when it has room.
    fn may_read(&self) -> bool {
        self.open && self.host_done & NO_SEND == 0 && self.guest_done & NO_RECEIVE == 0
    }

    /// Whether the guest has room for data of the host's.
    pub(super) fn wants_data(&self) -> bool {
        self.may_read() && self.credit() > 0
    }

    /// What to watch the host's socket for; `None`: nothing, not even its closing, which would be
    /// reported for as long as the guest has no room for what came before it.
    pub(super) fn watch(&self, readable: bool) -> Option<EventSet> {
        let room = if self.wants_room() {
            EventSet::OUT
        } else {
            EventSet::empty()
        };
        let waits = !self.open || self.may_read() && readable;
        match self.socket {
            None => None,
            Some(_) if waits => (!room.is_empty()).then_some(room),
            Some(_) if self.may_read() => Some(EventSet::IN | room),
            Some(_) => Some(room),
        }
    }

    /// Whether there is something for the host that it did not take.
    pub(super) fn wants_room(&self) -> bool {
        self.socket.is_some() && !self.to_host.is_empty()
    }

    /// The next packet for the guest, if there is one: a header, and data of at most `room` bytes in
    /// `data`. `readable`: the host's socket may have something; cleared when it has not.
    pub(super) fn next(
        &mut self,
        room: u32,
        data: &mut Vec<u8>,
        readable: &mut bool,
    ) -> Option<Header> {
        data.clear();
        if let Some(op) = self.next_due() {
            return Some(self.header(op, 0));
        }
        if !*readable || !self.may_read() {
            *readable = false;
            return None;
        }
        let len = self.credit().min(room).min(DATA_MAX);
        if len == 0 {
            return None;
        }
        data.resize(usize::try_from(len).unwrap_or(0), 0);
        let result = self.socket.as_mut().map(|socket| socket.read(data));
        data.truncate(
            result
                .as_ref()
                .and_then(|r| r.as_ref().ok())
                .map_or(0, |len| *len),
        );
        match result {
            Some(Ok(len)) if len > 0 => {
                let len = u32::try_from(len).unwrap_or(0);
                self.sent = self.sent.wrapping_add(len);
                self.due.credit_request = self.credit() == 0;
                Some(self.header(Op::Data, len))
            }
            Some(Err(error)) if is_retry(&error) => {
                *readable = error.kind() == io::ErrorKind::Interrupted;
                None
            }
            // The end, or an error: the same to a guest.
            _ => {
                *readable = false;
                self.host_done |= NO_SEND;
                self.due.shutdown = true;
                if self.socket.as_ref().is_none_or(hung_up) {
                    self.host_is_gone();
                }
                self.next_due().map(|op| self.header(op, 0))
            }
        }
    }

    /// Whether [`Self::next`] has something without looking at the host's socket.
    pub(super) fn has_due(&self) -> bool {
        let due = &self.due;
        due.request
            || due.response
            || due.reset
            || due.shutdown
            || due.credit_update
            || due.credit_request
    }

    /// Panics unless the invariants hold.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(super) fn check(&self) {
        let waiting = self.received.wrapping_sub(self.passed_on);
        assert!(waiting <= BUFFER, "{waiting} bytes wait for the host");
        // What answers a CONNECT is the device's own.
        let most = usize::try_from(BUFFER).unwrap_or(0) + "OK 4294967295\n".len();
        assert!(self.to_host.len() <= most, "{} bytes", self.to_host.len());
        assert!(!self.ended || self.socket.is_none());
    }

    fn next_due(&mut self) -> Option<Op> {
        let due = &mut self.due;
        let order = [
            (&mut due.reset, Op::Reset),
            (&mut due.request, Op::Request),
            (&mut due.response, Op::Response),
            (&mut due.shutdown, Op::Shutdown),
            (&mut due.credit_update, Op::CreditUpdate),
            (&mut due.credit_request, Op::CreditRequest),
        ];
        for (flag, op) in order {
            if std::mem::take(flag) {
                return Some(op);
            }
        }
        None
    }

    fn header(&mut self, op: Op, len: u32) -> Header {
        self.told = self.passed_on;
        self.due.credit_update = false;
        Header {
            src_cid: HOST_CID,
            dst_cid: self.guest_cid,
            src_port: self.key.host_port,
            dst_port: self.key.guest_port,
            len,
            kind: TYPE_STREAM,
            op: Some(op),
            flags: if op == Op::Shutdown {
                self.host_done
            } else {
                0
            },
            buf_alloc: BUFFER,
            fwd_cnt: self.passed_on,
        }
    }
}

fn is_retry(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
    )
}
