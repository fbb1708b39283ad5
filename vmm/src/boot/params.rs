//! The boot parameters ("zero page") of the Linux x86 boot protocol
//! (`Documentation/arch/x86/boot.rst` and `zero-page.rst`).

use linux_loader::loader::bootparam::{boot_e820_entry, boot_params};

use super::kernel::Loaded;
use crate::machine::layout::{ACPI_TABLES, CMDLINE, HIGH_RAM, HOLE_END, HOLE_START, LOW_RAM_END};
use crate::machine::memory::RamSize;

const BOOT_FLAG: u16 = 0xaa55;
/// "HdrS".
const MAGIC: u32 = 0x5372_6448;
/// The least version that has everything used here.
const PROTOCOL: u16 = 0x020c;
/// A boot loader without an assigned number.
const UNKNOWN_LOADER: u8 = 0xff;
const USABLE: u32 = 1;
const RESERVED: u32 = 2;

pub(super) fn boot_params(
    ram: RamSize,
    loaded: &Loaded,
    cmdline_len: usize,
    rsdp: u64,
) -> boot_params {
    let mut params = boot_params {
        hdr: loaded.header.unwrap_or_default(),
        acpi_rsdp_addr: rsdp,
        ..Default::default()
    };
    params.hdr.boot_flag = BOOT_FLAG;
    params.hdr.header = MAGIC;
    params.hdr.version = params.hdr.version.max(PROTOCOL);
    params.hdr.type_of_loader = UNKNOWN_LOADER;
    // Both are small: the address by the layout, the length by its check.
    params.hdr.cmd_line_ptr = u32::try_from(CMDLINE).unwrap_or(0);
    params.hdr.cmdline_size = u32::try_from(cmdline_len).unwrap_or(0);
    if let Some((address, len)) = loaded.initramfs {
        params.hdr.ramdisk_image = address;
        params.hdr.ramdisk_size = len;
    }
    let map = memory_map(ram);
    for (entry, (addr, end, kind)) in params.e820_table.iter_mut().zip(&map) {
        *entry = boot_e820_entry {
            addr: *addr,
            size: end - addr,
            r#type: *kind,
        };
    }
    params.e820_entries = u8::try_from(map.len()).unwrap_or(0);
    params
}

/// The guest's memory map as (first address, end, kind).
fn memory_map(ram: RamSize) -> Vec<(u64, u64, u32)> {
    let mut map = vec![
        (0, LOW_RAM_END, USABLE),
        (ACPI_TABLES, HIGH_RAM, RESERVED),
        (HIGH_RAM, ram.bytes().min(HOLE_START), USABLE),
    ];
    if let Some((start, len)) = ram.ranges().get(1) {
        debug_assert_eq!(*start, HOLE_END);
        map.push((*start, start + len, USABLE));
    }
    map
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::vcpu::Entry;

    #[test]
    fn the_memory_map_has_all_ram_and_reserves_the_tables() {
        let map = memory_map(RamSize::from_mib(4096).unwrap());
        assert_eq!(
            map,
            [
                (0, 0xa_0000, USABLE),
                (0xe_0000, 0x10_0000, RESERVED),
                (0x10_0000, 0xc000_0000, USABLE),
                (0x1_0000_0000, 0x1_4000_0000, USABLE),
            ]
        );
        assert_eq!(memory_map(RamSize::from_mib(64).unwrap()).len(), 3);
    }

    #[test]
    fn the_kernel_is_told_of_everything() {
        let loaded = Loaded {
            entry: Entry { ip: 0x10_0000 },
            header: None,
            initramfs: Some((0x100_0000, 77)),
        };
        let params = boot_params(RamSize::from_mib(64).unwrap(), &loaded, 5, 0xe_0000);
        let header = params.hdr;
        assert_eq!({ header.ramdisk_image }, 0x100_0000);
        assert_eq!({ header.ramdisk_size }, 77);
        assert_eq!({ header.cmd_line_ptr }, 0x2_0000);
        assert_eq!({ params.acpi_rsdp_addr }, 0xe_0000);
        assert_eq!(params.e820_entries, 3);
    }
}
