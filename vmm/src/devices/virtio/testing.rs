//! A driver for tests: sets a device up through its registers and puts chains into its queues, as a
//! guest would, well or badly.

use std::sync::{Arc, Mutex};

use vm_memory::{Bytes, GuestAddress};

use super::mmio::{AGAIN_TOKEN, Transport};
use super::{Fault, VirtioDevice};
use crate::devices::bus::BusDevice;
use crate::devices::events::{EventSet, HostEvents};
use crate::devices::ioapic::{IoApic, IrqLine, MsiSink};
use crate::machine::memory::{GuestMemory, RamSize, map};

pub(crate) const SIZE: u16 = 16;
const RINGS: u64 = 0x10_0000;
const RING_STEP: u64 = 0x1_0000;
const BUFFERS: u64 = 0x30_0000;

struct Nowhere;

impl MsiSink for Nowhere {
    fn send(&self, _: u32, _: u32) -> std::io::Result<()> {
        Ok(())
    }
}

/// An interrupt line that leads nowhere.
pub(crate) fn line() -> IrqLine {
    IrqLine::new(Arc::new(Mutex::new(IoApic::new(Arc::new(Nowhere)))), 5)
}

struct Ring {
    next_desc: u16,
    avail: u16,
    seen: u16,
}

/// The driver with its device.
pub(crate) struct Driver<D: VirtioDevice> {
    pub(crate) transport: Transport<D>,
    pub(crate) memory: GuestMemory,
    rings: Vec<Ring>,
    next_buffer: u64,
}

impl<D: VirtioDevice> Driver<D> {
    pub(crate) fn new(device: D) -> Self {
        let memory = map(RamSize::from_mib(32).unwrap()).unwrap();
        Self {
            transport: Transport::new(device, memory.clone(), line()),
            memory,
            rings: Vec::new(),
            next_buffer: BUFFERS,
        }
    }

    pub(crate) fn reg(&mut self, offset: u64) -> u32 {
        let mut data = [0; 4];
        self.transport.read(offset, &mut data).unwrap();
        u32::from_le_bytes(data)
    }

    pub(crate) fn set(&mut self, offset: u64, value: u32) {
        self.transport.write(offset, &value.to_le_bytes()).unwrap();
    }

    pub(crate) fn desc(queue: usize) -> u64 {
        RINGS + queue as u64 * RING_STEP
    }

    pub(crate) fn avail(queue: usize) -> u64 {
        Self::desc(queue) + 0x4000
    }

    pub(crate) fn used_ring(queue: usize) -> u64 {
        Self::desc(queue) + 0x8000
    }

    /// Up to `FEATURES_OK` with version 1 and `features`.
    pub(crate) fn negotiate(&mut self, features: u64) {
        self.set(0x70, 0);
        self.set(0x70, 1);
        self.set(0x70, 3);
        let all = features | 1 << 32;
        for half in 0..2 {
            self.set(0x24, half);
            self.set(
                0x20,
                u32::try_from(all >> (32 * half) & 0xffff_ffff).unwrap(),
            );
        }
        self.set(0x70, 11);
    }

    pub(crate) fn set_queue(&mut self, queue: usize) {
        self.set(0x30, u32::try_from(queue).unwrap());
        self.set(0x38, u32::from(SIZE));
        let places = [
            (0x80, Self::desc(queue)),
            (0x90, Self::avail(queue)),
            (0xa0, Self::used_ring(queue)),
        ];
        for (register, address) in places {
            self.set(register, u32::try_from(address).unwrap());
        }
        self.set(0x44, 1);
    }

    /// The whole way to `DRIVER_OK`, with every queue.
    pub(crate) fn start(&mut self, features: u64) {
        self.negotiate(features);
        let queues = self.transport.device().queue_sizes().len();
        self.rings.clear();
        for queue in 0..queues {
            self.memory
                .write_slice(&[0; 0xc000], GuestAddress(Self::desc(queue)))
                .unwrap();
            self.set_queue(queue);
            self.rings.push(Ring {
                next_desc: 0,
                avail: 0,
                seen: 0,
            });
        }
        self.set(0x70, 15);
    }

    /// What comes after a restore: the kick, and the event loop's first turn.
    pub(crate) fn kick(&mut self) {
        self.transport.kick();
        self.transport.ready(AGAIN_TOKEN, EventSet::IN);
    }

    /// Zeroed memory of `len` bytes that no other buffer has.
    pub(crate) fn buffer(&mut self, len: u64) -> u64 {
        let at = self.next_buffer;
        self.next_buffer += len.next_multiple_of(64);
        at
    }

    pub(crate) fn write(&self, at: u64, bytes: &[u8]) {
        self.memory.write_slice(bytes, GuestAddress(at)).unwrap();
    }

    pub(crate) fn read(&self, at: u64, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.memory
            .read_slice(&mut bytes, GuestAddress(at))
            .unwrap();
        bytes
    }

    /// Writes descriptor `index`.
    pub(crate) fn descriptor(
        &self,
        queue: usize,
        index: u16,
        (address, len): (u64, u32),
        flags: u16,
        next: u16,
    ) {
        let mut bytes = address.to_le_bytes().to_vec();
        bytes.extend(len.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(next.to_le_bytes());
        self.write(Self::desc(queue) + u64::from(index) * 16, &bytes);
    }

    /// Makes the chain that starts at descriptor `head` available.
    pub(crate) fn offer(&mut self, queue: usize, head: u16) {
        let ring = &mut self.rings[queue];
        let slot = Self::avail(queue) + 4 + u64::from(ring.avail % SIZE) * 2;
        ring.avail = ring.avail.wrapping_add(1);
        let index = ring.avail;
        self.write(slot, &head.to_le_bytes());
        self.write(Self::avail(queue) + 2, &index.to_le_bytes());
    }

    /// Offers a chain of (address, bytes, device may write). Returns its head.
    pub(crate) fn add(&mut self, queue: usize, parts: &[(u64, u32, bool)]) -> u16 {
        let head = self.rings[queue].next_desc;
        for (at, (address, len, write)) in parts.iter().enumerate() {
            let index = self.rings[queue].next_desc;
            let next = (index + 1) % SIZE;
            let flags = u16::from(at + 1 < parts.len()) | u16::from(*write) << 1;
            self.descriptor(queue, index, (*address, *len), flags, next);
            self.rings[queue].next_desc = next;
        }
        self.offer(queue, head);
        head
    }

    pub(crate) fn notify(&mut self, queue: u32) {
        self.set(0x50, queue);
    }

    pub(crate) fn ready(&mut self, token: u32, events: EventSet) {
        self.transport.ready(token, events);
    }

    /// What the device used since the last call, as (head, bytes written).
    pub(crate) fn used(&mut self, queue: usize) -> Vec<(u32, u32)> {
        let ring = Self::used_ring(queue);
        let index: u16 = self.memory.read_obj(GuestAddress(ring + 2)).unwrap();
        let mut found = Vec::new();
        while self.rings[queue].seen != index {
            let slot = ring + 4 + u64::from(self.rings[queue].seen % SIZE) * 8;
            let head = self.memory.read_obj(GuestAddress(slot)).unwrap();
            let len = self.memory.read_obj(GuestAddress(slot + 4)).unwrap();
            found.push((head, len));
            self.rings[queue].seen = self.rings[queue].seen.wrapping_add(1);
        }
        found
    }

    pub(crate) fn fault(&self) -> Option<String> {
        self.transport.fault().map(Fault::to_string)
    }
}
