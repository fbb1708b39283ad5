//! What the payload guest does with its virtio devices, well and badly.

use crate::io::{self, Random, line, value};
use crate::virtio::{Device, SIZE};

const RNG: u32 = 4;
const FS: u32 = 26;
const VSOCK: u32 = 19;
const DATA: usize = 0x60_0000;

/// Three reads of random numbers, which must differ.
pub fn rng() {
    let Some(mut device) = Device::new(0, RNG, 1) else {
        return line(b"no rng");
    };
    let mut last = 0;
    for _ in 0..3 {
        io::write32(DATA, 0);
        device.add(0, &[(DATA, 64, true)]);
        let Some(64) = device.wait(0) else {
            return line(b"rng failed");
        };
        let now = io::read32(DATA);
        if now == last || now == 0 {
            return line(b"rng repeats itself");
        }
        last = now;
    }
    line(b"rng ok");
}

/// 10,000 round trips of one byte, for a bench.
pub fn rng_bench() {
    let Some(mut device) = Device::new(0, RNG, 1) else {
        return line(b"no rng");
    };
    for _ in 0..10_000 {
        device.add(0, &[(DATA, 1, true)]);
        device.wait(0);
    }
    line(b"rng ok");
}

/// One request of the smallest size to the file system in window `window`, and what came back.
pub fn fs(window: usize) {
    let Some(mut device) = Device::new(window, FS, 2) else {
        return line(b"no fs");
    };
    for unique in 1..=3u32 {
        io::write32(DATA, 40);
        io::write32(DATA + 4, 26);
        io::write32(DATA + 8, unique);
        io::write32(DATA + 12, 0);
        device.add(1, &[(DATA, 40, false), (DATA + 0x100, 256, true)]);
        match device.wait(1) {
            Some(len) => {
                value(b"len", u64::from(len));
                value(b"error", u64::from(io::read32(DATA + 0x104)));
                value(b"unique", u64::from(io::read32(DATA + 0x108)));
            }
            None => return line(b"fs failed"),
        }
    }
    line(b"fs ok");
}

/// 5,000 requests one after the other, for a bench.
pub fn fs_bench() {
    let Some(mut device) = Device::new(1, FS, 2) else {
        return line(b"no fs");
    };
    io::write32(DATA, 40);
    for unique in 1..=5_000 {
        io::write32(DATA + 8, unique);
        device.add(1, &[(DATA, 40, false), (DATA + 0x100, 256, true)]);
        device.wait(1);
    }
    line(b"fs ok");
}

/// 500 requests of 1 MiB of data, for a bench.
pub fn fs_bench_large() {
    const LEN: u32 = (1 << 20) + 80;
    let Some(mut device) = Device::new(1, FS, 2) else {
        return line(b"no fs");
    };
    // Pages of its own, not the one of zeros.
    for at in (0..LEN as usize).step_by(4096) {
        io::write32(PACKETS + at, LEN);
    }
    for unique in 1..=500 {
        io::write32(PACKETS + 8, unique);
        device.add(1, &[(PACKETS, LEN, false), (DATA, 256, true)]);
        device.wait(1);
    }
    line(b"fs ok");
}

/// Connects to port 77 of the host, sends a line and prints the answer.
pub fn vsock() {
    let Some(mut device) = Device::new(1, VSOCK, 3) else {
        return line(b"no vsock");
    };
    let receive = DATA + 0x1000;
    device.add(0, &[(receive, 4096, true)]);
    packet(1, 0);
    device.add(1, &[(DATA, 44, false)]);
    if device.wait(0).is_none() || io::read32(receive + 28) >> 16 != 2 {
        return line(b"vsock refused");
    }
    device.add(0, &[(receive, 4096, true)]);
    packet(5, 6);
    for (at, byte) in b"hello\n".iter().enumerate() {
        io::write8(DATA + 44 + at, *byte);
    }
    device.add(1, &[(DATA, 50, false)]);
    let Some(len) = device.wait(0) else {
        return line(b"vsock failed");
    };
    for at in 44..len as usize {
        io::print(&[(io::read32(receive + at) & 0xff) as u8]);
    }
    line(b"vsock ok");
}

/// A header from port 5000 of guest 3 to port 77 of the host.
fn packet(op: u32, len: u32) {
    let words = [3, 0, 2, 0, 5000, 77, len, 1 | op << 16, 0, 65536, 0];
    for (at, word) in words.iter().enumerate() {
        io::write32(DATA + at * 4, *word);
    }
}

/// Garbage to every register of every window, at every size, then packets and requests that are almost
/// right, then garbage in the rings of each device; in the end the first device must still work. Each `seed` makes other garbage.
pub fn garbage(seed: u64) {
    let mut random = Random(0x1234_5678_9abc_def1 ^ seed.wrapping_mul(0x9e37_79b9_7f4a_7c15));
    for _ in 0..3_000 {
        let window = random.next() as usize % 14;
        let offset = random.next() as usize % 0x1000;
        let address = 0xd000_0000 + window * 0x1000 + offset;
        match random.next() % 4 {
            0 => io::write8(address, random.next() as u8),
            1 => io::write16(address, random.next() as u16),
            2 => {
                io::read32(address);
            }
            _ => io::write32(0xd000_0000 + window * 0x1000 + (offset & 0xfc), random.next() as u32),
        }
    }
    line(b"registers done");
    for register in 0..0x20 {
        io::write32(0xfec0_0000, register);
        io::write32(0xfec0_0010, random.next() as u32 | 1 << 16);
    }
    for _ in 0..20 {
        packets(&mut random);
        requests(&mut random);
    }
    line(b"packets done");
    let devices = [(0, RNG, 1), (1, VSOCK, 3), (2, FS, 2)];
    for round in 0..200 {
        for (window, id, count) in devices {
            rings(window, id, count, &mut random, round);
        }
    }
    line(b"rings done");
    rng();
}

const PACKETS: usize = 0x200_0000;

/// Some hundred packets of a few connections, with headers that are possible and wrong in places.
fn packets(random: &mut Random) {
    let Some(mut device) = Device::new(1, VSOCK, 3) else {
        return;
    };
    for _ in 0..8 {
        device.add(0, &[(PACKETS + 0x1_0000, 4096, true)]);
    }
    for _ in 0..16 {
        let len = random.next() as u32 % 200;
        let op = random.next() as u32 % 9;
        let port = 70 + random.next() as u32 % 10;
        let words = [3, 0, 2, 0, port, port, len, 1 | op << 16, 3, 4096, random.next() as u32];
        for (at, word) in words.iter().enumerate() {
            io::write32(PACKETS + at * 4, *word);
        }
        if random.next() % 16 == 0 {
            io::write32(PACKETS + random.next() as usize % 11 * 4, random.next() as u32);
        }
        let extra = random.next() as u32 % 3;
        device.add(1, &[(PACKETS, 44 + len + extra, false)]);
    }
}

/// Requests that a file system's server is asked, of every length, some with no room for an answer.
fn requests(random: &mut Random) {
    let Some(mut device) = Device::new(2, FS, 2) else {
        return;
    };
    for _ in 0..8 {
        let len = 40 + random.next() as u32 % 8192;
        let room = random.next() as u32 % 4096;
        let queue = random.next() as usize % 2;
        device.add(queue, &[(PACKETS, len, false), (PACKETS + 0x1_0000, room, true)]);
    }
    if random.next() % 2 == 0 {
        device.set(0x70, 0);
    }
}

fn rings(window: usize, id: u32, count: usize, random: &mut Random, round: u64) {
    let Some(device) = Device::new(window, id, count) else {
        if round == 0 {
            line(b"a device does not come up");
        }
        return;
    };
    for queue in device.queues.iter().take(count) {
        for entry in 0..usize::from(SIZE) {
            let at = queue.at + entry * 16;
            // Half of the addresses are in memory, none in what this program needs itself.
            let address = random.next() as u32 >> (round % 2 * 7) | 0x100_0000;
            io::write32(at, address);
            io::write32(at + 4, (random.next() % 8 == 0) as u32);
            io::write32(at + 8, random.next() as u32 >> (round % 24));
            io::write32(at + 12, random.next() as u32 & 0x001f_0007);
            io::write16(queue.at + 0x4004 + entry * 2, random.next() as u16 % 18);
        }
        let index = if round % 4 == 0 { random.next() as u16 } else { 1 + round as u16 % 16 };
        io::write16(queue.at + 0x4002, index);
    }
    for number in 0..4 {
        device.set(0x50, number);
    }
    if round % 3 == 0 {
        device.set(0x70, 0);
    }
}
