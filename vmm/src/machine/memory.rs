//! Guest RAM: how much, and where it lies.
//!
//! Invariants: RAM starts at address 0 and is contiguous but for the hole below 4 GiB, where no
//! RAM ever is; it is mapped before the first vCPU runs and stays mapped, at the same host
//! address, for the life of the machine. Whoever holds a [`GuestMemory`] keeps the mapping alive,
//! so a range that was checked once stays valid. References into it are never made: every access
//! goes through `vm-memory`, which copies.

use vm_memory::bitmap::AtomicBitmap;
use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use super::layout::{HOLE_END, HOLE_START};

/// The RAM of a guest. Clones share it. Its bitmap has a bit for each page that *this process* wrote
/// to since the bit was last cleared; what the guest writes itself, KVM keeps account of.
pub type GuestMemory = GuestMemoryMmap<AtomicBitmap>;

const MIB: u64 = 1 << 20;

/// A size of guest RAM within the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RamSize {
    mib: u32,
}

/// Why a number of vCPUs or a size of RAM is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum LimitError {
    /// The size of RAM is out of range.
    #[error("a machine has {min} to {max} MiB of memory, not {asked}", min = RamSize::MIN_MIB, max = RamSize::MAX_MIB)]
    Ram {
        /// MiB that were asked for.
        asked: u32,
    },
    /// The number of vCPUs is out of range.
    #[error("a machine has {min} to {max} vCPUs, not {asked}", min = VcpuCount::MIN, max = VcpuCount::MAX)]
    Vcpus {
        /// vCPUs that were asked for.
        asked: u8,
    },
}

impl RamSize {
    /// Least RAM, in MiB: what a small kernel with an initramfs needs.
    pub const MIN_MIB: u32 = 32;
    /// Most RAM, in MiB (64 GiB).
    pub const MAX_MIB: u32 = 64 * 1024;

    /// Checks a size given in MiB.
    ///
    /// # Errors
    /// [`LimitError::Ram`] outside [`Self::MIN_MIB`]..=[`Self::MAX_MIB`].
    pub fn from_mib(mib: u32) -> Result<Self, LimitError> {
        if (Self::MIN_MIB..=Self::MAX_MIB).contains(&mib) {
            Ok(Self { mib })
        } else {
            Err(LimitError::Ram { asked: mib })
        }
    }

    /// The size in MiB.
    #[must_use]
    pub fn mib(self) -> u32 {
        self.mib
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        u64::from(self.mib) * MIB
    }

    /// The ranges of RAM as (first address, bytes): one, or two around the hole.
    #[must_use]
    pub fn ranges(self) -> Vec<(u64, u64)> {
        let bytes = self.bytes();
        if bytes <= HOLE_START {
            vec![(0, bytes)]
        } else {
            vec![(0, HOLE_START), (HOLE_END, bytes - HOLE_START)]
        }
    }
}

/// A number of vCPUs within the limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct VcpuCount(u8);

impl VcpuCount {
    /// Fewest vCPUs.
    pub const MIN: u8 = 1;
    /// Most vCPUs.
    pub const MAX: u8 = 8;

    /// Checks a number of vCPUs.
    ///
    /// # Errors
    /// [`LimitError::Vcpus`] outside [`Self::MIN`]..=[`Self::MAX`].
    pub fn new(count: u8) -> Result<Self, LimitError> {
        if (Self::MIN..=Self::MAX).contains(&count) {
            Ok(Self(count))
        } else {
            Err(LimitError::Vcpus { asked: count })
        }
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// Why guest RAM could not be mapped.
#[derive(Debug, thiserror::Error)]
#[error("cannot map {mib} MiB of guest memory")]
pub struct MapError {
    mib: u32,
    source: vm_memory::mmap::FromRangesError,
}

/// Maps fresh, zeroed RAM. The host gives pages as the guest touches them.
///
/// # Errors
/// [`MapError`] when the host refuses the mapping.
pub fn map(size: RamSize) -> Result<GuestMemory, MapError> {
    let fail = |source| MapError {
        mib: size.mib(),
        source,
    };
    let mut ranges = Vec::new();
    for (start, bytes) in size.ranges() {
        // Every host that has KVM on x86-64 has a 64-bit usize; sizes are at most 64 GiB.
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        ranges.push((GuestAddress(start), bytes));
    }
    GuestMemory::from_ranges(&ranges).map_err(fail)
}

/// Whether `len` bytes at `start`, at least one, are all RAM and do not wrap.
#[must_use]
pub fn is_ram(memory: &GuestMemory, start: GuestAddress, len: u32) -> bool {
    usize::try_from(len).is_ok_and(|len| GuestMemoryBackend::check_range(memory, start, len))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_outside_the_limits_are_refused_with_the_limits() {
        assert!(RamSize::from_mib(31).is_err());
        assert!(RamSize::from_mib(64 * 1024 + 1).is_err());
        assert_eq!(RamSize::from_mib(32).unwrap().bytes(), 32 << 20);
        assert_eq!(
            RamSize::from_mib(1).unwrap_err().to_string(),
            "a machine has 32 to 65536 MiB of memory, not 1"
        );
        assert!(VcpuCount::new(0).is_err());
        assert!(VcpuCount::new(9).is_err());
        assert_eq!(VcpuCount::new(8).unwrap().get(), 8);
    }

    #[test]
    fn ram_goes_around_the_hole() {
        let small = RamSize::from_mib(3072).unwrap();
        assert_eq!(small.ranges(), [(0, HOLE_START)]);
        let large = RamSize::from_mib(3073).unwrap();
        assert_eq!(large.ranges(), [(0, HOLE_START), (HOLE_END, 1 << 20)]);
        let all: u64 = large.ranges().iter().map(|(_, bytes)| bytes).sum();
        assert_eq!(all, large.bytes());
    }

    #[test]
    fn ranges_that_leave_ram_are_not_ram() {
        let memory = map(RamSize::from_mib(32).unwrap()).unwrap();
        let end = 32 << 20;
        assert!(is_ram(&memory, GuestAddress(0), 1 << 20));
        assert!(is_ram(&memory, GuestAddress(end - 1), 1));
        assert!(!is_ram(&memory, GuestAddress(end - 1), 2));
        assert!(!is_ram(&memory, GuestAddress(end), 1));
        assert!(!is_ram(&memory, GuestAddress(u64::MAX), 2));
        assert!(!is_ram(&memory, GuestAddress(0), u32::MAX));
    }
}
