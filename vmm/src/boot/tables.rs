//! What lies in low memory besides the tables of others: the page tables and the GDT that the first
//! vCPU starts with (the first 4 GiB mapped one to one by pages of 2 MiB; Intel SDM volume 3, "4-level
//! paging"), and the reset vector.

use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

use crate::devices::power::RESET_VALUE;
use crate::machine::layout::{GDT as GDT_ADDRESS, PAGE_TABLES, POWER_PORT, RESET_VECTOR};
use crate::machine::memory::GuestMemory;
use crate::machine::vcpu::GDT;

const PRESENT_WRITABLE: u64 = 0x3;
const LARGE_PAGE: u64 = 1 << 7;
const TABLE: u64 = 0x1000;
const ENTRIES: u64 = 512;
const DIRECTORIES: u64 = 4;

/// Real-mode code that resets the machine by its ACPI register: `mov dx, port; mov al, 1; out dx, al;
/// hlt; jmp` back to the `hlt`.
///
/// Linux gets here when it restarts: told that the hardware is reduced, it tries EFI before all else,
/// even where there is none, and then jumps to the firmware (`arch/x86/kernel/reboot.c`).
const RESET_CODE: [u8; 9] = {
    let [low, high] = (POWER_PORT + 2).to_le_bytes();
    [0xba, low, high, 0xb0, RESET_VALUE, 0xee, 0xf4, 0xeb, 0xfd]
};

pub(super) fn write(memory: &GuestMemory) -> Result<(), GuestMemoryError> {
    let pointers = PAGE_TABLES + TABLE;
    let directories = pointers + TABLE;
    memory.write_obj(pointers | PRESENT_WRITABLE, GuestAddress(PAGE_TABLES))?;
    for number in 0..DIRECTORIES {
        let directory = directories + number * TABLE;
        memory.write_obj(
            directory | PRESENT_WRITABLE,
            GuestAddress(pointers + number * 8),
        )?;
        for entry in 0..ENTRIES {
            let page = (number << 30) + (entry << 21);
            memory.write_obj(
                page | PRESENT_WRITABLE | LARGE_PAGE,
                GuestAddress(directory + entry * 8),
            )?;
        }
    }
    for (number, descriptor) in (0..).zip(GDT) {
        memory.write_obj(descriptor, GuestAddress(GDT_ADDRESS + number * 8))?;
    }
    memory.write_slice(&RESET_CODE, GuestAddress(RESET_VECTOR))
}
