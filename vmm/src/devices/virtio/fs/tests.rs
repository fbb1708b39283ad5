//! The device between a driver and a server that the tests play.

use std::io::{Read, Write};
use std::time::Duration;

use super::*;
use crate::devices::events::EventLoop;
use crate::devices::virtio::testing::Driver;

struct Server(UnixStream);

impl Server {
    fn request(&mut self) -> (Header, Vec<u8>) {
        let mut head = [0; HEADER_LEN];
        self.0.read_exact(&mut head).unwrap();
        let header = Header::decode(&head).unwrap();
        let mut body = vec![0; header.body_len as usize];
        self.0.read_exact(&mut body).unwrap();
        (header, body)
    }

    fn send(&mut self, tag: u64, body: &[u8]) {
        let header = Header {
            kind: Kind::Reply,
            body_len: u32::try_from(body.len()).unwrap(),
            queue: 0,
            tag,
            reply_max: 0,
        };
        self.0.write_all(&header.encode()).unwrap();
        self.0.write_all(body).unwrap();
    }
}

fn setup() -> (Driver<Fs>, Server) {
    let (near, far) = UnixStream::pair().unwrap();
    far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let registrar = EventLoop::new().unwrap().registrar();
    let fs = Fs::new(FsTag::new("workspace").unwrap(), near, registrar).unwrap();
    let mut driver = Driver::new(fs);
    driver.start(0);
    (driver, Server(far))
}

/// A FUSE request of `len` bytes.
fn fuse_in(len: usize, unique: u64) -> Vec<u8> {
    let mut bytes = vec![0x77; len];
    bytes[..4].copy_from_slice(&u32::try_from(len).unwrap().to_le_bytes());
    bytes[8..16].copy_from_slice(&unique.to_le_bytes());
    bytes
}

fn fuse_out(len: usize, unique: u64) -> Vec<u8> {
    let mut bytes = fuse_in(len, unique);
    bytes[4..8].copy_from_slice(&0u32.to_le_bytes());
    bytes
}

/// Offers a request with room for `room` bytes of reply; where that is.
fn ask(driver: &mut Driver<Fs>, queue: usize, request: &[u8], room: u32) -> u64 {
    let at = driver.buffer(request.len() as u64);
    driver.write(at, request);
    let reply = driver.buffer(u64::from(room));
    let mut parts = vec![(at, u32::try_from(request.len()).unwrap(), false)];
    if room > 0 {
        parts.push((reply, room, true));
    }
    driver.add(queue, &parts);
    driver.notify(u32::try_from(queue).unwrap());
    reply
}

#[test]
fn the_configuration_has_the_tag_and_one_queue() {
    let (mut driver, _server) = setup();
    assert_eq!(driver.reg(0x100), u32::from_le_bytes(*b"work"));
    assert_eq!(driver.reg(0x124), 1);
    for tag in ["", "a\0b", &"x".repeat(37)] {
        assert!(FsTag::new(tag).is_err());
    }
}

#[test]
fn requests_are_answered_in_the_servers_order() {
    let (mut driver, mut server) = setup();
    let first = ask(&mut driver, 1, &fuse_in(40, 7), 64);
    let second = ask(&mut driver, 1, &fuse_in(48, 8), 64);
    let (one, body) = server.request();
    assert_eq!(body, fuse_in(40, 7));
    assert_eq!((one.queue, one.reply_max), (1, 64));
    let (two, _) = server.request();
    assert!(two.tag > one.tag);
    server.send(two.tag, &fuse_out(20, 8));
    server.send(one.tag, &fuse_out(64, 7));
    driver.ready(link::TOKEN, EventSet::IN);
    assert_eq!(driver.used(1), [(2, 20), (0, 64)]);
    assert_eq!(driver.read(first, 64), fuse_out(64, 7));
    assert_eq!(driver.read(second, 20), fuse_out(20, 8));
    assert_eq!(driver.read(second + 20, 44), [0; 44]);
    assert_eq!(driver.transport.device().in_flight(), 0);
}

#[test]
fn a_forget_is_given_back_at_once() {
    let (mut driver, mut server) = setup();
    ask(&mut driver, 0, &fuse_in(48, 0), 0);
    assert_eq!(driver.used(0), [(0, 0)]);
    let (header, _) = server.request();
    assert_eq!((header.queue, header.reply_max), (0, 0));
}

#[test]
fn a_full_socket_holds_requests_in_the_queue_and_loses_none() {
    let (mut driver, mut server) = setup();
    let big = fuse_in(1 << 20, 1);
    for _ in 0..4 {
        ask(&mut driver, 1, &big, 16);
    }
    assert!(driver.transport.device().link.as_ref().unwrap().is_full());
    assert!(driver.transport.device().in_flight() < 4);
    let reader = std::thread::spawn(move || {
        for _ in 0..4 {
            let (header, body) = server.request();
            assert_eq!(body.len(), 1 << 20);
            server.send(header.tag, &fuse_out(16, 1));
        }
        server
    });
    let mut used = 0;
    while used < 4 {
        driver.ready(link::TOKEN, EventSet::OUT | EventSet::IN);
        used += driver.used(1).len();
        assert!(driver.fault().is_none());
    }
    reader.join().unwrap();
}

#[test]
fn requests_of_impossible_length_stop_the_device() {
    for len in [1, 39] {
        let (mut driver, _server) = setup();
        ask(&mut driver, 1, &vec![0; len], 16);
        assert!(driver.fault().unwrap().contains("no FUSE request"));
    }
    let (mut driver, _server) = setup();
    ask(&mut driver, 1, &fuse_in(40, 9), 15);
    assert!(driver.fault().unwrap().contains("no room"));
    let (mut driver, _server) = setup();
    driver.add(1, &[(0, 1 << 20, false), (0, 1 << 20, false)]);
    driver.notify(1);
    assert!(driver.fault().is_some());
}

#[test]
fn without_a_server_every_request_fails_and_none_hangs() {
    let (mut driver, server) = setup();
    let waiting = ask(&mut driver, 1, &fuse_in(40, 5), 64);
    drop(server);
    driver.ready(link::TOKEN, EventSet::IN | EventSet::HANG_UP);
    let late = ask(&mut driver, 1, &fuse_in(40, 6), 64);
    ask(&mut driver, 0, &fuse_in(48, 0), 0);
    assert_eq!(driver.used(1), [(0, 16), (2, 16)]);
    assert_eq!(driver.used(0), [(0, 0)]);
    for (at, unique) in [(waiting, 5), (late, 6)] {
        let reply = driver.read(at, 16);
        assert_eq!(unique_of(&reply), unique);
        assert_eq!(reply[4..8], (-libc::ENOTCONN).to_le_bytes());
    }
    assert!(driver.fault().is_none());
}

#[test]
fn a_server_that_breaks_the_protocol_is_dropped_and_its_requests_fail() {
    type Breach = fn(&mut Server, u64);
    let breaches: [Breach; 6] = [
        |server, tag| server.send(tag + 1, &fuse_out(16, 5)),
        |server, tag| server.send(tag, &fuse_out(16, 6)),
        |server, tag| server.send(tag, &fuse_out(65, 5)),
        |server, tag| server.send(tag, &fuse_out(32, 5)[..20]),
        |server, tag| server.send(tag, &[0; 8]),
        |server, _| server.0.write_all(&[0xff; 64]).unwrap(),
    ];
    for (number, breach) in breaches.iter().enumerate() {
        let (mut driver, mut server) = setup();
        let at = ask(&mut driver, 1, &fuse_in(40, 5), 64);
        let (header, _) = server.request();
        breach(&mut server, header.tag);
        driver.ready(link::TOKEN, EventSet::IN);
        assert_eq!(driver.used(1), [(0, 16)], "breach {number}");
        assert_eq!(unique_of(&driver.read(at, 16)), 5);
        assert!(driver.transport.device().link.is_none());
        assert!(driver.fault().is_none(), "the device works on");
    }
}

#[test]
fn a_reset_tells_the_server_and_late_replies_touch_nothing() {
    let (mut driver, mut server) = setup();
    let at = ask(&mut driver, 1, &fuse_in(40, 5), 64);
    let (old, _) = server.request();
    driver.set(0x70, 0);
    let (reset, _) = server.request();
    assert_eq!(reset.kind, Kind::Reset);
    server.send(old.tag, &fuse_out(64, 5));
    driver.ready(link::TOKEN, EventSet::IN);
    driver.start(0);
    server.send(old.tag, &fuse_out(64, 5));
    driver.ready(link::TOKEN, EventSet::IN);
    assert_eq!(driver.read(at, 64), [0; 64]);
    ask(&mut driver, 1, &fuse_in(40, 6), 64);
    let (new, _) = server.request();
    assert_eq!(new.kind, Kind::Request);
    assert!(new.tag > reset.tag);
}

/// Another device with the saved state of `driver`'s, on the same memory, and its server.
fn restored(driver: &Driver<Fs>) -> (Driver<Fs>, Server) {
    let (mut second, _) = setup();
    let (near, far) = UnixStream::pair().unwrap();
    far.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
    let registrar = EventLoop::new().unwrap().registrar();
    let fs = Fs::new(FsTag::new("workspace").unwrap(), near, registrar).unwrap();
    second.transport = crate::devices::virtio::mmio::Transport::new(
        fs,
        driver.memory.clone(),
        crate::devices::virtio::testing::line(),
    );
    let state = driver.transport.save();
    second.transport.restore(state.clone()).unwrap();
    assert_eq!(second.transport.save(), state);
    second.kick();
    (second, Server(far))
}

#[test]
fn requests_under_way_at_a_save_are_answered_with_an_error_after_the_restore() {
    let (mut driver, mut server) = setup();
    let at = ask(&mut driver, 1, &fuse_in(40, 5), 64);
    server.request();
    let state = driver.transport.save();
    assert_eq!(state.device.in_flight.len(), 1);
    let _restored = restored(&driver);
    assert_eq!(driver.used(1), [(0, 16)]);
    assert_eq!(driver.read(at, 16)[4..8], (-libc::EIO).to_le_bytes());
}

#[test]
fn a_reset_after_a_restore_tells_the_server() {
    let (driver, _server) = setup();
    let (mut second, mut server) = restored(&driver);
    second.set(0x70, 0);
    assert_eq!(server.request().0.kind, Kind::Reset);
}

#[test]
fn a_driver_that_only_probes_tells_the_server_nothing() {
    let (mut driver, mut server) = setup();
    driver.set(0x70, 0);
    driver.start(0);
    ask(&mut driver, 1, &fuse_in(40, 5), 64);
    assert_eq!(server.request().0.kind, Kind::Request);
}

#[test]
fn a_large_request_arrives_whole_and_its_buffer_is_not_kept() {
    let (mut driver, mut server) = setup();
    let mut large = fuse_in(1 << 20, 1);
    for (at, byte) in large[40..].iter_mut().enumerate() {
        *byte = u8::try_from(at % 251).unwrap();
    }
    let small = fuse_in(40, 2);
    let reader = std::thread::spawn(move || (server.request().1, server.request().1));
    ask(&mut driver, 1, &large, 16);
    ask(&mut driver, 1, &small, 16);
    while !reader.is_finished() {
        driver.ready(link::TOKEN, EventSet::OUT);
    }
    assert_eq!(reader.join().unwrap(), (large, small));
    assert!(driver.transport.device().frame.capacity() <= FRAME_KEPT);
}

#[test]
fn a_request_that_waits_in_either_queue_is_taken_when_there_is_room() {
    let (mut driver, mut server) = setup();
    let big = fuse_in(1 << 20, 1);
    ask(&mut driver, 1, &big, 16);
    assert!(driver.transport.device().link.as_ref().unwrap().is_full());
    ask(&mut driver, 0, &fuse_in(48, 0), 0);
    ask(&mut driver, 1, &fuse_in(40, 2), 16);
    assert!(driver.used(0).is_empty(), "held");
    let reader = std::thread::spawn(move || {
        let lengths = [(); 3].map(|()| server.request().1.len());
        (server, lengths)
    });
    while !reader.is_finished() {
        driver.ready(link::TOKEN, EventSet::OUT);
    }
    let (_server, lengths) = reader.join().unwrap();
    assert_eq!(lengths, [1 << 20, 48, 40]);
    assert_eq!(driver.used(0), [(0, 0)]);
    assert!(!driver.transport.device().held);
}
