//! RAM as a row of pages: where page `n` lies in a guest, and reading pages out of it.

use vm_memory::{Bytes, GuestAddress, GuestMemoryBackend, GuestMemoryError, GuestMemoryRegion};

use super::pages::{PAGE, Pages, Run};
use crate::machine::memory::GuestMemory;

/// The regions of a guest's RAM, by their first page.
#[derive(Clone, Debug)]
pub(super) struct Ram {
    memory: GuestMemory,
    regions: Vec<Region>,
    pages: usize,
}

#[derive(Clone, Copy, Debug)]
struct Region {
    first: usize,
    pages: usize,
    address: u64,
}

impl Ram {
    pub(super) fn new(memory: &GuestMemory) -> Self {
        let mut regions = Vec::new();
        let mut first = 0;
        for region in memory.iter() {
            // Sizes are MiB, of which a usize holds every number of pages.
            let pages = usize::try_from(region.len() / PAGE).unwrap_or(usize::MAX);
            regions.push(Region {
                first,
                pages,
                address: region.start_addr().0,
            });
            first += pages;
        }
        Self {
            memory: memory.clone(),
            regions,
            pages: first,
        }
    }

    /// How many pages there are.
    pub(super) fn pages(&self) -> usize {
        self.pages
    }

    pub(super) fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    /// The parts of a run that lie in one region, with their addresses.
    pub(super) fn parts(&self, run: Run) -> impl Iterator<Item = (Run, GuestAddress)> {
        self.regions.iter().filter_map(move |region| {
            let start = run.start.max(region.first);
            let end = run.end().min(region.first + region.pages);
            let len = end.checked_sub(start).filter(|len| *len > 0)?;
            let address = region.address + (start - region.first) as u64 * PAGE;
            Some((Run { start, len }, GuestAddress(address)))
        })
    }

    /// Copies a run's pages out, as they are at this moment; `to` has as many bytes.
    pub(super) fn read(&self, run: Run, to: &mut [u8]) -> Result<(), GuestMemoryError> {
        for (part, address) in self.parts(run) {
            let at = bytes(part.start - run.start);
            self.memory
                .read_slice(&mut to[at..at + bytes(part.len)], address)?;
        }
        Ok(())
    }

    /// Pages that this process wrote to since the last call.
    pub(super) fn take_own_writes(&self) -> Pages {
        let mut own = Pages::none(self.pages);
        for (region, found) in self.memory.iter().zip(&self.regions) {
            let log = region.get_mmap().bitmap().get_and_reset();
            own.union_log(found.first, &log);
        }
        own
    }

    /// Adds what KVM logged, by region.
    pub(super) fn add_log(&self, pages: &mut Pages, log: &[Vec<u64>]) {
        for (region, log) in self.regions.iter().zip(log) {
            pages.union_log(region.first, log);
        }
    }

    /// Where a region's pages are in this process.
    pub(super) fn host_ranges(&self) -> impl Iterator<Item = (Run, u64)> {
        self.memory
            .iter()
            .zip(&self.regions)
            .map(|(region, found)| {
                let run = Run {
                    start: found.first,
                    len: found.pages,
                };
                (run, region.get_mmap().as_ptr() as u64)
            })
    }
}

/// Bytes of that many pages of a RAM that is mapped, so that it is a usize.
pub(super) fn bytes(pages: usize) -> usize {
    pages * 4096
}

#[cfg(test)]
mod tests {
    use super::*;

    fn memory() -> GuestMemory {
        GuestMemory::from_ranges(&[
            (GuestAddress(0), 64 << 12),
            (GuestAddress(1 << 32), 8 << 12),
        ])
        .unwrap()
    }

    #[test]
    fn pages_go_on_after_the_hole() {
        let ram = Ram::new(&memory());
        assert_eq!(ram.pages(), 72);
        let run = Run { start: 62, len: 4 };
        let parts: Vec<_> = ram.parts(run).collect();
        assert_eq!(
            parts,
            [
                (Run { start: 62, len: 2 }, GuestAddress(62 << 12)),
                (Run { start: 64, len: 2 }, GuestAddress(1 << 32)),
            ]
        );
        ram.memory().write_obj(7u8, GuestAddress(63 << 12)).unwrap();
        ram.memory()
            .write_obj(9u8, GuestAddress((1 << 32) + 4096))
            .unwrap();
        let mut to = vec![0; 4 << 12];
        ram.read(run, &mut to).unwrap();
        assert_eq!((to[1 << 12], to[3 << 12]), (7, 9));
    }

    #[test]
    fn own_writes_are_told_once() {
        let ram = Ram::new(&memory());
        assert!(ram.take_own_writes().is_empty());
        ram.memory()
            .write_obj(7u64, GuestAddress((5 << 12) - 4))
            .unwrap();
        ram.memory()
            .write_obj(9u8, GuestAddress((1 << 32) + 4096))
            .unwrap();
        let found: Vec<_> = ram.take_own_writes().runs().collect();
        assert_eq!(found, [Run { start: 4, len: 2 }, Run { start: 65, len: 1 }]);
        assert!(ram.take_own_writes().is_empty());
    }
}
