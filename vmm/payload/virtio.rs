//! A small driver of virtio-mmio devices, which polls.

use core::sync::atomic::{Ordering, fence};

use crate::io;

const WINDOWS: usize = 0xd000_0000;
const STEP: usize = 0x1000;
pub const SIZE: u16 = 16;
/// Rings of device 0, queue 0; 64 KiB a queue, 256 KiB a device.
const RINGS: usize = 0x80_0000;

pub struct Queue {
    pub at: usize,
    next: u16,
    seen: u16,
}

pub struct Device {
    pub base: usize,
    pub queues: [Queue; 3],
}

/// A buffer: address, bytes, whether the device writes it.
pub type Part = (usize, u32, bool);

impl Device {
    /// Sets up the device in `window` with `count` queues. `None` if it is not of the type `id` or
    /// does not take the driver.
    pub fn new(window: usize, id: u32, count: usize) -> Option<Self> {
        let base = WINDOWS + window * STEP;
        if io::read32(base) != 0x7472_6976 || io::read32(base + 8) != id {
            return None;
        }
        let queue = |number: usize| Queue {
            at: RINGS + window * 0x4_0000 + number * 0x1_0000,
            next: 0,
            seen: 0,
        };
        let device = Self {
            base,
            queues: [queue(0), queue(1), queue(2)],
        };
        device.set(0x70, 0);
        device.set(0x70, 1);
        device.set(0x70, 3);
        device.set(0x24, 1);
        device.set(0x20, 1);
        device.set(0x70, 11);
        for (number, queue) in device.queues.iter().take(count).enumerate() {
            for at in (queue.at..queue.at + 0x1_0000).step_by(4) {
                io::write32(at, 0);
            }
            device.set(0x30, number as u32);
            device.set(0x38, u32::from(SIZE));
            device.set(0x80, queue.at as u32);
            device.set(0x90, queue.at as u32 + 0x4000);
            device.set(0xa0, queue.at as u32 + 0x8000);
            device.set(0x44, 1);
        }
        device.set(0x70, 15);
        (device.status() == 15).then_some(device)
    }

    pub fn set(&self, register: usize, value: u32) {
        io::write32(self.base + register, value);
    }

    pub fn status(&self) -> u32 {
        io::read32(self.base + 0x70)
    }

    /// Puts a chain into queue `number` and notifies.
    pub fn add(&mut self, number: usize, parts: &[Part]) {
        let queue = &mut self.queues[number];
        let head = queue.next % SIZE;
        for (at, (address, len, write)) in parts.iter().enumerate() {
            let index = (queue.next + at as u16) % SIZE;
            let more = at + 1 < parts.len();
            let flags = u32::from(more) | u32::from(*write) << 1;
            let entry = queue.at + usize::from(index) * 16;
            io::write32(entry, *address as u32);
            io::write32(entry + 4, 0);
            io::write32(entry + 8, *len);
            io::write32(entry + 12, flags | u32::from((index + 1) % SIZE) << 16);
        }
        queue.next = queue.next.wrapping_add(parts.len() as u16);
        let avail = queue.at + 0x4000;
        let index = (io::read32(avail) >> 16) as u16;
        io::write16(avail + 4 + usize::from(index % SIZE) * 2, head);
        fence(Ordering::SeqCst);
        io::write16(avail + 2, index.wrapping_add(1));
        fence(Ordering::SeqCst);
        self.set(0x50, number as u32);
    }

    /// Waits for the next used chain of queue `number`: how many bytes were written. `None` when
    /// the device needs a reset.
    pub fn wait(&mut self, number: usize) -> Option<u32> {
        let used = self.queues[number].at + 0x8000;
        loop {
            fence(Ordering::SeqCst);
            let seen = self.queues[number].seen;
            if (io::read32(used) >> 16) as u16 != seen {
                self.queues[number].seen = seen.wrapping_add(1);
                return Some(io::read32(used + 8 + usize::from(seen % SIZE) * 8));
            }
            if self.status() & 64 != 0 {
                return None;
            }
            core::hint::spin_loop();
        }
    }
}
