//! A hostile driver that sends packets, and programs of the host, at the two ends of the socket device.
//!
//! The driver keeps the rules of queues (`devices/virtio/fuzzing` is one that does not), so that every
//! input gets to the packets. What the device sends is judged by what a guest knows of each connection:
//! what it has claimed to have room for, and what it has sent.

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;

use super::connection::{BUFFER, Key};
use super::packet::{DATA_MAX, HEADER_LEN, HEADER_LEN_U32, HOST_CID, Header, Op, TYPE_STREAM};
use super::{CONNECTIONS_MAX, EVENT, HostSockets, LISTENER, RX, STRAY_MAX, TX, Vsock};
use crate::devices::events::{EventLoop, EventSet};
use crate::devices::virtio::fuzzing::events;
use crate::devices::virtio::mmio::Transport;
use crate::devices::virtio::testing::{Driver, line};
use crate::fuzzing::Input;

const CID: u32 = 3;
/// Where somebody of the host listens.
const PORT: u32 = 77;
const STEPS_MAX: usize = 300;
const PROGRAMS_MAX: usize = 16;
/// Sizes of buffers and packets that are near a limit.
const SIZES: [u32; 8] = [45, 46, 64, 4096, 8192, 65_536, 65_580, 70_000];
/// Where packets are built, away from the driver's buffers.
const PACKET: u64 = 0x180_0000;

const SEND: u8 = 0;
const RAW: u8 = 1;
const CALL: u8 = 2;
const PROGRAM_WRITES: u8 = 3;
const PROGRAM_READS: u8 = 4;
const PROGRAM_ENDS: u8 = 5;
const ACCEPT: u8 = 6;
const EVENTS: u8 = 7;
const EVENT_OF: u8 = 8;
const BUFFERS: u8 = 9;
const RESET: u8 = 10;
const RESTORE: u8 = 11;
const EVENT_BUFFER: u8 = 12;
const KINDS: u8 = 13;

/// A guest's packets and what programs of the host do, in turn.
///
/// # Panics
/// If the device sent more than the guest said it has room for, a packet that no buffer holds or that is
/// none, credit for what was not sent, or holds more than it may.
pub fn vsock(data: &[u8]) {
    let mut input = Input(data);
    let mut guest = Guest::new();
    for _ in 0..STEPS_MAX {
        if input.is_empty() {
            break;
        }
        guest.step(&mut input);
        guest.receive();
        guest.driver.transport.device().check();
    }
}

impl Vsock {
    /// Panics unless the invariants hold.
    pub(crate) fn check(&self) {
        assert!(self.connections.len() + self.callers.len() <= CONNECTIONS_MAX);
        assert!(
            self.stray.len() <= STRAY_MAX,
            "{} answers",
            self.stray.len()
        );
        assert_eq!(self.by_key.len(), self.connections.len());
        for (token, slot) in &self.connections {
            assert_eq!(self.by_key.get(&slot.connection.key), Some(token));
            slot.connection.check();
        }
        let queued = self.connections.values().filter(|slot| slot.queued).count();
        // A connection that was forgotten in its turn leaves its token until it is due.
        assert!(queued <= self.ready.len());
        assert!(self.scratch.is_empty() || self.scratch.len() <= size(DATA_MAX));
    }
}

/// What the guest knows of a connection.
#[derive(Debug, Default)]
struct Known {
    /// Room and counter that it claimed: the last two times, since what is on its way may be by either.
    claims: [(u32, u32); 2],
    /// Bytes that the device sent.
    received: u32,
    /// Bytes that the guest sent between these ports, in earlier connections as well: which of them the
    /// device means is not plain while packets of both are under way.
    sent: u32,
}

impl Known {
    fn room(&self) -> u32 {
        let of = |(room, taken): (u32, u32)| room.saturating_sub(self.received.wrapping_sub(taken));
        of(self.claims[0]).max(of(self.claims[1]))
    }
}

struct Guest {
    driver: Driver<Vsock>,
    dir: tempfile::TempDir,
    devices: u32,
    listener: UnixListener,
    programs: Vec<UnixStream>,
    /// By head: where the buffer is, and its size.
    buffers: BTreeMap<u32, (u64, u32)>,
    known: BTreeMap<Key, Known>,
    /// Packets that the device has not taken: what it knows is older than what was said.
    behind: usize,
}

fn device(path: &std::path::Path) -> Vsock {
    let registrar = EventLoop::new().expect("descriptors").registrar();
    let host = HostSockets::bind(path).expect("a socket");
    Vsock::new(CID, host, registrar).expect("a device")
}

fn listen(path: &std::path::Path) -> UnixListener {
    let mut at = path.as_os_str().to_owned();
    at.push(format!("_{PORT}"));
    let listener = UnixListener::bind(at).expect("a socket");
    listener.set_nonblocking(true).expect("a socket");
    listener
}

impl Guest {
    fn new() -> Self {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("0");
        let mut guest = Self {
            driver: Driver::new(device(&path)),
            listener: listen(&path),
            dir,
            devices: 0,
            programs: Vec::new(),
            buffers: BTreeMap::new(),
            known: BTreeMap::new(),
            behind: 0,
        };
        guest.start(0);
        guest
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(self.devices.to_string())
    }

    fn start(&mut self, features: u64) {
        self.driver.start(features);
        self.buffers.clear();
        self.known.clear();
        self.behind = 0;
    }

    fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % KINDS {
            SEND => self.send(input),
            RAW => {
                let len = usize::from(input.u8());
                self.packet(input.bytes(len));
            }
            CALL => {
                let len = input.below(48);
                let line = input.bytes(len);
                if self.programs.len() < PROGRAMS_MAX
                    && let Ok(mut program) = UnixStream::connect(self.path())
                    && program.write_all(line).is_ok()
                {
                    self.keep(program);
                }
            }
            PROGRAM_WRITES => {
                let bytes = vec![b'h'; usize::from(input.u16())];
                self.program(input, |program| program.write(&bytes));
            }
            PROGRAM_READS => {
                let mut bytes = vec![0; usize::from(input.u16())];
                self.program(input, |program| program.read(&mut bytes));
            }
            PROGRAM_ENDS => {
                if !self.programs.is_empty() {
                    self.programs.remove(input.below(self.programs.len()));
                }
            }
            ACCEPT => {
                if let Ok((program, _)) = self.listener.accept() {
                    self.keep(program);
                }
            }
            EVENTS => self.events(),
            EVENT_OF => {
                let token = u32::from(input.u8() % 16);
                self.driver.ready(token, events(input.u8()));
            }
            BUFFERS => {
                let len = SIZES[input.below(SIZES.len())];
                for _ in 0..=input.below(8) {
                    self.offer(len);
                }
                self.driver.notify(0);
            }
            RESET => self.start(u64::from(input.u8() & 1) << 29),
            RESTORE => {
                let state = self.driver.transport.save();
                self.devices += 1;
                self.listener = listen(&self.path());
                let other = device(&self.path());
                self.driver.transport = Transport::new(other, self.driver.memory.clone(), line());
                let fits = self.driver.transport.restore(state);
                assert_eq!(fits, Ok(()), "what a device saved is refused");
                self.known.clear();
                self.driver.kick();
            }
            _ => {
                self.driver
                    .add(EVENT, &[(0x170_0000, u32::from(input.u8()), true)]);
                self.driver.notify(2);
            }
        }
    }

    fn keep(&mut self, program: UnixStream) {
        if self.programs.len() < PROGRAMS_MAX && program.set_nonblocking(true).is_ok() {
            self.programs.push(program);
        }
    }

    /// Has one of the programs do something. That it cannot is as well.
    fn program(
        &mut self,
        input: &mut Input<'_>,
        act: impl FnOnce(&mut UnixStream) -> std::io::Result<usize>,
    ) {
        let at = input.below(self.programs.len());
        let done = self.programs.get_mut(at).map(act);
        assert!(!matches!(done, Some(Ok(len)) if len > 1 << 16));
    }

    /// All that is watched is reported, as far as the device wants to hear of it.
    fn events(&mut self) {
        let vsock = self.driver.transport.device();
        let mut all = vec![(LISTENER, EventSet::IN)];
        all.extend(vsock.callers.keys().map(|token| (*token, EventSet::IN)));
        let watched = |(token, slot): (&u32, &super::Slot)| Some((*token, slot.watched?));
        all.extend(vsock.connections.iter().filter_map(watched));
        for (token, events) in all {
            self.driver.ready(token, events);
        }
    }

    fn offer(&mut self, len: u32) {
        if self.buffers.len() >= 15 {
            return;
        }
        let used: Vec<u64> = self.buffers.values().map(|(at, _)| *at).collect();
        let mut places = (0..16u64).map(|number| 0x30_0000 + number * 0x2_0000);
        let at = places.find(|place| !used.contains(place)).expect("a place");
        let head = self.driver.add(RX, &[(at, len, true)]);
        self.buffers.insert(u32::from(head), (at, len));
    }

    /// A packet that is one, mostly.
    fn send(&mut self, input: &mut Input<'_>) {
        let (op, ports, flags) = (input.u8(), input.u8(), input.u8());
        let keys: Vec<Key> = self
            .driver
            .transport
            .device()
            .by_key
            .keys()
            .copied()
            .collect();
        let key = match usize::from(ports).checked_sub(128) {
            Some(at) if !keys.is_empty() => keys[at % keys.len()],
            _ => Key {
                host_port: if ports & 1 == 0 { PORT } else { 1 },
                guest_port: u32::from(ports >> 1 & 15),
            },
        };
        let known = self.known.get(&key).map_or(0, |known| known.received);
        let room = [0, 1, 10, 4096, 1 << 20, u32::MAX];
        let (buf_alloc, fwd_cnt) = match input.u8() {
            0 => (input.u32(), input.u32()),
            claim => (
                room[usize::from(claim) % room.len()],
                known.saturating_sub(u32::from(claim / 16)),
            ),
        };
        let data = match input.u8() {
            255 => size(DATA_MAX) + 1 - usize::from(input.u8() & 1),
            len if len >= 128 => usize::from(len - 127) * 500,
            len => usize::from(len),
        };
        let len = u32::try_from(data).unwrap_or(0);
        let header = Header {
            src_cid: u64::from(CID) + u64::from(flags == 0xff),
            dst_cid: HOST_CID,
            src_port: key.guest_port,
            dst_port: key.host_port,
            len: len + u32::from(flags == 0xfe),
            kind: TYPE_STREAM + u16::from(flags >> 4 == 0xe),
            op: Header::decode(&[op; HEADER_LEN]).op.or_else(|| number(op)),
            flags: u32::from(flags & 3),
            buf_alloc,
            fwd_cnt,
        };
        let mut packet = header.encode().to_vec();
        packet.resize(HEADER_LEN + data, b'g');
        self.packet(&packet);
    }

    fn packet(&mut self, packet: &[u8]) {
        // Sent when the ones before it are gone, as their memory is used again.
        if self.behind == 0 && !packet.is_empty() {
            self.know(packet);
            self.driver.write(PACKET, packet);
            let len = u32::try_from(packet.len()).unwrap_or(0);
            self.driver.add(TX, &[(PACKET, len, false)]);
            self.behind += 1;
        }
        self.driver.notify(1);
    }

    /// Notes what the device may take a packet to say.
    fn know(&mut self, packet: &[u8]) {
        let Some((head, data)) = packet.split_first_chunk() else {
            return;
        };
        let header = Header::decode(head);
        let ours = (header.src_cid, header.dst_cid) == (u64::from(CID), HOST_CID);
        if !ours || header.kind != TYPE_STREAM || size(header.len) > data.len() {
            return;
        }
        let key = Key {
            host_port: header.dst_port,
            guest_port: header.src_port,
        };
        let known = self.known.entry(key).or_default();
        known.claims = [known.claims[1], (header.buf_alloc, header.fwd_cnt)];
        known.sent = known.sent.wrapping_add(header.len);
    }

    /// Takes what the device sent, and judges it.
    fn receive(&mut self) {
        self.behind -= self.driver.used(TX).len();
        for (head, len) in self.driver.used(RX) {
            let (at, room) = self.buffers.remove(&head).expect("a buffer of the guest's");
            assert!(
                (HEADER_LEN_U32..=room).contains(&len),
                "{len} bytes in {room}"
            );
            let bytes = self.driver.read(at, size(len));
            let (head, data) = bytes.split_first_chunk().expect("a header");
            let header = Header::decode(head);
            assert_eq!(size(header.len), data.len(), "the length of the data");
            assert!(header.len <= DATA_MAX);
            assert_eq!((header.src_cid, header.dst_cid), (HOST_CID, u64::from(CID)));
            self.judge(&header);
        }
    }

    fn judge(&mut self, header: &Header) {
        let op = header.op.expect("an operation");
        let key = Key {
            host_port: header.src_port,
            guest_port: header.dst_port,
        };
        let known = self.known.entry(key).or_default();
        match op {
            Op::Reset => return,
            // A new connection; a guest may have answered before it was asked.
            Op::Request | Op::Response => known.received = 0,
            Op::Data => {
                assert!(header.len > 0);
                assert!(header.len <= known.room(), "{header:?} for {known:?}");
                known.received = known.received.wrapping_add(header.len);
            }
            Op::Shutdown | Op::CreditUpdate | Op::CreditRequest => {}
        }
        assert!(op == Op::Data || header.len == 0);
        assert_eq!(header.kind, TYPE_STREAM);
        assert_eq!(header.buf_alloc, BUFFER);
        assert!(header.fwd_cnt <= known.sent, "{header:?} for {known:?}");
    }
}

/// The operation of a small number; 0 and 8 are none.
fn number(op: u8) -> Option<Op> {
    let mut bytes = [0; HEADER_LEN];
    bytes[30] = op % 9;
    Header::decode(&bytes).op
}

/// A `u32` fits into every `usize` that KVM runs on.
fn size(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

/// Inputs to begin with: connections from either side, closed in every way.
pub(crate) fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    // Many buffers of 4096 bytes.
    let buffers = [BUFFERS, 3, 7];
    let send = |op: u8, ports: u8, flags: u8, data: u8| [SEND, op, ports, flags, 4, data];
    let call: &[u8] = b"\x02\x0dCONNECT 1024\n";
    let to_host: [&[u8]; 10] = [
        &buffers,
        &send(1, 2, 0, 0),
        &[ACCEPT],
        &send(5, 128, 0, 100),
        &[PROGRAM_READS, 200, 0, 0, PROGRAM_WRITES, 200, 1, 0, EVENTS],
        &send(6, 128, 0, 0),
        &send(7, 128, 0, 0),
        &[EVENTS],
        &send(4, 128, 3, 0),
        &[EVENTS],
    ];
    let to_guest: [&[u8]; 9] = [
        &buffers,
        call,
        &[EVENTS, EVENTS],
        &send(2, 128, 0, 0),
        &[PROGRAM_READS, 20, 0, 0, PROGRAM_WRITES, 0, 40, 0, EVENTS],
        &send(4, 128, 2, 0),
        &[PROGRAM_ENDS, 0, EVENTS, BUFFERS, 2, 3, EVENTS],
        &send(3, 128, 0, 0),
        &[RESET, 1],
    ];
    let flood: Vec<u8> = (0..12).flat_map(|_| send(5, 128, 0, 255)).collect();
    let slow: [&[u8]; 6] = [
        &buffers,
        &send(1, 2, 0, 0),
        &[ACCEPT],
        &flood,
        &[EVENTS],
        &buffers,
    ];
    let restored: [&[u8]; 6] = [
        &buffers,
        call,
        &[EVENTS, RESTORE, EVENT_BUFFER, 4],
        &[RAW, 44],
        &[0; 44],
        &[EVENT_OF, 1, 4],
    ];
    let stray: Vec<u8> = (0..140)
        .flat_map(|port| send(5, port % 100, 0, 1))
        .collect();
    vec![
        ("vsock", "to-host", to_host.concat()),
        ("vsock", "to-guest", to_guest.concat()),
        ("vsock", "slow", slow.concat()),
        ("vsock", "restored", restored.concat()),
        ("vsock", "stray", [&stray[..], &buffers].concat()),
    ]
}
