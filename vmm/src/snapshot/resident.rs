//! Which pages of a guest's RAM there are at all, so that those that were never touched are not read.
//!
//! From `/proc/self/pagemap` (`Documentation/admin-guide/mm/pagemap.rst`), opened before the process is
//! confined. A page that is neither present nor swapped out was never touched and is zeros, provided
//! that its memory is anonymous.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::pages::{PAGE, Pages};
use super::ram::Ram;

const PRESENT: u64 = 1 << 63;
const SWAPPED: u64 = 1 << 62;
/// Entries that are read at once.
const AT_ONCE: usize = 8192;

/// The kernel's account of this process's pages.
#[derive(Debug)]
pub(super) struct Pagemap(File);

impl Pagemap {
    pub(super) fn open() -> io::Result<Self> {
        File::open("/proc/self/pagemap").map(Self)
    }

    /// Pages that are not known to be zeros.
    pub(super) fn touched(&self, ram: &Ram) -> io::Result<Pages> {
        let mut touched = Pages::none(ram.pages());
        let mut buffer = vec![0; AT_ONCE * 8];
        for (run, address) in ram.host_ranges() {
            for start in (0..run.len).step_by(AT_ONCE) {
                let count = AT_ONCE.min(run.len - start);
                let entries = &mut buffer[..count * 8];
                let number = address / PAGE + start as u64;
                self.0.read_exact_at(entries, number * 8)?;
                let (entries, _) = entries.as_chunks::<8>();
                for (at, entry) in entries.iter().enumerate() {
                    if u64::from_ne_bytes(*entry) & (PRESENT | SWAPPED) != 0 {
                        touched.insert(run.start + start + at);
                    }
                }
            }
        }
        Ok(touched)
    }
}

#[cfg(test)]
mod tests {
    use vm_memory::{Bytes, GuestAddress};

    use super::*;
    use crate::machine::memory::GuestMemory;

    #[test]
    fn a_page_counts_from_its_first_write_on() {
        let ranges = [
            (GuestAddress(0), 64 << 12),
            (GuestAddress(1 << 32), 20_000 << 12),
        ];
        let ram = Ram::new(&GuestMemory::from_ranges(&ranges).unwrap());
        let pagemap = Pagemap::open().unwrap();
        let before = pagemap.touched(&ram).unwrap();
        let write = |address| ram.memory().write_obj(1u8, GuestAddress(address)).unwrap();
        write(5 << 12);
        write((1 << 32) + (19_999 << 12));
        let after = pagemap.touched(&ram).unwrap();
        for page in [5, 64 + 19_999] {
            assert!(!before.contains(page) && after.contains(page), "{page}");
        }
        assert!(!after.contains(6));
    }
}
