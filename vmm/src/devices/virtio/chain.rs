//! A chain of descriptors, checked.
//!
//! What a driver puts into a queue is only alleged to be a chain of buffers. [`Chain::parse`] reads
//! it once; a [`Chain`] is what came out:
//! - its ranges are RAM (which is never unmapped), so they stay accessible;
//! - everything the device may read comes before everything it may write;
//! - it has at least one descriptor and at most [`DESCRIPTORS_MAX`], and ends properly.
//!
//! What the ranges *contain* the driver may change at any moment: contents are copied out once,
//! then checked.

use serde::{Deserialize, Serialize};
use virtio_queue::DescriptorChain;
use virtio_queue::desc::split::Descriptor;
use vm_memory::{Bytes, GuestAddress, GuestMemoryError};

use super::Fault;
use crate::machine::memory::{GuestMemory, is_ram};

/// Most descriptors of one chain, in an indirect table too: four times what a request of 1 MiB
/// takes in pages.
pub const DESCRIPTORS_MAX: usize = 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Range {
    address: u64,
    len: u32,
}

/// A checked chain of descriptors.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Chain {
    head: u16,
    readable: Vec<Range>,
    writable: Vec<Range>,
    readable_len: u32,
    writable_len: u32,
}

impl Chain {
    /// Reads and checks a chain of the queue number `queue`.
    ///
    /// # Errors
    /// [`Fault::Chain`] says what is wrong.
    pub fn parse(
        queue: usize,
        memory: &GuestMemory,
        chain: DescriptorChain<&GuestMemory>,
    ) -> Result<Self, Fault> {
        let wrong = |what| Fault::Chain { queue, what };
        let mut parsed = Self {
            head: chain.head_index(),
            readable: Vec::new(),
            writable: Vec::new(),
            readable_len: 0,
            writable_len: 0,
        };
        let mut open = true;
        for (count, descriptor) in chain.enumerate() {
            if count >= DESCRIPTORS_MAX {
                return Err(wrong("is too long"));
            }
            parsed.push(memory, descriptor).map_err(wrong)?;
            open = descriptor.has_next();
        }
        // The iterator ends without a word at an index outside of the table, at a loop and at an
        // indirect table that is none.
        if open {
            return Err(wrong("does not end"));
        }
        Ok(parsed)
    }

    fn push(&mut self, memory: &GuestMemory, descriptor: Descriptor) -> Result<(), &'static str> {
        let (address, len) = (descriptor.addr(), descriptor.len());
        if len == 0 {
            return Ok(());
        }
        if !is_ram(memory, address, len) {
            return Err("names memory that the machine does not have");
        }
        let range = Range {
            address: address.0,
            len,
        };
        let (ranges, total) = if descriptor.is_write_only() {
            (&mut self.writable, &mut self.writable_len)
        } else if self.writable.is_empty() {
            (&mut self.readable, &mut self.readable_len)
        } else {
            return Err("has something to read after something to write");
        };
        *total = total.checked_add(len).ok_or("is longer than 4 GiB")?;
        ranges.push(range);
        Ok(())
    }

    /// Index of the first descriptor, which identifies the chain to its driver.
    #[must_use]
    pub fn head(&self) -> u16 {
        self.head
    }

    /// Bytes that the device may read.
    #[must_use]
    pub fn readable_len(&self) -> u32 {
        self.readable_len
    }

    /// Bytes that the device may write.
    #[must_use]
    pub fn writable_len(&self) -> u32 {
        self.writable_len
    }

    /// Copies out what the device may read, from the start, as much as fits into `to`. Returns how
    /// many bytes that is.
    ///
    /// # Errors
    /// The memory's, which does not happen to checked ranges.
    pub fn read(&self, memory: &GuestMemory, to: &mut [u8]) -> Result<usize, GuestMemoryError> {
        let mut done = 0;
        for range in &self.readable {
            let part = &mut to[done..];
            let len = part.len().min(length(range.len));
            memory.read_slice(&mut part[..len], GuestAddress(range.address))?;
            done += len;
        }
        Ok(done)
    }

    /// Appends to `to` what the device may read, beginning `offset` bytes into it, at most `len` bytes.
    /// Returns how many that is.
    ///
    /// # Errors
    /// The memory's, which does not happen to checked ranges.
    pub fn append_to(
        &self,
        memory: &GuestMemory,
        offset: u32,
        len: u32,
        to: &mut Vec<u8>,
    ) -> Result<u32, GuestMemoryError> {
        let mut skip = offset;
        let mut done = 0;
        for range in &self.readable {
            if skip >= range.len {
                skip -= range.len;
                continue;
            }
            let part = (len - done).min(range.len - skip);
            if part == 0 {
                break;
            }
            let address = GuestAddress(range.address + u64::from(skip));
            memory.write_all_volatile_to(address, to, length(part))?;
            done += part;
            skip = 0;
        }
        Ok(done)
    }

    /// Copies `from` into what the device may write, beginning `offset` bytes into it, as much as
    /// fits. Returns how many bytes that is.
    ///
    /// # Errors
    /// The memory's, which does not happen to checked ranges.
    pub fn write(
        &self,
        memory: &GuestMemory,
        offset: u32,
        from: &[u8],
    ) -> Result<usize, GuestMemoryError> {
        let mut skip = offset;
        let mut done = 0;
        for range in &self.writable {
            if skip >= range.len {
                skip -= range.len;
                continue;
            }
            let len = (from.len() - done).min(length(range.len - skip));
            let address = GuestAddress(range.address + u64::from(skip));
            memory.write_slice(&from[done..done + len], address)?;
            done += len;
            skip = 0;
        }
        Ok(done)
    }
}

/// A `u32` fits into every `usize` that KVM runs on.
fn length(len: u32) -> usize {
    usize::try_from(len).unwrap_or(usize::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::memory::{RamSize, map};

    #[test]
    fn what_is_appended_is_the_part_that_was_asked_for_across_ranges() {
        let memory = map(RamSize::from_mib(32).unwrap()).unwrap();
        let parts: [(u64, &[u8]); 3] = [(0x1000, b"abc"), (0x3000, b"d"), (0x2000, b"efgh")];
        let mut chain = Chain {
            head: 0,
            readable: Vec::new(),
            writable: Vec::new(),
            readable_len: 8,
            writable_len: 0,
        };
        for (address, bytes) in parts {
            memory.write_slice(bytes, GuestAddress(address)).unwrap();
            chain.readable.push(Range {
                address,
                len: u32::try_from(bytes.len()).unwrap(),
            });
        }
        let all = b"abcdefgh";
        for offset in 0..10u32 {
            for len in 0..10u32 {
                let mut to = b"before".to_vec();
                let done = chain.append_to(&memory, offset, len, &mut to).unwrap();
                let start = all.len().min(offset as usize);
                let end = all.len().min(start + len as usize);
                assert_eq!(to, [b"before", &all[start..end]].concat());
                assert_eq!(done as usize, end - start);
            }
        }
    }
}
