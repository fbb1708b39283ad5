//! The ACPI tables: how a stock kernel finds the machine's devices.
//!
//! A hardware-reduced machine (ACPI 6.5, section 4.1): no PIC, no PIT, no SCI, no fixed power
//! registers. Stock Debian kernels support this although they are not built for it alone, and they
//! have no other way to find virtio-mmio devices (`VIRTIO_MMIO_CMDLINE_DEVICES` is off). Tables:
//! RSDP, XSDT, FADT, MADT and a DSDT with the devices.

mod dsdt;

use acpi_tables::Aml;
use acpi_tables::fadt::{FADTBuilder, Flags};
use acpi_tables::gas::{AccessSize, AddressSpace, GAS};
use acpi_tables::madt::{
    EnabledStatus, IoApic, LocalInterruptController, MADT, ProcessorLocalApic,
};
use acpi_tables::rsdp::Rsdp;
use acpi_tables::sdt::Sdt;
use acpi_tables::xsdt::XSDT;
use vm_memory::{Bytes, GuestAddress};

use super::BootError;
use crate::devices::power::RESET_VALUE;
use crate::machine::layout::{ACPI_TABLES, GENERATION_PAGE, IOAPIC, LOCAL_APIC, POWER_PORT};
use crate::machine::memory::{GuestMemory, VcpuCount};

const OEM: [u8; 6] = *b"FLOE  ";
const OEM_TABLE: [u8; 8] = *b"FLOEMACH";
const OEM_REVISION: u32 = 1;
/// Boot architecture flags (ACPI 6.5, table 5.11): neither VGA nor a CMOS clock. The bit for an
/// 8042 is not set either.
const NO_VGA: u16 = 1 << 2;
const NO_CMOS: u16 = 1 << 5;

/// Writes all tables and returns the address of the RSDP. `windows` is the number of virtio-mmio
/// windows.
///
/// # Errors
/// [`BootError::AcpiTooLong`] and [`BootError::Write`].
pub fn write(memory: &GuestMemory, vcpus: VcpuCount, windows: usize) -> Result<u64, BootError> {
    let bytes = tables(vcpus, windows);
    let max = GENERATION_PAGE - ACPI_TABLES;
    if bytes.len() as u64 > max {
        return Err(BootError::AcpiTooLong {
            len: bytes.len(),
            max,
        });
    }
    memory
        .write_slice(&bytes, GuestAddress(ACPI_TABLES))
        .map_err(|source| BootError::Write {
            what: "the ACPI tables",
            source,
        })?;
    Ok(ACPI_TABLES)
}

/// All tables as they lie from [`ACPI_TABLES`] on: the RSDP first, then each at a multiple of 16.
fn tables(vcpus: VcpuCount, windows: usize) -> Vec<u8> {
    let mut dsdt = Sdt::new(*b"DSDT", 36, 2, OEM, OEM_TABLE, OEM_REVISION);
    dsdt.append_slice(&dsdt::devices(vcpus, windows));

    let mut all = Image::new(Rsdp::len());
    let dsdt = all.place(&dsdt);
    let fadt = all.place(&fadt(dsdt));
    let madt = all.place(&madt(vcpus));
    let mut xsdt = XSDT::new(OEM, OEM_TABLE, OEM_REVISION);
    xsdt.add_entry(fadt);
    xsdt.add_entry(madt);
    let xsdt = all.place(&xsdt);
    all.finish(&Rsdp::new(OEM, xsdt))
}

fn fadt(dsdt: u64) -> impl Aml {
    let mut fadt = FADTBuilder::new(OEM, OEM_TABLE, OEM_REVISION)
        .dsdt_64(dsdt)
        .flag(Flags::HwReducedAcpi)
        .flag(Flags::ResetRegSup)
        .flag(Flags::PwrButton)
        .flag(Flags::SlpButton);
    fadt.iapc_boot_arch = (NO_VGA | NO_CMOS).into();
    let register = |port: u16| {
        GAS::new(
            AddressSpace::SystemIo,
            8,
            0,
            AccessSize::ByteAccess,
            u64::from(port),
        )
    };
    fadt.sleep_control_reg = register(POWER_PORT);
    fadt.sleep_status_reg = register(POWER_PORT + 1);
    fadt.reset_reg = register(POWER_PORT + 2);
    fadt.reset_value = RESET_VALUE;
    fadt.finalize()
}

fn madt(vcpus: VcpuCount) -> MADT {
    let address = |address: u64| u32::try_from(address).unwrap_or(0);
    let mut madt = MADT::new(
        OEM,
        OEM_TABLE,
        OEM_REVISION,
        LocalInterruptController::Address(address(LOCAL_APIC)),
    );
    for id in 0..vcpus.get() {
        madt.add_structure(ProcessorLocalApic::new(id, id, EnabledStatus::Enabled));
    }
    madt.add_structure(IoApic::new(vcpus.get(), address(IOAPIC), 0));
    madt
}

/// Tables in a row, with room for the RSDP in front.
struct Image {
    bytes: Vec<u8>,
}

impl Image {
    fn new(head: usize) -> Self {
        Self {
            bytes: vec![0; head],
        }
    }

    fn place(&mut self, table: &dyn Aml) -> u64 {
        let start = self.bytes.len().next_multiple_of(16);
        self.bytes.resize(start, 0);
        table.to_aml_bytes(&mut self.bytes);
        ACPI_TABLES + start as u64
    }

    fn finish(mut self, rsdp: &dyn Aml) -> Vec<u8> {
        let mut head = Vec::new();
        rsdp.to_aml_bytes(&mut head);
        self.bytes[..head.len()].copy_from_slice(&head);
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table<'a>(all: &'a [u8], signature: &[u8; 4]) -> &'a [u8] {
        let start = (0..all.len() - 4)
            .step_by(4)
            .find(|start| all[*start..].starts_with(signature))
            .unwrap();
        let len = u32::from_le_bytes(all[start + 4..start + 8].try_into().unwrap());
        &all[start..start + len as usize]
    }

    #[test]
    fn every_table_has_a_good_checksum_and_is_pointed_to() {
        let all = tables(VcpuCount::new(8).unwrap(), 12);
        assert!(all.starts_with(b"RSD PTR "));
        let sum = |bytes: &[u8]| bytes.iter().fold(0u8, |sum, byte| sum.wrapping_add(*byte));
        assert_eq!(sum(&all[..20]), 0);
        assert_eq!(sum(&all[..36]), 0);
        for signature in [b"DSDT", b"FACP", b"APIC", b"XSDT"] {
            assert_eq!(sum(table(&all, signature)), 0);
        }
        let at = |bytes: &[u8], offset: usize| {
            u64::from_le_bytes(bytes[offset..offset + 8].try_into().unwrap())
        };
        let follow = |address: u64| &all[usize::try_from(address - ACPI_TABLES).unwrap()..];
        let xsdt = follow(at(&all, 24));
        assert!(xsdt.starts_with(b"XSDT"));
        let fadt = follow(at(xsdt, 36));
        assert!(fadt.starts_with(b"FACP"));
        assert!(follow(at(xsdt, 44)).starts_with(b"APIC"));
        assert!(follow(at(fadt, 140)).starts_with(b"DSDT"));
    }

    #[test]
    fn the_madt_lists_every_vcpu_and_the_ioapic() {
        let all = tables(VcpuCount::new(3).unwrap(), 0);
        let madt = table(&all, b"APIC");
        assert_eq!(madt.len(), 44 + 3 * 8 + 12);
        assert_eq!(madt[44 + 8..44 + 12], [0, 8, 1, 1]);
        assert_eq!(madt[44 + 24..44 + 27], [1, 12, 3]);
    }
}
