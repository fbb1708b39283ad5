//! Reads the version out of a kernel's file and of a module's. Pure, and of any bytes.

/// Where a bzImage says so: `HdrS`. Source: the kernel's `Documentation/arch/x86/boot.rst`.
const MAGIC: (usize, &[u8]) = (0x202, b"HdrS");

/// Where the place of its version string is, less [`SETUP`].
const VERSION_OFFSET: usize = 0x20e;

/// What that is relative to.
const SETUP: usize = 0x200;

/// How a module begins to say for which kernel it is. Source: `MODULE_INFO` and `VERMAGIC_STRING` in
/// the kernel's `include/linux`.
const VERMAGIC: &[u8] = b"vermagic=";

/// How an uncompressed kernel says which it is (`linux_banner` in its `init/version.c`).
const BANNER: &[u8] = b"Linux version ";

/// Longest version that is believed, in bytes.
const VERSION_MAX: usize = 128;

/// What a kernel's file is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A compressed kernel for the x86 boot protocol (`vmlinuz`).
    BzImage,
    /// An ELF file (`vmlinux`).
    Elf,
}

/// What a kernel's file is, if it is one that boots here.
#[must_use]
pub fn kind(kernel: &[u8]) -> Option<Kind> {
    if kernel.get(MAGIC.0..MAGIC.0 + MAGIC.1.len()) == Some(MAGIC.1) {
        Some(Kind::BzImage)
    } else if kernel.starts_with(b"\x7fELF\x02\x01") {
        Some(Kind::Elf)
    } else {
        None
    }
}

/// The kernel's version, as `uname -r` shows it.
#[must_use]
pub fn version(kernel: &[u8]) -> Option<String> {
    match kind(kernel)? {
        Kind::BzImage => {
            let place = kernel.get(VERSION_OFFSET..VERSION_OFFSET + 2)?;
            let place = usize::from(u16::from_le_bytes([place[0], place[1]]));
            word(kernel.get(SETUP + place..)?)
        }
        Kind::Elf => word(after(kernel, BANNER)?),
    }
}

/// The version of the kernel that a module, not compressed, is for.
#[must_use]
pub fn module_version(module: &[u8]) -> Option<String> {
    word(after(module, VERMAGIC)?)
}

fn after<'a>(bytes: &'a [u8], what: &[u8]) -> Option<&'a [u8]> {
    let at = bytes
        .windows(what.len())
        .position(|window| window == what)?;
    bytes.get(at + what.len()..)
}

/// The printable characters up to the first that is none, or a space.
fn word(bytes: &[u8]) -> Option<String> {
    let bytes = bytes.get(..VERSION_MAX).unwrap_or(bytes);
    let len = bytes
        .iter()
        .position(|byte| !byte.is_ascii_graphic())
        .unwrap_or(bytes.len());
    (len > 0).then(|| String::from_utf8_lossy(&bytes[..len]).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bz_image() -> Vec<u8> {
        let mut image = vec![0; 0x400];
        image[0x202..0x206].copy_from_slice(b"HdrS");
        image[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
        image[0x300..0x310].copy_from_slice(b"6.1.0-57 (x) #1\0");
        image
    }

    #[test]
    fn a_bz_image_says_its_version() {
        let mut image = bz_image();
        assert_eq!(version(&image).as_deref(), Some("6.1.0-57"));
        image[0x20f] = 0xff;
        assert_eq!(version(&image), None);
        assert_eq!(kind(&image[..0x204]), None);
    }

    #[test]
    fn an_elf_kernel_and_a_module_say_their_versions() {
        let kernel = b"\x7fELF\x02\x01...Linux version 6.6.9 (me@there)";
        assert_eq!(version(kernel).as_deref(), Some("6.6.9"));
        let module = b"\x7fELF..\0vermagic=6.1.0-57-amd64 SMP preempt\0";
        assert_eq!(module_version(module).as_deref(), Some("6.1.0-57-amd64"));
        assert_eq!(module_version(b"vermagic="), None);
        assert_eq!(version(b"#!/bin/sh"), None);
    }
}
