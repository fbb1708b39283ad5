//! The payload guest: a small program that boots like a Linux kernel and does what its command line
//! says, to test and measure the monitor where no Linux boots.

#![no_std]
#![no_main]

mod devices;
mod dirty;
mod io;
mod mem;
mod start;
mod virtio;

use core::ptr;

use io::{line, power_off};

/// Offset of the command line's address in the boot parameters.
const CMDLINE_POINTER: usize = 0x228;
const CMDLINE_MAX: usize = 2048;

#[unsafe(no_mangle)]
extern "C" fn main(boot_params: usize) -> ! {
    let cmdline = io::read32(boot_params + CMDLINE_POINTER) as usize;
    let mut word = [0u8; 32];
    let mut len = 0;
    while len < word.len() && !matches!(letter(cmdline, len), 0 | b' ') {
        word[len] = letter(cmdline, len);
        len += 1;
    }
    // Numbers may follow.
    let mut numbers = [0u64; 2];
    let mut at = len;
    for number in &mut numbers {
        at += usize::from(letter(cmdline, at) == b' ');
        while letter(cmdline, at).is_ascii_digit() {
            *number = *number * 10 + u64::from(letter(cmdline, at) - b'0');
            at += 1;
        }
    }
    let number = numbers[0];
    line(b"payload guest");
    match &word[..len] {
        b"off" => power_off(),
        b"reset" => io::reset(),
        b"vector" => by_vector(),
        b"keyboard" => io::out8(0x64, 0xfe),
        b"panic" => line(b"Kernel panic - not syncing: as asked"),
        b"fault" => fault(),
        b"echo" => echo(),
        b"spin" => spin(),
        b"exits" => exits(),
        b"ports" => every_port(),
        b"smp" => smp(),
        b"rng" => devices::rng(),
        b"rng-bench" => devices::rng_bench(),
        b"fs-bench" => devices::fs_bench(),
        b"fs-bench-large" => devices::fs_bench_large(),
        b"fs" => devices::fs(2),
        b"vsock" => devices::vsock(),
        b"dirty" => dirty::dirty(number, numbers[1]),
        b"garbage" => devices::garbage(number),
        _ => line(b"unknown command"),
    }
    power_off()
}

/// Byte `at` of the command line.
fn letter(cmdline: usize, at: usize) -> u8 {
    if at >= CMDLINE_MAX {
        return 0;
    }
    // SAFETY: the boot protocol puts a NUL-terminated line there.
    unsafe { ptr::read_volatile((cmdline + at) as *const u8) }
}

fn fault() {
    // SAFETY: never returns: there is no handler.
    unsafe { core::arch::asm!("ud2") }
}

/// Sends each line back, until one that is `end`.
fn echo() {
    let mut text = [0u8; 256];
    let mut len = 0;
    loop {
        let byte = io::read_byte();
        if byte != b'\n' {
            text[len % 256] = byte;
            len += 1;
            continue;
        }
        line(&text[..len.min(256)]);
        if &text[..len.min(256)] == b"end" {
            return;
        }
        len = 0;
    }
}

/// Counts in memory for ever; the host sees whether the count moves.
fn spin() -> ! {
    line(b"spinning");
    let mut count = 0u32;
    loop {
        count = count.wrapping_add(1);
        io::write32(0x40_0000, count);
    }
}

/// 100,000 exits by a port that no device has.
fn exits() {
    for _ in 0..100_000 {
        io::out8(0x80, 0);
    }
}

/// Reads and writes every port but those that end the machine.
fn every_port() {
    for port in 0..=u16::MAX {
        if matches!(port, 0x64 | 0x600..=0x602 | 0x3f8..=0x3ff) {
            continue;
        }
        io::in8(port);
        io::out8(port, port as u8);
    }
    io::out32(0x3fd, u32::MAX);
    line(b"all ports done");
}

/// Starts vCPU 1 at the reset vector, which resets the machine.
fn by_vector() {
    // 0xff is the page of the vector; real mode starts there at its beginning, so a jump comes first.
    for (offset, byte) in [0xe9, 0xed, 0x0f].iter().enumerate() {
        io::write8(0xf_f000 + offset, *byte);
    }
    start_second(0xff);
    loop {
        core::hint::spin_loop();
    }
}

const APIC_ID: usize = 0xfee0_0020;
const APIC_SPURIOUS: usize = 0xfee0_00f0;
const APIC_COMMAND: usize = 0xfee0_0300;
const APIC_DESTINATION: usize = 0xfee0_0310;
/// Page that the second vCPU starts in, and the flag that it sets.
const TRAMPOLINE: usize = 0x3_0000;
const FLAG: usize = 0x3_1000;

/// Starts vCPU 1 with INIT and STARTUP; it sets a byte and halts.
fn smp() {
    // Real mode, segment 0x3000: mov ax, 0x3100; mov ds, ax; mov byte [0], 0x5a; hlt; jmp $-1
    let code = [
        0xb8, 0x00, 0x31, 0x8e, 0xd8, 0xc6, 0x06, 0x00, 0x00, 0x5a, 0xf4, 0xeb, 0xfd,
    ];
    for (offset, byte) in code.iter().enumerate() {
        io::write8(TRAMPOLINE + offset, *byte);
    }
    io::write32(FLAG, 0);
    io::value(b"apic", u64::from(io::read32(APIC_ID) >> 24));
    start_second((TRAMPOLINE >> 12) as u32);
    while io::read32(FLAG) & 0xff != 0x5a {
        core::hint::spin_loop();
    }
    line(b"second vcpu runs");
}

fn start_second(page: u32) {
    io::write32(APIC_SPURIOUS, 0x1ff);
    io::write32(APIC_DESTINATION, 1 << 24);
    io::write32(APIC_COMMAND, 0x4500);
    io::write32(APIC_DESTINATION, 1 << 24);
    io::write32(APIC_COMMAND, 0x4600 | page);
}

#[panic_handler]
fn panic(_: &core::panic::PanicInfo<'_>) -> ! {
    line(b"payload panicked");
    io::reset()
}
