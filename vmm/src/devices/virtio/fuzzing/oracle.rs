//! What a device may have done, worked out from the queues by code that the device does not use.
//!
//! Before a device is called, [`Oracle::before`] walks the chains that are new in its queues and marks
//! the memory that they let it write; after it, [`Oracle::after`] compares. What it knows is exact as
//! long as nothing that a device may write is part of a queue itself: once that is so, memory says
//! nothing about what the device saw, and the oracle says nothing any more (`blind`).

use crate::devices::virtio::mmio::QueueState;
use vm_memory::{Bytes, GuestAddress};

use crate::machine::memory::GuestMemory;

/// RAM in two parts with a hole between them, as (address, bytes).
pub(super) const PARTS: [(u64, usize); 2] = [(0, PART), (0x1_0000, PART)];
const PART: usize = 0x8000;
const RAM: usize = PART * 2;
const PAGE: usize = 0x1000;
/// More descriptors than any chain may have.
const WALK_MAX: usize = 2048;

const NEXT: u16 = 1;
const WRITE: u16 = 2;
const INDIRECT: u16 = 4;

/// Bit of [`Oracle::allowed`]: a chain lets the device write it.
const BUFFER: u8 = 1;
/// It belongs to a used ring.
const USED: u8 = 2;

/// A chain that is in the device.
struct Taken {
    queue: usize,
    head: u16,
    writable: u64,
}

/// A chain that may be taken next.
struct Offered {
    head: u16,
    writable: u64,
}

pub(super) struct Oracle {
    /// What the RAM has, as far as the driver wrote it and the device did before.
    memory: Vec<u8>,
    now: Vec<u8>,
    allowed: Vec<u8>,
    taken: Vec<Taken>,
    offered: Vec<Vec<Offered>>,
    queues: Vec<QueueState>,
    blind: bool,
}

impl Oracle {
    pub(super) fn new() -> Self {
        Self {
            memory: vec![0; RAM],
            now: vec![0; RAM],
            allowed: vec![0; RAM],
            taken: Vec::new(),
            offered: Vec::new(),
            queues: Vec::new(),
            blind: false,
        }
    }

    /// The driver writes a byte that is RAM.
    pub(super) fn write(&mut self, address: u64, byte: u8) {
        for place in places(address, 1) {
            self.memory[place] = byte;
        }
    }

    /// The device is about to be called; `queues` are those that it has, none if it does not run.
    pub(super) fn before(&mut self, queues: Vec<QueueState>) {
        if queues.is_empty() {
            self.forget();
        }
        self.queues = queues;
        self.offered.clear();
        let mut structures = Vec::new();
        for at in 0..self.queues.len() {
            let queue = self.queues[at];
            self.offered.push(Vec::new());
            if !queue.ready {
                continue;
            }
            let size = u64::from(queue.size);
            structures.push((queue.desc_table, size * 16));
            structures.push((queue.avail_ring, 6 + size * 2));
            for place in places(queue.used_ring, 6 + size * 8) {
                self.allowed[place] |= USED;
            }
            let count = self
                .u16(queue.avail_ring + 2)
                .wrapping_sub(queue.next_avail);
            // More than the queue holds is a fault, and nothing is taken.
            for step in 0..if count <= queue.size { count } else { 0 } {
                let slot = queue.next_avail.wrapping_add(step) % queue.size;
                let head = self.u16(queue.avail_ring + 4 + u64::from(slot) * 2);
                let writable = self.walk(&queue, head, &mut structures);
                self.offered[at].push(Offered { head, writable });
            }
        }
        let allowed = &self.allowed;
        let mut all = structures.iter().flat_map(|(at, len)| places(*at, *len));
        self.blind |= all.any(|place| allowed[place] != 0);
        self.blind |= allowed.contains(&(BUFFER | USED));
    }

    /// The device was called. `queues` as in [`Self::before`].
    pub(super) fn after(&mut self, memory: &GuestMemory, queues: &[QueueState]) {
        if self.blind {
            return;
        }
        read_all(memory, &mut self.now);
        let pages = self.memory.chunks(PAGE).zip(self.now.chunks(PAGE));
        for ((old, new), allowed) in pages.zip(self.allowed.chunks(PAGE)) {
            // Most are as they were.
            if old != new {
                let mut bytes = old.iter().zip(new).zip(allowed);
                let wrong = bytes.position(|((old, new), allowed)| old != new && *allowed == 0);
                assert_eq!(wrong, None, "the device wrote where no chain lets it");
            }
        }
        std::mem::swap(&mut self.memory, &mut self.now);
        if queues.is_empty() || self.queues.is_empty() {
            return;
        }
        for (at, queue) in queues.iter().enumerate() {
            let old = self.queues[at];
            if !queue.ready || !old.ready {
                continue;
            }
            let took = usize::from(queue.next_avail.wrapping_sub(old.next_avail));
            assert!(took <= self.offered[at].len(), "more chains than there are");
            for chain in self.offered[at].drain(..took) {
                self.taken.push(Taken {
                    queue: at,
                    head: chain.head,
                    writable: chain.writable,
                });
            }
            self.given_back(at, &old, queue);
        }
    }

    fn given_back(&mut self, at: usize, old: &QueueState, new: &QueueState) {
        let count = new.next_used.wrapping_sub(old.next_used);
        if count == 0 {
            // The driver may write into the ring whatever it likes.
            return;
        }
        assert!(
            usize::from(count) <= self.taken.len(),
            "too many given back"
        );
        assert_eq!(self.u16(new.used_ring + 2), new.next_used, "the used index");
        // Of what went around the ring more than once, the last is left.
        let first = count.saturating_sub(new.size);
        for step in first..count {
            let slot = old.next_used.wrapping_add(step) % new.size;
            let place = new.used_ring + 4 + u64::from(slot) * 8;
            let (head, len) = (self.u32(place), self.u32(place + 4));
            // A head may be there more than once. The one that fits best leaves the most to the others.
            let fits = self.taken.iter().enumerate().filter(|(_, chain)| {
                (chain.queue, u32::from(chain.head)) == (at, head)
                    && u64::from(len) <= chain.writable
            });
            let best = fits.min_by_key(|(_, chain)| chain.writable);
            let (best, _) = best.expect("a chain that the device has, with room for that much");
            self.taken.swap_remove(best);
        }
        // Those whose names were written over.
        for _ in 0..first {
            let found = self.taken.iter().position(|chain| chain.queue == at);
            self.taken
                .swap_remove(found.expect("a chain of this queue"));
        }
    }

    /// The device has forgotten everything: nothing may be written any more.
    fn forget(&mut self) {
        if !self.queues.is_empty() {
            self.allowed.fill(0);
            self.taken.clear();
        }
    }

    /// Marks what a chain lets the device write; how much that is.
    fn walk(&mut self, queue: &QueueState, head: u16, structures: &mut Vec<(u64, u64)>) -> u64 {
        let (mut table, mut count) = (queue.desc_table, u32::from(queue.size));
        let mut index = head;
        let mut writable = 0;
        for _ in 0..WALK_MAX {
            if u32::from(index) >= count {
                break;
            }
            // A table may be alleged to lie at the end of all addresses.
            let place = table.wrapping_add(u64::from(index) * 16);
            let at = |offset| place.wrapping_add(offset);
            let address = u64::from(self.u32(place)) | u64::from(self.u32(at(4))) << 32;
            let len = self.u32(at(8));
            let (flags, next) = (self.u16(at(12)), self.u16(at(14)));
            if flags & INDIRECT != 0 {
                structures.push((address, len.into()));
                (table, count, index) = (address, len / 16, 0);
                continue;
            }
            if flags & WRITE != 0 {
                writable += u64::from(len);
                for place in places(address, len.into()) {
                    self.allowed[place] |= BUFFER;
                }
            }
            if flags & NEXT == 0 {
                break;
            }
            index = next;
        }
        writable
    }

    fn u16(&self, address: u64) -> u16 {
        let mut bytes = [0; 2];
        for (byte, place) in bytes.iter_mut().zip(places(address, 2)) {
            *byte = self.memory[place];
        }
        u16::from_le_bytes(bytes)
    }

    fn u32(&self, address: u64) -> u32 {
        u32::from(self.u16(address)) | u32::from(self.u16(address.wrapping_add(2))) << 16
    }
}

/// Where in a copy of the RAM a range of it is. What is no RAM is left out.
fn places(address: u64, len: u64) -> impl Iterator<Item = usize> {
    let end = address.saturating_add(len);
    let parts = PARTS.into_iter().zip([0, PART]);
    parts.flat_map(move |((start, size), base)| {
        let within = |address: u64| {
            let offset = address.saturating_sub(start);
            usize::try_from(offset).unwrap_or(size).min(size)
        };
        base + within(address)..base + within(end)
    })
}

fn read_all(memory: &GuestMemory, to: &mut [u8]) {
    for ((start, _), part) in PARTS.into_iter().zip(to.chunks_mut(PART)) {
        let read = memory.read_slice(part, GuestAddress(start));
        read.expect("all of it is RAM");
    }
}
