//! The steps of a driver as bytes, and inputs to begin with.

use super::bench::Bench;
use super::peer::Peer;
use crate::devices::events::EventSet;
use crate::devices::virtio::VirtioDevice;
use crate::fuzzing::Input;

/// Registers that do something.
const REGISTERS: [u64; 18] = [
    0x14, 0x20, 0x24, 0x30, 0x38, 0x44, 0x50, 0x64, 0x70, 0x80, 0x84, 0x90, 0x94, 0xa0, 0xa4, 0x10,
    0x60, 0x100,
];

const SET_UP: u8 = 0;
const REGISTER: u8 = 1;
const WRITE: u8 = 2;
const DESCRIPTOR: u8 = 3;
const WIDE_DESCRIPTOR: u8 = 4;
const OFFER: u8 = 5;
const NOTIFY: u8 = 6;
const CHAIN: u8 = 7;
const EVENT: u8 = 8;
const PEER: u8 = 9;
const RESTORE: u8 = 10;
const KICK: u8 = 11;
const LOOK: u8 = 12;
const ODD_REGISTER: u8 = 13;
const KINDS: u8 = 14;

impl<D: VirtioDevice, P: Peer<D>> Bench<D, P> {
    /// Makes the step that the input says.
    pub(super) fn step(&mut self, input: &mut Input<'_>) {
        match input.u8() % KINDS {
            SET_UP => {
                // Bits 28 and 29: indirect descriptors and the event index.
                let features = u64::from(input.u8() & 3) << 28;
                self.set_up(features, u32::from(input.u8() % 6));
            }
            REGISTER => {
                let register = REGISTERS[input.below(REGISTERS.len())];
                self.set(register, input.u32());
            }
            WRITE => {
                let (at, len) = (Self::address(input), usize::from(input.u8()));
                self.write(at, input.bytes(len));
            }
            DESCRIPTOR => {
                let (queue, index) = (input.below(3), u16::from(input.u8()));
                let (address, len) = (Self::address(input), u32::from(input.u16()));
                let (flags, next) = (u16::from(input.u8()), u16::from(input.u8()));
                self.descriptor(queue, index, (address, len, flags, next));
            }
            WIDE_DESCRIPTOR => {
                let (queue, index) = (input.below(3), u16::from(input.u8()));
                let (address, len) = (input.u64(), input.u32());
                self.descriptor(queue, index, (address, len, input.u16(), input.u16()));
            }
            OFFER => {
                let (queue, head) = (input.below(3), u16::from(input.u8()));
                self.offer(queue, head, 1 << (input.u8() % 6));
            }
            NOTIFY => self.set(0x50, u32::from(input.u8() % 8)),
            CHAIN => {
                let (queue, size) = (input.below(3), 1 << (input.u8() % 6));
                let mut parts = Vec::new();
                for _ in 0..=input.below(6) {
                    let kind = input.u8();
                    let (at, len) = (Self::address(input), u32::from(input.u16()));
                    if kind & 2 != 0 {
                        let given = usize::from(input.u8());
                        self.write(at, input.bytes(given));
                    }
                    parts.push((at, len, kind & 1 != 0));
                }
                self.chain(queue, size, &parts);
            }
            EVENT => {
                let token = match input.u8() {
                    255 => u32::MAX,
                    token => u32::from(token % 8),
                };
                self.ready(token, events(input.u8()));
            }
            PEER => self.peer.act(input),
            RESTORE => self.restore(),
            KICK => self.kick(),
            LOOK => {
                let offset = u64::from(input.u16() % 0x1000);
                self.look(offset, input.below(9));
            }
            _ => {
                let offset = u64::from(input.u16() % 0x1000);
                let len = input.below(9);
                self.set_bytes(offset, input.bytes(len));
            }
        }
    }

    /// Two bytes are an address in RAM or in the hole, mostly.
    fn address(input: &mut Input<'_>) -> u64 {
        u64::from(input.u16()) * 2
    }
}

/// The events of the bits of a byte.
pub(crate) fn events(bits: u8) -> EventSet {
    let all = [
        EventSet::IN,
        EventSet::OUT,
        EventSet::HANG_UP,
        EventSet::ERROR,
    ];
    let mut events = EventSet::empty();
    for (at, event) in all.into_iter().enumerate() {
        if bits & 1 << at != 0 {
            events |= event;
        }
    }
    events
}

/// A chain of parts (kind, address, bytes, contents).
fn chain(queue: u8, parts: &[(u8, u16, u16, &[u8])]) -> Vec<u8> {
    let mut bytes = vec![CHAIN, queue, 4, u8::try_from(parts.len() - 1).unwrap_or(0)];
    for (kind, address, len, contents) in parts {
        bytes.push(*kind);
        bytes.extend((address / 2).to_le_bytes());
        bytes.extend(len.to_le_bytes());
        if kind & 2 != 0 {
            bytes.push(u8::try_from(contents.len()).unwrap_or(0));
            bytes.extend(*contents);
        }
    }
    bytes
}

/// Inputs to begin with: each device set up, asked and answered.
pub(super) fn seeds() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let mut all = Vec::new();
    for (features, name) in [
        (0, "rng"),
        (1, "rng-indirect"),
        (2, "rng-event"),
        (3, "rng-all"),
    ] {
        let parts: [&[u8]; 6] = [
            &[0, SET_UP, features, 4],
            &chain(0, &[(1, 0x4000, 64, b""), (1, 0x5000, 10, b"")]),
            &[NOTIFY, 0],
            // An indirect table at 0x6000 with one descriptor.
            &[
                WRITE, 0, 0x30, 16, 0, 0x50, 0, 0, 0, 0, 0, 0, 32, 0, 0, 0, 2, 0, 0, 0,
            ],
            &[DESCRIPTOR, 0, 9, 0, 0x30, 16, 0, 4, 0, OFFER, 0, 9, 4],
            &[NOTIFY, 0, RESTORE, KICK, LOOK, 0x70, 0, 4, NOTIFY, 0],
        ];
        all.push(("virtqueue", name, parts.concat()));
    }
    let mut request = [0; 40];
    request[0] = 40;
    request[8] = 7;
    let ask = chain(1, &[(2, 0x4000, 40, &request), (1, 0x5000, 100, b"")]);
    let fs: [&[u8]; 7] = [
        &[1, SET_UP, 0, 4],
        &ask,
        &[NOTIFY, 1, PEER, 3, 0, 50, 0, 0, EVENT, 0, 1],
        &ask,
        &[NOTIFY, 1, RESTORE, KICK, NOTIFY, 1],
        &chain(0, &[(2, 0x4000, 40, &request)]),
        &[NOTIFY, 0, REGISTER, 8, 0, 0, 0, 0, PEER, 0, EVENT, 0, 4],
    ];
    all.push(("virtqueue", "fs", fs.concat()));
    let mut packet = [0; 44];
    (packet[0], packet[8], packet[16], packet[20]) = (3, 2, 9, 9);
    (packet[28], packet[30]) = (1, 1);
    let mut vsock = vec![2, SET_UP, 2, 4];
    for _ in 0..3 {
        vsock.extend(chain(0, &[(1, 0x5000, 4096, b"")]));
    }
    vsock.extend(chain(1, &[(2, 0x4000, 44, &packet)]));
    vsock.extend([NOTIFY, 0, NOTIFY, 1, PEER, 13]);
    vsock.extend(b"CONNECT 1024\n");
    vsock.extend([EVENT, 0, 1, EVENT, 1, 1, RESTORE, KICK]);
    vsock.extend(chain(2, &[(1, 0x6000, 4, b"")]));
    vsock.extend([NOTIFY, 2, ODD_REGISTER, 0, 1, 2, 0, 0]);
    vsock.extend([WIDE_DESCRIPTOR, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 0]);
    all.push(("virtqueue", "vsock", vsock));
    all.extend(replies());
    all
}

/// Replies of a server: a good one, one in pieces, and one to nothing.
fn replies() -> Vec<(&'static str, &'static str, Vec<u8>)> {
    let reply = |tag: u8, unique: u8, len: u8| {
        let mut bytes = vec![0; usize::from(len) + 24];
        (bytes[0], bytes[4], bytes[8]) = (len + 24, 2, tag);
        (bytes[24], bytes[32]) = (len, unique);
        bytes
    };
    let piece = |bytes: &[u8]| {
        let mut framed = u16::try_from(bytes.len())
            .unwrap_or(0)
            .to_le_bytes()
            .to_vec();
        framed.extend(bytes);
        framed
    };
    // The three resets of the setting up took no tags that were told; each took a number.
    let good: Vec<u8> = (0..6)
        .flat_map(|tag| piece(&reply(tag + 1, tag, 40)))
        .collect();
    let whole = reply(2, 0, 60);
    let parts = [
        piece(&whole[..10]),
        piece(&whole[10..50]),
        piece(&whole[50..]),
    ];
    vec![
        ("fs_reply", "good", [&[5], &good[..]].concat()),
        ("fs_reply", "pieces", [&[2], &parts.concat()[..]].concat()),
        (
            "fs_reply",
            "none",
            [&[1], &piece(&reply(99, 1, 16))[..]].concat(),
        ),
    ]
}
