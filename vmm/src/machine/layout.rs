//! Where everything lies in a guest's physical address space, its ports and its interrupt lines.
//!
//! One table, so that a collision is seen at a glance. All addresses are guest-physical.
//!
//! ```text
//! 0x0000_0500  GDT of the first vCPU (boot only)
//! 0x0000_7000  boot parameters ("zero page"), one page
//! 0x0000_8ff0  boot stack, grows down
//! 0x0000_9000  boot page tables, six pages
//! 0x0002_0000  kernel command line
//! 0x000a_0000  end of low RAM as told to the guest
//! 0x000e_0000  ACPI tables, reserved in the memory map, up to 1 MiB
//! 0x000f_e000  generation id page (VMGENID), inside the reserved range
//! 0x000f_fff0  reset vector, likewise
//! 0x0010_0000  RAM: kernel, initramfs at its end
//! 0xc000_0000  hole: no RAM up to 4 GiB
//! 0xd000_0000  virtio-mmio windows, 4 KiB each
//! 0xfec0_0000  IOAPIC
//! 0xfee0_0000  local APIC (in the kernel)
//! 0x1_0000_0000  RAM beyond the hole
//! ```

/// Boot-time GDT.
pub const GDT: u64 = 0x500;
/// Boot parameters, `struct boot_params` of the Linux x86 boot protocol.
pub const ZERO_PAGE: u64 = 0x7000;
/// Initial stack pointer.
pub const BOOT_STACK: u64 = 0x8ff0;
/// Boot-time page tables: one PML4, one PDPT, four page directories.
pub const PAGE_TABLES: u64 = 0x9000;
/// Kernel command line, NUL-terminated.
pub const CMDLINE: u64 = 0x2_0000;
/// Most bytes of a command line, its NUL included. What a stock x86 kernel accepts
/// (`COMMAND_LINE_SIZE` of `arch/x86/include/asm/setup.h`).
pub const CMDLINE_MAX: usize = 2048;
/// End of the RAM below 1 MiB that the guest is told of.
pub const LOW_RAM_END: u64 = 0xa_0000;
/// First byte of the ACPI tables. The RSDP comes first: kernels that get no address scan from here.
pub const ACPI_TABLES: u64 = 0xe_0000;
/// The page of the generation id.
pub const GENERATION_PAGE: u64 = 0xf_e000;
/// Where a processor in real mode starts after a reset.
pub const RESET_VECTOR: u64 = 0xf_fff0;
/// First byte of RAM above 1 MiB, where kernels are loaded.
pub const HIGH_RAM: u64 = 0x10_0000;
/// First byte of the hole below 4 GiB.
pub const HOLE_START: u64 = 0xc000_0000;
/// First byte after the hole.
pub const HOLE_END: u64 = 0x1_0000_0000;
/// First virtio-mmio window.
pub const VIRTIO_MMIO: u64 = 0xd000_0000;
/// Bytes of one virtio-mmio window.
pub const VIRTIO_MMIO_SIZE: u64 = 0x1000;
/// Registers of the IOAPIC.
pub const IOAPIC: u64 = 0xfec0_0000;
/// Bytes of the IOAPIC's window.
pub const IOAPIC_SIZE: u64 = 0x1000;
/// Registers of the local APIC, emulated by the kernel.
pub const LOCAL_APIC: u64 = 0xfee0_0000;
/// Three pages that KVM on some Intel processors needs for real mode (`KVM_SET_TSS_ADDR`), and one
/// more before them for its identity map. Inside the hole, used by no device.
pub const KVM_TSS: u64 = 0xfffb_d000;
/// See [`KVM_TSS`].
pub const KVM_IDENTITY_MAP: u64 = 0xfffb_c000;

/// First port of the serial console (COM1).
pub const SERIAL_PORT: u16 = 0x3f8;
/// Ports of the serial console.
pub const SERIAL_PORTS: u16 = 8;
/// Command and status port of the keyboard controller, which resets the machine.
pub const I8042_PORT: u16 = 0x64;
/// First port of the ACPI power registers: sleep control, sleep status, reset.
pub const POWER_PORT: u16 = 0x600;
/// Ports of the ACPI power registers.
pub const POWER_PORTS: u16 = 3;

/// Interrupt line of the serial console.
pub const SERIAL_IRQ: u8 = 4;
/// Interrupt line of virtio window 0; window `n` has this plus `n`.
pub const VIRTIO_IRQ: u8 = 5;
/// Most virtio devices of one machine.
pub const VIRTIO_MAX: usize = 12;
/// Interrupt line of the generic event device, which announces a new generation id.
pub const EVENT_IRQ: u8 = 20;
/// Pins of the IOAPIC.
pub const IOAPIC_PINS: u8 = 24;

const _: () = {
    assert!(VIRTIO_IRQ as usize + VIRTIO_MAX <= EVENT_IRQ as usize);
    assert!(EVENT_IRQ < IOAPIC_PINS);
    assert!(VIRTIO_MMIO + VIRTIO_MAX as u64 * VIRTIO_MMIO_SIZE <= IOAPIC);
    assert!(PAGE_TABLES + 6 * 0x1000 <= CMDLINE);
    assert!(CMDLINE + CMDLINE_MAX as u64 <= LOW_RAM_END);
};
