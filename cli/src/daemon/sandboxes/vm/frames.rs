//! The frames between a machine's file-system device and the daemon: the monitor and the server know nothing of
//! each other, and each has a codec of its own. Only here are both, so that one is tested with the other.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use floe_fs::Store;
use floe_fs::dispatch::wire::{Server, ServerOptions};
use floe_fs::id::WorkspaceName;
use floe_vmm::devices::virtio::fs::frame::{
    HEADER_LEN, Header, Kind, OUT_HEADER_LEN, REPLY_MAX, REQUEST_MAX,
};

const GETATTR: u32 = 3;
const INIT: u32 = 26;

/// A message as a guest's kernel builds it; its number is the tag of its frame here.
fn message(opcode: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
    let len = u32::try_from(40 + body.len()).unwrap();
    let mut message = [len.to_le_bytes(), opcode.to_le_bytes()].concat();
    message.extend(unique.to_le_bytes());
    message.extend(node.to_le_bytes());
    message.extend([0; 16]);
    message.extend(body);
    message
}

fn send(monitor: &mut UnixStream, kind: Kind, tag: u64, body: &[u8]) {
    let is_request = kind == Kind::Request;
    let header = Header {
        kind,
        body_len: u32::try_from(body.len()).unwrap(),
        queue: u16::from(is_request),
        tag,
        reply_max: if is_request { REPLY_MAX } else { 0 },
    };
    monitor.write_all(&header.encode()).unwrap();
    monitor.write_all(body).unwrap();
}

/// The answer to a request: its errno, and the length of what follows its header.
fn receive(monitor: &mut UnixStream, tag: u64) -> (i32, usize) {
    let mut header = [0; HEADER_LEN];
    monitor.read_exact(&mut header).unwrap();
    let header = Header::decode(&header).unwrap();
    let expected = Header {
        kind: Kind::Reply,
        body_len: header.body_len,
        queue: 0,
        tag,
        reply_max: 0,
    };
    assert_eq!(header, expected);
    let mut body = vec![0; usize::try_from(header.body_len).unwrap()];
    monitor.read_exact(&mut body).unwrap();
    assert_eq!(body[..4], header.body_len.to_le_bytes());
    assert_eq!(body[8..16], tag.to_le_bytes());
    let error = i32::from_le_bytes(body[4..8].try_into().unwrap());
    (-error, body.len() - OUT_HEADER_LEN)
}

#[test]
fn the_daemon_reads_the_monitors_frames_and_the_monitor_the_daemons() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("store");
    Store::init(&path).unwrap();
    let store = Store::open(&path).unwrap();
    let name = WorkspaceName::parse("w").unwrap();
    store.create_workspace(&name).unwrap();
    let view = store.open_live("w").unwrap();
    let (mut monitor, theirs) = UnixStream::pair().unwrap();
    let patience = Some(Duration::from_secs(60));
    monitor.set_read_timeout(patience).unwrap();
    let server = Server::new(view, ServerOptions::default());
    let serving = std::thread::spawn(move || server.serve(theirs));

    let mut offer = [7_u32.to_le_bytes(), 40_u32.to_le_bytes()].concat();
    offer.resize(64, 0);
    send(&mut monitor, Kind::Request, 1, &message(INIT, 1, 0, &offer));
    assert_eq!(receive(&mut monitor, 1), (0, 64));
    let getattr = |tag| message(GETATTR, tag, 1, &[0; 16]);
    send(&mut monitor, Kind::Request, 2, &getattr(2));
    assert_eq!(receive(&mut monitor, 2), (0, 104));

    // The longest that the monitor sends is a frame for the daemon, though no message.
    let longest = vec![0; usize::try_from(REQUEST_MAX).unwrap() - 40];
    let longest = message(GETATTR, 3, 1, &longest);
    send(&mut monitor, Kind::Request, 3, &longest);
    assert_eq!(receive(&mut monitor, 3), (libc::EINVAL, 0));

    // Has no answer itself; after it, INIT has to come again.
    send(&mut monitor, Kind::Reset, 0, &[]);
    send(&mut monitor, Kind::Request, 4, &getattr(4));
    assert_eq!(receive(&mut monitor, 4), (libc::EIO, 0));

    drop(monitor);
    serving.join().unwrap().unwrap();
}
