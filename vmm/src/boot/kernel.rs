//! Loading a kernel and its initramfs.
//!
//! The two formats of the 64-bit boot protocol are told apart by their magic numbers. A kernel
//! goes to where its file says (ELF) or to 1 MiB (bzImage); the initramfs to the end of the RAM
//! below the hole, where a kernel that unpacks itself does not reach it.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};

use linux_loader::loader::bootparam::setup_header;
use linux_loader::loader::{BzImage, Elf, KernelLoader};
use vm_memory::{Address, Bytes, GuestAddress};

use super::Payload;
use crate::guest_kernel::image::{Kind, kind};
use crate::machine::layout::{HIGH_RAM, HOLE_START};
use crate::machine::memory::{GuestMemory, RamSize};
use crate::machine::vcpu::Entry;

/// Offset of the 64-bit entry from where a bzImage is loaded (`boot.rst`, "64-bit boot protocol").
const BZIMAGE_ENTRY: u64 = 0x200;
/// Bit of `xloadflags`: the kernel has that entry.
const XLF_KERNEL_64: u16 = 1;
const PAGE: u64 = 4096;

/// Why a kernel does not load.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// A file cannot be read.
    #[error("cannot read the {file}")]
    Read {
        /// `kernel` or `initramfs`.
        file: &'static str,
        /// The system's error.
        source: io::Error,
    },
    /// The file is of neither format.
    #[error("the kernel is neither a 64-bit ELF file nor a bzImage: it starts with {magic:02x?}")]
    NotAKernel {
        /// The first four bytes.
        magic: [u8; 4],
    },
    /// The kernel has no 64-bit entry.
    #[error("the kernel cannot be entered in 64-bit mode")]
    Not64Bit,
    /// The loader refuses the file.
    #[error("the kernel's file is damaged or does not fit into memory")]
    Refused(#[source] linux_loader::loader::Error),
    /// The file names an entry outside what was loaded.
    #[error("the kernel starts at {entry:#x}, outside of what its file loads")]
    EntryOutside {
        /// The address.
        entry: u64,
    },
    /// Kernel and initramfs do not fit into the machine's memory.
    #[error("kernel and initramfs take {needed_mib} MiB; the machine has {ram_mib} MiB")]
    TooLittleMemory {
        /// MiB that would be needed below the hole.
        needed_mib: u64,
        /// MiB of RAM.
        ram_mib: u32,
    },
}

impl LoadError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Read { .. } => "check that the file is there and readable",
            Self::NotAKernel { .. } | Self::Not64Bit | Self::EntryOutside { .. } => {
                "use a 64-bit x86 kernel: vmlinux, or the vmlinuz of a distribution"
            }
            Self::Refused(_) | Self::TooLittleMemory { .. } => {
                "give the machine more memory, or check the file"
            }
        }
    }
}

/// Where things were put.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) entry: Entry,
    /// The header of a bzImage, which goes into the boot parameters.
    pub(super) header: Option<setup_header>,
    /// Guest-physical address and bytes of the initramfs.
    pub(super) initramfs: Option<(u32, u32)>,
}

pub(super) fn load(
    memory: &GuestMemory,
    ram: RamSize,
    payload: &mut Payload,
) -> Result<Loaded, LoadError> {
    let kernel = &mut payload.kernel;
    let (entry, end, header) = match format(kernel)? {
        Kind::Elf => load_elf(memory, kernel)?,
        Kind::BzImage => load_bzimage(memory, kernel)?,
    };
    let low_end = ram.bytes().min(HOLE_START);
    let initramfs = match &mut payload.initramfs {
        None => None,
        Some(file) => {
            let limit = header.map_or(u64::MAX, |header| u64::from(header.initrd_addr_max) + 1);
            Some(load_initramfs(memory, ram, file, end, low_end.min(limit))?)
        }
    };
    if end > low_end {
        return Err(too_little(end, ram));
    }
    Ok(Loaded {
        entry,
        header,
        initramfs,
    })
}

fn format(kernel: &mut File) -> Result<Kind, LoadError> {
    let read = |source| LoadError::Read {
        file: "kernel",
        source,
    };
    let mut head = Vec::new();
    kernel.seek(SeekFrom::Start(0)).map_err(read)?;
    kernel.take(PAGE).read_to_end(&mut head).map_err(read)?;
    kernel.seek(SeekFrom::Start(0)).map_err(read)?;
    kind(&head).ok_or_else(|| {
        let mut magic = [0; 4];
        let len = head.len().min(4);
        magic[..len].copy_from_slice(&head[..len]);
        LoadError::NotAKernel { magic }
    })
}

type Placed = (Entry, u64, Option<setup_header>);

fn load_elf(memory: &GuestMemory, kernel: &mut File) -> Result<Placed, LoadError> {
    let high = Some(GuestAddress(HIGH_RAM));
    let loaded = Elf::load(memory, None, kernel, high).map_err(LoadError::Refused)?;
    let entry = loaded.kernel_load.raw_value();
    if !(HIGH_RAM..loaded.kernel_end).contains(&entry) {
        return Err(LoadError::EntryOutside { entry });
    }
    Ok((Entry { ip: entry }, loaded.kernel_end, None))
}

fn load_bzimage(memory: &GuestMemory, kernel: &mut File) -> Result<Placed, LoadError> {
    let high = Some(GuestAddress(HIGH_RAM));
    let loaded = BzImage::load(memory, None, kernel, high).map_err(LoadError::Refused)?;
    let header = loaded.setup_header.ok_or(LoadError::Not64Bit)?;
    if header.xloadflags & XLF_KERNEL_64 == 0 {
        return Err(LoadError::Not64Bit);
    }
    let start = loaded.kernel_load.raw_value();
    // A kernel unpacks itself to its preferred address, or above where it was loaded.
    let place = header.pref_address.max(start);
    let end = place.saturating_add(u64::from(header.init_size));
    let entry = Entry {
        ip: start + BZIMAGE_ENTRY,
    };
    Ok((entry, end.max(loaded.kernel_end), Some(header)))
}

fn load_initramfs(
    memory: &GuestMemory,
    ram: RamSize,
    file: &mut File,
    kernel_end: u64,
    limit: u64,
) -> Result<(u32, u32), LoadError> {
    let read = |source| LoadError::Read {
        file: "initramfs",
        source,
    };
    let len = file.seek(SeekFrom::End(0)).map_err(read)?;
    file.seek(SeekFrom::Start(0)).map_err(read)?;
    let start = limit.checked_sub(len).map(|start| start & !(PAGE - 1));
    let fits = start.filter(|start| *start >= kernel_end);
    let (Some(start), Ok(len)) = (fits, u32::try_from(len)) else {
        return Err(too_little(kernel_end.saturating_add(len), ram));
    };
    let Ok(address) = u32::try_from(start) else {
        return Err(too_little(start, ram));
    };
    let bytes = usize::try_from(len).unwrap_or(usize::MAX);
    memory
        .read_exact_volatile_from(GuestAddress(start), file, bytes)
        .map_err(|error| read(io::Error::other(error)))?;
    Ok((address, len))
}

fn too_little(needed: u64, ram: RamSize) -> LoadError {
    LoadError::TooLittleMemory {
        needed_mib: needed.div_ceil(1 << 20),
        ram_mib: ram.mib(),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::machine::memory::map;

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    fn try_load(kernel: &[u8], initramfs: Option<&[u8]>) -> Result<Loaded, LoadError> {
        let ram = RamSize::from_mib(32).unwrap();
        let mut payload = Payload {
            kernel: file(kernel),
            initramfs: initramfs.map(file),
            cmdline: String::new(),
        };
        load(&map(ram).unwrap(), ram, &mut payload)
    }

    /// An ELF file of one segment at `address` with `code`, entered at `entry`.
    fn elf(address: u64, entry: u64, code: &[u8]) -> Vec<u8> {
        let mut bytes = b"\x7fELF\x02\x01\x01".to_vec();
        bytes.resize(16, 0);
        bytes.extend([2, 0, 62, 0, 1, 0, 0, 0]);
        for field in [entry, 64, 0] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend([0, 0, 0, 0, 64, 0, 56, 0, 1, 0, 64, 0, 0, 0, 0, 0]);
        bytes.extend([1, 0, 0, 0, 7, 0, 0, 0]);
        let len = code.len() as u64;
        for field in [120, address, address, len, len, 4096] {
            bytes.extend(field.to_le_bytes());
        }
        bytes.extend(code);
        bytes
    }

    #[test]
    fn files_that_are_no_kernels_are_told_by_their_first_bytes() {
        let elf_32 = b"\x7fELF\x01\x01";
        for bytes in [&b""[..], b"#!", b"hello, world", &[0; 5000], elf_32] {
            let error = try_load(bytes, None).unwrap_err();
            assert!(matches!(error, LoadError::NotAKernel { .. }), "{error}");
        }
    }

    #[test]
    fn an_elf_file_is_entered_where_it_says() {
        let loaded = try_load(&elf(0x20_0000, 0x20_0004, &[0x90; 64]), None).unwrap();
        assert_eq!(loaded.entry.ip, 0x20_0004);
        assert!(loaded.header.is_none());
    }

    #[test]
    fn entries_and_segments_outside_memory_are_refused() {
        let error = try_load(&elf(0x20_0000, 0x50_0000, &[0x90; 64]), None).unwrap_err();
        assert!(matches!(error, LoadError::EntryOutside { .. }), "{error}");
        let error = try_load(&elf(64 << 20, 64 << 20, &[0x90; 64]), None).unwrap_err();
        assert!(matches!(error, LoadError::Refused(_)), "{error}");
        let cut = &elf(0x20_0000, 0x20_0000, &[0x90; 64])[..100];
        assert!(matches!(
            try_load(cut, None).unwrap_err(),
            LoadError::Refused(_)
        ));
    }

    #[test]
    fn an_initramfs_lies_at_the_end_of_memory_or_is_refused() {
        let kernel = elf(0x20_0000, 0x20_0000, &[0x90; 64]);
        let loaded = try_load(&kernel, Some(&[1; 5000])).unwrap();
        assert_eq!(loaded.initramfs, Some(((32 << 20) - 8192, 5000)));
        let large = vec![0; 31 << 20];
        let error = try_load(&kernel, Some(&large)).unwrap_err();
        assert!(
            matches!(error, LoadError::TooLittleMemory { .. }),
            "{error}"
        );
    }

    #[test]
    fn a_bzimage_without_a_64_bit_entry_is_refused() {
        let mut image = vec![0; 8192];
        image[0x1f1] = 1;
        image[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x206..0x208].copy_from_slice(&[0x0f, 0x02]);
        image[0x211] = 1;
        image[0x214..0x218].copy_from_slice(&0x10_0000u32.to_le_bytes());
        let error = try_load(&image, None).unwrap_err();
        assert!(matches!(error, LoadError::Not64Bit), "{error}");
        image[0x236] = 1;
        let loaded = try_load(&image, None).unwrap();
        assert_eq!(loaded.entry.ip, 0x10_0200);
        assert!(loaded.header.is_some());
    }
}
