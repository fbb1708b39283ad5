//! Ports, registers and the serial console.

use core::arch::asm;

const SERIAL: u16 = 0x3f8;
const POWER: u16 = 0x600;

pub fn out8(port: u16, value: u8) {
    // SAFETY: the guest owns its machine; a port access touches no memory.
    unsafe { asm!("out dx, al", in("dx") port, in("al") value, options(nomem, nostack)) }
}

pub fn out32(port: u16, value: u32) {
    // SAFETY: as in `out8`.
    unsafe { asm!("out dx, eax", in("dx") port, in("eax") value, options(nomem, nostack)) }
}

pub fn in8(port: u16) -> u8 {
    let value;
    // SAFETY: as in `out8`.
    unsafe { asm!("in al, dx", in("dx") port, out("al") value, options(nomem, nostack)) }
    value
}

pub fn read32(address: usize) -> u32 {
    // SAFETY: all 4 GiB are mapped; device windows are not Rust objects.
    unsafe { (address as *const u32).read_volatile() }
}

pub fn write32(address: usize, value: u32) {
    // SAFETY: as in `read32`.
    unsafe { (address as *mut u32).write_volatile(value) }
}

pub fn read64(address: usize) -> u64 {
    // SAFETY: as in `read32`.
    unsafe { (address as *const u64).read_volatile() }
}

pub fn write64(address: usize, value: u64) {
    // SAFETY: as in `read32`.
    unsafe { (address as *mut u64).write_volatile(value) }
}

pub fn write16(address: usize, value: u16) {
    // SAFETY: as in `read32`.
    unsafe { (address as *mut u16).write_volatile(value) }
}

pub fn write8(address: usize, value: u8) {
    // SAFETY: as in `read32`.
    unsafe { (address as *mut u8).write_volatile(value) }
}

pub fn print(text: &[u8]) {
    for byte in text {
        out8(SERIAL, *byte);
    }
}

pub fn line(text: &[u8]) {
    print(text);
    print(b"\n");
}

/// Prints `name=0x...`.
pub fn value(name: &[u8], value: u64) {
    print(name);
    print(b"=0x");
    for digit in (0..16).rev() {
        print(&[b"0123456789abcdef"[(value >> (digit * 4) & 15) as usize]]);
    }
    print(b"\n");
}

/// Waits for a byte on the serial console.
pub fn read_byte() -> u8 {
    while in8(SERIAL + 5) & 1 == 0 {
        core::hint::spin_loop();
    }
    in8(SERIAL)
}

pub fn power_off() -> ! {
    out8(POWER, 5 << 2 | 1 << 5);
    loop {
        core::hint::spin_loop();
    }
}

pub fn reset() -> ! {
    out8(POWER + 2, 1);
    loop {
        core::hint::spin_loop();
    }
}

/// A pseudo-random sequence (xorshift64*), the same in every run.
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}
