//! The device between a guest and programs of the host that the tests play.

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::connection::BUFFER;
use super::packet::{NO_RECEIVE, NO_SEND};
use super::*;
use crate::devices::events::{EventLoop, HostEvents};
use crate::devices::virtio::mmio::Transport;
use crate::devices::virtio::testing::{Driver, line};

const CID: u32 = 3;
const BUFFERS: usize = 8;
const BUFFER_LEN: u32 = 8192;

/// A guest's driver: keeps receive buffers offered and sends packets.
struct Guest {
    driver: Driver<Vsock>,
    path: PathBuf,
    // By head: where the buffer is.
    buffers: BTreeMap<u32, u64>,
    inbox: VecDeque<(Header, Vec<u8>)>,
    _dir: tempfile::TempDir,
}

fn device(path: &std::path::Path) -> Vsock {
    let registrar = EventLoop::new().unwrap().registrar();
    Vsock::new(CID, HostSockets::bind(path).unwrap(), registrar).unwrap()
}

impl Guest {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("vsock");
        let mut guest = Self {
            driver: Driver::new(device(&path)),
            path,
            buffers: BTreeMap::new(),
            inbox: VecDeque::new(),
            _dir: dir,
        };
        guest.driver.start(0);
        for _ in 0..BUFFERS {
            let at = guest.driver.buffer(u64::from(BUFFER_LEN));
            guest.offer_buffer(at);
        }
        guest
    }

    fn offer_buffer(&mut self, at: u64) {
        let head = self.driver.add(RX, &[(at, BUFFER_LEN, true)]);
        self.buffers.insert(u32::from(head), at);
        self.driver.notify(0);
    }

    fn header(&self, op: Op, host_port: u32, guest_port: u32) -> Header {
        Header {
            src_cid: u64::from(CID),
            dst_cid: HOST_CID,
            src_port: guest_port,
            dst_port: host_port,
            len: 0,
            kind: TYPE_STREAM,
            op: Some(op),
            flags: 0,
            buf_alloc: 1 << 20,
            fwd_cnt: 0,
        }
    }

    fn send(&mut self, header: Header, data: &[u8]) {
        let header = Header {
            len: u32::try_from(data.len()).unwrap(),
            ..header
        };
        let mut packet = header.encode().to_vec();
        packet.extend(data);
        self.send_bytes(&packet);
    }

    fn send_bytes(&mut self, packet: &[u8]) {
        let at = 0x100_0000;
        self.driver.write(at, packet);
        let len = u32::try_from(packet.len()).unwrap();
        self.driver.add(TX, &[(at, len, false)]);
        self.driver.notify(1);
        self.driver.used(TX);
    }

    /// What the device sent, with fresh buffers offered for those it used.
    fn received(&mut self) -> Vec<(Header, Vec<u8>)> {
        let used = self.driver.used(RX);
        let mut packets = Vec::new();
        for (head, len) in used {
            let at = self.buffers.remove(&head).unwrap();
            let bytes = self.driver.read(at, len as usize);
            let (head, data) = bytes.split_first_chunk().unwrap();
            packets.push((Header::decode(head), data.to_vec()));
            self.offer_buffer(at);
        }
        packets
    }

    /// All sockets are looked at, as the event loop would.
    fn events(&mut self) {
        let vsock = self.driver.transport.device();
        let callers: Vec<u32> = vsock.callers.keys().copied().collect();
        let slots: Vec<(u32, Option<EventSet>)> = vsock
            .connections
            .iter()
            .map(|(token, slot)| (*token, slot.watched))
            .collect();
        self.driver.ready(LISTENER, EventSet::IN);
        for token in callers {
            self.driver.ready(token, EventSet::IN);
        }
        for (token, events) in slots {
            if let Some(events) = events.filter(|events| !events.is_empty()) {
                self.driver.ready(token, events);
            }
        }
    }

    /// The next packet of the device's, for which sockets are looked at if need be.
    fn next(&mut self) -> (Header, Vec<u8>) {
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            let packets = self.received();
            self.inbox.extend(packets);
            if let Some(packet) = self.inbox.pop_front() {
                return packet;
            }
            assert!(Instant::now() < deadline, "no packet");
            self.events();
        }
    }

    /// A program of the host calls port 1024 and the guest accepts.
    fn called(&mut self) -> (UnixStream, Header) {
        let mut program = UnixStream::connect(&self.path).unwrap();
        program
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        program.write_all(b"CONNECT 1024\n").unwrap();
        let (request, _) = self.next();
        assert_eq!(request.op, Some(Op::Request));
        assert_eq!(request.dst_port, 1024);
        let answer = self.header(Op::Response, request.src_port, 1024);
        self.send(answer, &[]);
        let ok = format!("OK {}\n", request.src_port);
        let mut line = vec![0; ok.len()];
        program.read_exact(&mut line).unwrap();
        assert_eq!(line, ok.as_bytes());
        (program, request)
    }
}

#[test]
fn a_program_of_the_host_reaches_a_port_of_the_guest() {
    let mut guest = Guest::new();
    assert_eq!(guest.driver.reg(0x100), CID);
    let (mut program, request) = guest.called();
    program.write_all(b"ping").unwrap();
    let (data, bytes) = guest.next();
    assert_eq!((data.op, bytes.as_slice()), (Some(Op::Data), &b"ping"[..]));
    guest.send(guest.header(Op::Data, request.src_port, 1024), b"pong");
    let mut answer = [0; 4];
    program.read_exact(&mut answer).unwrap();
    assert_eq!(&answer, b"pong");
    // The guest closes: the program sees the end of what was sent, and the guest is answered.
    let close = Header {
        flags: NO_RECEIVE | NO_SEND,
        ..guest.header(Op::Shutdown, request.src_port, 1024)
    };
    guest.send(close, &[]);
    assert_eq!(program.read(&mut answer).unwrap(), 0);
    assert_eq!(guest.next().0.op, Some(Op::Reset));
    assert_eq!(guest.driver.transport.device().connections(), 0);
}

#[test]
fn a_guest_reaches_a_listener_of_the_host() {
    let mut guest = Guest::new();
    let listener = UnixListener::bind(guest.path.with_file_name("vsock_77")).unwrap();
    guest.send(guest.header(Op::Request, 77, 5000), &[]);
    let (response, _) = guest.next();
    assert_eq!(response.op, Some(Op::Response));
    assert_eq!((response.src_port, response.dst_port), (77, 5000));
    assert_eq!(response.buf_alloc, BUFFER);
    let (mut program, _) = listener.accept().unwrap();
    guest.send(guest.header(Op::Data, 77, 5000), b"hello");
    let mut bytes = [0; 5];
    program.read_exact(&mut bytes).unwrap();
    drop(program);
    let (end, _) = guest.next();
    assert_eq!(end.op, Some(Op::Shutdown));
    assert_eq!(end.flags, NO_RECEIVE | NO_SEND);
    guest.send(guest.header(Op::Reset, 77, 5000), &[]);
    assert_eq!(guest.driver.transport.device().connections(), 0);
}

#[test]
fn a_port_where_nobody_listens_is_refused_on_both_sides() {
    let mut guest = Guest::new();
    guest.send(guest.header(Op::Request, 78, 5000), &[]);
    assert_eq!(guest.next().0.op, Some(Op::Reset));
    let mut program = UnixStream::connect(&guest.path).unwrap();
    program.write_all(b"CONNECT 9\n").unwrap();
    let (request, _) = guest.next();
    guest.send(guest.header(Op::Reset, request.src_port, 9), &[]);
    assert_eq!(program.read(&mut [0]).unwrap(), 0);
}

#[test]
fn what_a_program_sent_before_it_closed_arrives() {
    let mut guest = Guest::new();
    let (mut program, _) = guest.called();
    let data: Vec<u8> = (0..100_000u32).map(|n| n.to_le_bytes()[0]).collect();
    program.write_all(&data).unwrap();
    drop(program);
    let mut got = Vec::new();
    let mut ended = false;
    while !ended {
        guest.events();
        for (header, bytes) in guest.received() {
            match header.op {
                Some(Op::Data) => got.extend(bytes),
                Some(Op::Shutdown) => ended = header.flags == NO_RECEIVE | NO_SEND,
                other => panic!("{other:?}"),
            }
        }
    }
    assert_eq!(got, data);
}

#[test]
fn a_guest_without_credit_is_sent_nothing_and_asked() {
    let mut guest = Guest::new();
    let (mut program, request) = guest.called();
    let credit = |guest: &Guest, buf_alloc, fwd_cnt| Header {
        buf_alloc,
        fwd_cnt,
        ..guest.header(Op::CreditUpdate, request.src_port, 1024)
    };
    guest.send(credit(&guest, 10, 0), &[]);
    program.write_all(&[b'x'; 25]).unwrap();
    assert_eq!(guest.next().1.len(), 10);
    assert_eq!(guest.next().0.op, Some(Op::CreditRequest));
    for _ in 0..5 {
        guest.events();
    }
    assert!(guest.received().is_empty());
    guest.send(credit(&guest, 10, 10), &[]);
    assert_eq!(guest.next().1.len(), 10);
    assert_eq!(guest.next().0.op, Some(Op::CreditRequest));
    // A guest that lies about its counters gets nothing it has no room for.
    guest.send(credit(&guest, 10, 15), &[]);
    assert_eq!(guest.next().1.len(), 5);
}

#[test]
fn a_guest_that_sends_beyond_its_credit_is_cut_off() {
    let mut guest = Guest::new();
    let (_program, request) = guest.called();
    let block = vec![0; 60_000];
    let mut cut = false;
    for _ in 0..40 {
        guest.send(guest.header(Op::Data, request.src_port, 1024), &block);
        cut |= guest
            .received()
            .iter()
            .any(|(header, _)| header.op == Some(Op::Reset));
    }
    assert!(cut, "2.4 MB went into a socket that nobody reads");
    assert_eq!(guest.driver.transport.device().connections(), 0);
    assert!(guest.driver.fault().is_none());
}

#[test]
fn a_slow_host_gets_everything_and_the_guest_its_credit_back() {
    let mut guest = Guest::new();
    let (mut program, request) = guest.called();
    let (mut sent, mut told) = (0u32, 0u32);
    let total = 2_000_000;
    let reader = std::thread::spawn(move || {
        let mut all = vec![0; total as usize];
        program.read_exact(&mut all).unwrap();
        all.iter().filter(|byte| **byte == 7).count()
    });
    let deadline = Instant::now() + Duration::from_secs(20);
    while sent < total {
        assert!(Instant::now() < deadline);
        let room = BUFFER - sent.wrapping_sub(told);
        let len = room.min(50_000).min(total - sent);
        if len > 0 {
            let data = vec![7; len as usize];
            guest.send(guest.header(Op::Data, request.src_port, 1024), &data);
            sent += len;
        }
        guest.events();
        for (header, _) in guest.received() {
            // The program goes away once it has everything.
            assert!(matches!(header.op, Some(Op::CreditUpdate | Op::Shutdown)));
            told = header.fwd_cnt;
        }
    }
    while !reader.is_finished() {
        guest.events();
    }
    assert_eq!(reader.join().unwrap(), total as usize);
}

#[test]
fn stray_packets_are_answered_within_bounds() {
    let mut guest = Guest::new();
    for port in 0..1000 {
        guest.send(guest.header(Op::Data, port, port), b"?");
        assert!(guest.driver.transport.device().stray.len() <= STRAY_MAX);
    }
    // Resets are not answered with resets, and other guests' packets not at all.
    let mut guest = Guest::new();
    guest.send(guest.header(Op::Reset, 1, 1), &[]);
    let foreign = Header {
        src_cid: 99,
        ..guest.header(Op::Request, 1, 1)
    };
    guest.send(foreign, &[]);
    let datagram = Header {
        kind: 3,
        ..guest.header(Op::Request, 1, 1)
    };
    assert!(guest.received().is_empty());
    guest.send(datagram, &[]);
    assert_eq!(guest.next().0.op, Some(Op::Reset));
}

#[test]
fn packets_that_lie_about_their_length_stop_the_device() {
    for (len, bytes) in [(1u32, 44), (u32::MAX, 44), (DATA_MAX + 1, 70_000), (0, 43)] {
        let mut guest = Guest::new();
        let header = Header {
            len,
            ..guest.header(Op::Data, 1, 1)
        };
        let mut packet = header.encode().to_vec();
        packet.resize(bytes, 0);
        guest.send_bytes(&packet);
        assert!(guest.driver.fault().is_some(), "{len} in {bytes}");
    }
    let mut guest = Guest::new();
    guest.buffers.clear();
    guest.driver.start(0);
    guest.driver.add(RX, &[(0x100_0000, 44, true)]);
    guest.send(guest.header(Op::Request, 1, 1), &[]);
    assert!(guest.driver.fault().is_some());
}

#[test]
fn connections_are_limited_and_dead_ones_make_room() {
    let mut guest = Guest::new();
    let listener = UnixListener::bind(guest.path.with_file_name("vsock_77")).unwrap();
    let mut programs = Vec::new();
    for port in 0..u32::try_from(CONNECTIONS_MAX).unwrap() {
        guest.send(guest.header(Op::Request, 77, port), &[]);
        let answers = guest.received();
        assert_eq!(answers[0].0.op, Some(Op::Response), "{port}");
        programs.push(listener.accept().unwrap().0);
    }
    guest.send(guest.header(Op::Request, 77, 70_000), &[]);
    assert_eq!(guest.next().0.op, Some(Op::Reset));
    programs.pop();
    assert_eq!(guest.next().0.op, Some(Op::Shutdown));
    guest.send(guest.header(Op::Request, 77, 70_000), &[]);
    assert_eq!(guest.next().0.op, Some(Op::Response));
}

#[test]
fn random_packets_do_no_harm() {
    let mut seed = 0x1234_5678_9abc_def1u64;
    let mut random = move || {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed
    };
    let mut guest = Guest::new();
    let listener = UnixListener::bind(guest.path.with_file_name("vsock_1")).unwrap();
    listener.set_nonblocking(true).unwrap();
    let mut programs = VecDeque::new();
    for _ in 0..20_000 {
        let small = |value: u64, below: u64| u32::try_from(value % below).unwrap();
        let mut header = Header {
            src_port: small(random(), 3),
            dst_port: small(random(), 3),
            kind: 1 + u16::from(random() % 50 == 0),
            flags: small(random(), 4),
            buf_alloc: small(random(), 1 << 32),
            fwd_cnt: small(random(), 1 << 32),
            ..guest.header(Op::Request, 0, 0)
        };
        let ops = [
            Op::Request,
            Op::Response,
            Op::Reset,
            Op::Shutdown,
            Op::Data,
            Op::CreditUpdate,
            Op::CreditRequest,
        ];
        header.op = ops.get(usize::try_from(random() % 8).unwrap()).copied();
        let data = vec![1; usize::try_from(random() % 500).unwrap()];
        guest.send(header, &data);
        if let Ok((socket, _)) = listener.accept() {
            programs.push_back(socket);
        }
        if programs.len() > 3 {
            programs.pop_front();
        }
        guest.events();
        guest.received();
        assert!(guest.driver.fault().is_none());
    }
}

#[test]
fn after_a_restore_the_guest_is_told_that_its_connections_are_gone() {
    let mut guest = Guest::new();
    let (_program, _) = guest.called();
    let state = guest.driver.transport.save();
    assert!(state.device.reset_due);
    let second = device(&guest.path.with_file_name("second"));
    guest.driver.transport = Transport::new(second, guest.driver.memory.clone(), line());
    guest.driver.transport.restore(state.clone()).unwrap();
    assert_eq!(guest.driver.transport.save(), state);
    let at = guest.driver.buffer(4);
    guest.driver.write(at, &[0xff; 4]);
    guest.driver.add(EVENT, &[(at, 4, true)]);
    guest.driver.kick();
    assert_eq!(guest.driver.used(EVENT).len(), 1);
    assert_eq!(guest.driver.read(at, 4), [0; 4]);
    // It was told, and perhaps has not heard: who calls now has to wait, or the guest would give the call up with
    // the rest.
    assert!(guest.driver.transport.save().device.reset_due);
    let mut early = UnixStream::connect(guest.path.with_file_name("second")).unwrap();
    early.write_all(b"CONNECT 7\n").unwrap();
    guest.driver.transport.ready(LISTENER, EventSet::IN);
    assert_eq!(guest.driver.transport.device().connections(), 0);
    assert!(guest.driver.transport.device().callers.is_empty());
    guest.driver.add(EVENT, &[(at, 4, true)]);
    guest.driver.notify(u32::try_from(EVENT).unwrap());
    assert!(!guest.driver.transport.save().device.reset_due);
    guest.driver.transport.ready(LISTENER, EventSet::IN);
    assert_eq!(guest.driver.transport.device().callers.len(), 1);
}

#[test]
fn reserved_addresses_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    for (name, cid) in [("a", 0), ("b", 2), ("c", u32::MAX)] {
        let host = HostSockets::bind(&dir.path().join(name)).unwrap();
        let registrar = EventLoop::new().unwrap().registrar();
        assert!(matches!(
            Vsock::new(cid, host, registrar),
            Err(VsockError::Cid(_))
        ));
    }
}
