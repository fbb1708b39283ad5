//! Who is at the other end of a device, on the host: nobody, programs at a socket, a file system's server.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;

use crate::devices::events::EventLoop;
use crate::devices::virtio::VirtioDevice;
use crate::devices::virtio::fs::frame::{
    HEADER_LEN, Header, IN_HEADER_LEN, Kind, OUT_HEADER_LEN, REPLY_MAX, REQUEST_MAX,
};
use crate::devices::virtio::fs::{Fs, FsTag, IN_FLIGHT_MAX};
use crate::devices::virtio::rng::Rng;
use crate::devices::virtio::vsock::{CONNECTIONS_MAX, HostSockets, Vsock};
use crate::fuzzing::Input;

/// The other end of a device.
pub(super) trait Peer<D: VirtioDevice> {
    /// Does something that the input says.
    fn act(&mut self, input: &mut Input<'_>);
    /// Panics if the device holds more than it may, or has said what it must not.
    fn check(&mut self, device: &D);
    /// A new device, as a monitor has that is to be restored. The one before it is gone.
    fn another(&mut self) -> D;
    /// Says something to the device, however little sense it makes.
    fn say(&mut self, _: &[u8]) {}
}

pub(super) struct Nobody;

impl Peer<Rng> for Nobody {
    fn act(&mut self, _: &mut Input<'_>) {}

    fn check(&mut self, _: &Rng) {}

    fn another(&mut self) -> Rng {
        Rng
    }
}

/// Programs that call the guest.
pub(super) struct VsockPeer {
    dir: tempfile::TempDir,
    devices: u32,
    programs: Vec<UnixStream>,
}

impl VsockPeer {
    pub(super) fn new() -> (Self, Vsock) {
        let mut peer = Self {
            dir: tempfile::tempdir().expect("a directory"),
            devices: 0,
            programs: Vec::new(),
        };
        let device = peer.another();
        (peer, device)
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join(self.devices.to_string())
    }
}

impl Peer<Vsock> for VsockPeer {
    fn act(&mut self, input: &mut Input<'_>) {
        let len = input.below(64);
        let bytes = input.bytes(len);
        if self.programs.len() < 8
            && let Ok(mut program) = UnixStream::connect(self.path())
            && program.write_all(bytes).is_ok()
        {
            self.programs.push(program);
        }
    }

    fn check(&mut self, device: &Vsock) {
        assert!(device.connections() <= CONNECTIONS_MAX);
        device.check();
    }

    fn another(&mut self) -> Vsock {
        self.devices += 1;
        let registrar = EventLoop::new().expect("descriptors").registrar();
        let host = HostSockets::bind(&self.path()).expect("a socket");
        Vsock::new(3, host, registrar).expect("a device")
    }
}

/// A server that has the requests, and answers as the input says.
pub(super) struct FsPeer {
    server: Option<UnixStream>,
    received: Vec<u8>,
    requests: Vec<(Header, u64)>,
    last_tag: u64,
}

impl FsPeer {
    pub(super) fn new() -> (Self, Fs) {
        let mut peer = Self {
            server: None,
            received: Vec::new(),
            requests: Vec::new(),
            last_tag: 0,
        };
        let device = peer.another();
        (peer, device)
    }

    /// Takes what the device sent, and checks it.
    fn receive(&mut self) {
        let Some(server) = &mut self.server else {
            return;
        };
        let mut buffer = [0; 16 << 10];
        loop {
            match server.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(len) => self.received.extend(&buffer[..len]),
            }
        }
        while let Some((head, tail)) = self.received.split_first_chunk::<HEADER_LEN>() {
            let header = Header::decode(head).expect("a frame");
            let Some((body, rest)) = tail.split_at_checked(size(header.body_len)) else {
                break;
            };
            assert!(header.tag > self.last_tag, "tags only grow");
            self.last_tag = header.tag;
            match header.kind {
                Kind::Request => {
                    assert!((IN_HEADER_LEN..=REQUEST_MAX).contains(&header.body_len));
                    assert!(header.reply_max <= REPLY_MAX);
                    let unique = body[8..16].try_into().map_or(0, u64::from_le_bytes);
                    self.requests.push((header, unique));
                }
                Kind::Reset => {
                    assert_eq!(header.body_len, 0);
                    self.requests.clear();
                }
                Kind::Reply => panic!("a device does not answer"),
            }
            self.received = rest.to_vec();
        }
    }

    /// An answer to a request, or nearly one.
    fn answer(&mut self, input: &mut Input<'_>) {
        if self.requests.is_empty() {
            return;
        }
        let at = input.below(self.requests.len());
        let (request, unique) = self.requests.remove(at);
        let room = size(request.reply_max).saturating_sub(OUT_HEADER_LEN);
        let len = usize::from(input.u16()) % (room + 1);
        let spoil = input.u8();
        let body_len = u32::try_from(OUT_HEADER_LEN + len).unwrap_or(0);
        let header = Header {
            kind: Kind::Reply,
            body_len,
            queue: 0,
            tag: request.tag + u64::from(spoil == 1),
            reply_max: 0,
        };
        let mut bytes = header.encode().to_vec();
        bytes.extend((body_len + u32::from(spoil == 2)).to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend((unique ^ u64::from(spoil == 3)).to_le_bytes());
        bytes.resize(HEADER_LEN + OUT_HEADER_LEN + len, 0x5a);
        if spoil == 4 {
            bytes.truncate(usize::from(input.u8()));
        }
        self.say(&bytes);
    }
}

impl Peer<Fs> for FsPeer {
    fn act(&mut self, input: &mut Input<'_>) {
        self.receive();
        match input.below(8) {
            0 => self.server = None,
            1 => {
                let len = usize::from(input.u8());
                self.say(input.bytes(len));
            }
            2 => self.answer(&mut Input(&[])),
            _ => self.answer(input),
        }
    }

    fn check(&mut self, device: &Fs) {
        assert!(device.in_flight() <= IN_FLIGHT_MAX);
        self.receive();
    }

    fn another(&mut self) -> Fs {
        let (near, far) = UnixStream::pair().expect("sockets");
        far.set_nonblocking(true).expect("a socket");
        let registrar = EventLoop::new().expect("descriptors").registrar();
        self.server = Some(far);
        self.received.clear();
        self.requests.clear();
        self.last_tag = 0;
        Fs::new(FsTag::new("fuzz").expect("a tag"), near, registrar).expect("a device")
    }

    fn say(&mut self, bytes: &[u8]) {
        let written = self.server.as_mut().map(|server| server.write(bytes));
        if let Some(Err(error)) = written {
            let gone = [
                ErrorKind::BrokenPipe,
                ErrorKind::WouldBlock,
                ErrorKind::ConnectionReset,
            ];
            assert!(gone.contains(&error.kind()), "{error}");
        }
    }
}

/// A `u32` fits into every `usize` that KVM runs on.
fn size(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}
