//! A device with its transport, memory and oracle: each step is made, and then judged.

use crate::devices::virtio::mmio::QueueState;
use vm_memory::{Bytes, GuestAddress};

use super::oracle::{Oracle, PARTS};
use super::peer::Peer;
use crate::devices::bus::BusDevice;
use crate::devices::events::{EventSet, HostEvents};
use crate::devices::virtio::VirtioDevice;
use crate::devices::virtio::mmio::{AGAIN_TOKEN, Transport};
use crate::devices::virtio::testing::line;
use crate::machine::memory::GuestMemory;

const NOTIFY: u64 = 0x50;
const STATUS: u64 = 0x70;
const DRIVER_OK: u32 = 4;
const NEEDS_RESET: u32 = 64;

pub(super) struct Bench<D: VirtioDevice, P: Peer<D>> {
    // None only while another takes its place.
    transport: Option<Transport<D>>,
    pub(super) memory: GuestMemory,
    pub(super) peer: P,
    oracle: Oracle,
    next_descriptor: u16,
    /// The device was restored, and not reset since.
    restored: bool,
}

impl<D: VirtioDevice, P: Peer<D>> Bench<D, P> {
    pub(super) fn new(device: D, peer: P) -> Self {
        let parts = PARTS.map(|(start, len)| (GuestAddress(start), len));
        let memory = GuestMemory::from_ranges(&parts).expect("memory");
        Self {
            transport: Some(Transport::new(device, memory.clone(), line())),
            memory,
            peer,
            oracle: Oracle::new(),
            next_descriptor: 0,
            restored: false,
        }
    }

    fn transport(&mut self) -> &mut Transport<D> {
        self.transport.as_mut().expect("there always is one")
    }

    /// The queues of a device that runs.
    fn queues(&mut self) -> Vec<QueueState> {
        let state = self.transport().save();
        if state.status & (DRIVER_OK | NEEDS_RESET) == DRIVER_OK {
            state.queues
        } else {
            Vec::new()
        }
    }

    /// Has the device do something, and judges it.
    pub(super) fn call<T>(&mut self, act: impl FnOnce(&mut Transport<D>) -> T) -> T {
        let queues = self.queues();
        self.oracle.before(queues);
        let old = self.read(STATUS);
        let result = act(self.transport());
        let new = self.read(STATUS);
        assert!(
            new == 0 || old & !new == 0,
            "status {old:#x} became {new:#x}"
        );
        let stopped = self.transport().fault().is_some();
        // Why a device stands still is not saved.
        let told = new & NEEDS_RESET != 0;
        assert!(stopped == told || told && self.restored);
        self.restored &= new != 0;
        let queues = self.queues();
        self.oracle.after(&self.memory, &queues);
        let transport = self.transport.as_ref().expect("there always is one");
        self.peer.check(transport.device());
        result
    }

    fn read(&mut self, register: u64) -> u32 {
        let mut bytes = [0; 4];
        let read = self.transport().read(register, &mut bytes);
        read.expect("reading never fails");
        u32::from_le_bytes(bytes)
    }

    /// Reads as many bytes as a vCPU may.
    pub(super) fn look(&mut self, offset: u64, len: usize) {
        let mut bytes = [0xaa; 8];
        let part = &mut bytes[..len.min(8)];
        self.call(|transport| transport.read(offset, part).expect("reading never fails"));
    }

    pub(super) fn set(&mut self, register: u64, value: u32) {
        let bytes = value.to_le_bytes();
        let calls = matches!(register, NOTIFY | STATUS) && !self.queues().is_empty();
        if calls {
            self.set_bytes(register, &bytes);
        } else {
            // The device is not called, so there is nothing to judge; most writes are of this kind.
            let written = self.transport().write(register, &bytes);
            written.expect("writing never fails");
        }
    }

    pub(super) fn set_bytes(&mut self, register: u64, bytes: &[u8]) {
        self.call(|transport| {
            transport
                .write(register, bytes)
                .expect("writing never fails")
        });
    }

    /// The device is told of an event, whether or not it is true.
    pub(super) fn ready(&mut self, token: u32, events: EventSet) {
        self.call(|transport| transport.ready(token, events));
    }

    pub(super) fn kick(&mut self) {
        self.call(Transport::kick);
        self.ready(AGAIN_TOKEN, EventSet::IN);
    }

    /// Another device takes its place, with what it saved.
    pub(super) fn restore(&mut self) {
        let state = self.transport().save();
        drop(self.transport.take());
        let device = self.peer.another();
        let mut transport = Transport::new(device, self.memory.clone(), line());
        let fits = transport.restore(state);
        assert_eq!(fits, Ok(()), "what a device saved is refused");
        self.transport = Some(transport);
        self.restored = true;
    }

    /// Where the parts of a queue are if nothing else was said: `(descriptors, available, used)`.
    pub(super) fn places(queue: usize) -> (u64, u64, u64) {
        let base = 0x400 + queue as u64 * 0x1000;
        (base, base + 0x400, base + 0x800)
    }

    /// The whole way to `DRIVER_OK`, with all queues of `1 << size` entries.
    pub(super) fn set_up(&mut self, features: u64, size: u32) {
        for status in [0, 1, 3] {
            self.set(STATUS, status);
        }
        let all = features | 1 << 32;
        for (half, value) in [(0, all & 0xffff_ffff), (1, all >> 32)] {
            self.set(0x24, half);
            self.set(0x20, u32::try_from(value).unwrap_or(0));
        }
        self.set(STATUS, 11);
        for queue in 0..self.transport().device().queue_sizes().len() {
            let (desc, avail, used) = Self::places(queue);
            self.write(avail, &[0; 4]);
            self.write(used, &[0; 4]);
            self.set(0x30, u32::try_from(queue).unwrap_or(0));
            self.set(0x38, 1 << size);
            for (register, address) in [(0x80, desc), (0x90, avail), (0xa0, used)] {
                self.set(register, u32::try_from(address).unwrap_or(0));
            }
            self.set(0x44, 1);
        }
        self.set(STATUS, 15);
        self.next_descriptor = 0;
    }

    /// Writes what lies in RAM.
    pub(super) fn write(&mut self, at: u64, bytes: &[u8]) {
        for (byte, address) in bytes.iter().zip(at..) {
            // Outside of it there is nothing to write to.
            if self.memory.write_obj(*byte, GuestAddress(address)).is_err() {
                break;
            }
            self.oracle.write(address, *byte);
        }
    }

    pub(super) fn descriptor(&mut self, queue: usize, index: u16, parts: (u64, u32, u16, u16)) {
        let (address, len, flags, next) = parts;
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(Self::places(queue).0 + u64::from(index) * 16, &bytes);
    }

    /// Makes a chain available in a queue of `size` entries that is where it usually is.
    pub(super) fn offer(&mut self, queue: usize, head: u16, size: u16) {
        let avail = Self::places(queue).1;
        let index: u16 = self.memory.read_obj(GuestAddress(avail + 2)).unwrap_or(0);
        let slot = avail + 4 + u64::from(index % size.max(1)) * 2;
        self.write(slot, &head.to_le_bytes());
        self.write(avail + 2, &index.wrapping_add(1).to_le_bytes());
    }

    /// Puts a chain of (address, bytes, device may write) into a queue of `size` entries.
    pub(super) fn chain(&mut self, queue: usize, size: u16, parts: &[(u64, u32, bool)]) {
        let size = size.max(1);
        let head = self.next_descriptor % size;
        for (at, (address, len, write)) in parts.iter().enumerate() {
            let index = self.next_descriptor % size;
            let next = (index + 1) % size;
            let flags = u16::from(at + 1 < parts.len()) | u16::from(*write) << 1;
            self.descriptor(queue, index, (*address, *len, flags, next));
            self.next_descriptor = next;
        }
        self.offer(queue, head, size);
    }

    /// A request as a file system's driver makes it.
    pub(super) fn request(&mut self, number: u8) {
        let at = 0x5000 + u64::from(number) * 0x80;
        let mut bytes = [0; 0x40];
        bytes[0] = 0x40;
        bytes[8] = number;
        self.write(at, &bytes);
        let room = 0x1_0000 + u64::from(number) * 0x400;
        self.chain(1, 16, &[(at, 0x40, false), (room, 0x200, true)]);
        self.set(0x50, 1);
    }

    /// The peer says something, and the device hears of it.
    pub(super) fn served(&mut self, bytes: &[u8]) {
        self.peer.say(bytes);
        self.ready(0, EventSet::IN);
    }
}
