//! What firmware would do: puts a kernel, its command line, an initramfs, the boot parameters and
//! the ACPI tables into guest memory. Runs before the guest does, so nothing here is hostile but
//! the kernel's file, of which only the loader's bounds are trusted.

pub mod acpi;
mod kernel;
mod params;
mod tables;

use std::fs::File;

use vm_memory::{Bytes, GuestAddress};

pub use kernel::LoadError;

use crate::machine::layout;
use crate::machine::memory::{GuestMemory, RamSize, VcpuCount};
use crate::machine::vcpu::Entry;

/// What a machine boots.
#[derive(Debug)]
pub struct Payload {
    /// An ELF file (`vmlinux`) or a bzImage.
    pub kernel: File,
    /// The initial file system, if the kernel needs one.
    pub initramfs: Option<File>,
    /// The kernel's command line.
    pub cmdline: String,
}

/// Why a machine could not be made ready to boot.
#[derive(Debug, thiserror::Error)]
pub enum BootError {
    /// The kernel or the initramfs does not load.
    #[error("the kernel does not load")]
    Load(#[from] LoadError),
    /// The command line is too long or has a NUL.
    #[error(
        "the kernel command line has {len} bytes or a NUL; at most {max} bytes without one fit",
        max = layout::CMDLINE_MAX - 1
    )]
    Cmdline {
        /// Bytes of the command line.
        len: usize,
    },
    /// A table did not fit its place in guest memory.
    #[error("cannot write {what} to guest memory")]
    Write {
        /// Which table.
        what: &'static str,
        /// The memory's error.
        source: vm_memory::GuestMemoryError,
    },
    /// The ACPI tables outgrew their place.
    #[error("the ACPI tables take {len} bytes; {max} fit")]
    AcpiTooLong {
        /// Bytes of all tables.
        len: usize,
        /// Bytes that fit.
        max: u64,
    },
}

impl BootError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Load(error) => error.hint(),
            Self::Cmdline { .. } => "shorten the command line",
            Self::Write { .. } | Self::AcpiTooLong { .. } => "give the machine more memory",
        }
    }
}

/// Puts everything into `memory` and says where the first vCPU starts. `windows` is the number of
/// virtio-mmio windows that the guest is told of.
///
/// # Errors
/// [`BootError`].
pub fn load(
    memory: &GuestMemory,
    ram: RamSize,
    vcpus: VcpuCount,
    windows: usize,
    payload: &mut Payload,
) -> Result<Entry, BootError> {
    let loaded = kernel::load(memory, ram, payload)?;
    write_cmdline(memory, &payload.cmdline)?;
    let write = |what| move |source| BootError::Write { what, source };
    let rsdp = acpi::write(memory, vcpus, windows)?;
    let params = params::boot_params(ram, &loaded, payload.cmdline.len(), rsdp);
    memory
        .write_obj(params, GuestAddress(layout::ZERO_PAGE))
        .map_err(write("the boot parameters"))?;
    tables::write(memory).map_err(write("the page tables"))?;
    Ok(loaded.entry)
}

fn write_cmdline(memory: &GuestMemory, cmdline: &str) -> Result<(), BootError> {
    let len = cmdline.len();
    if len >= layout::CMDLINE_MAX || cmdline.contains('\0') {
        return Err(BootError::Cmdline { len });
    }
    let mut bytes = cmdline.as_bytes().to_vec();
    bytes.push(0);
    memory
        .write_slice(&bytes, GuestAddress(layout::CMDLINE))
        .map_err(|source| BootError::Write {
            what: "the command line",
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::memory::map;

    #[test]
    fn command_lines_that_a_kernel_would_cut_are_refused() {
        let memory = map(RamSize::from_mib(32).unwrap()).unwrap();
        assert!(write_cmdline(&memory, &"x".repeat(2047)).is_ok());
        for line in ["x".repeat(2048), "a\0b".to_owned()] {
            let error = write_cmdline(&memory, &line).unwrap_err();
            assert!(matches!(error, BootError::Cmdline { .. }));
        }
    }
}
