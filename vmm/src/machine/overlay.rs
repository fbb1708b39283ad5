//! Putting an image's memory under a guest: parts of its RAM become private mappings of files.
//!
//! What the guest reads comes from the file, whose pages the host shares between all guests that were
//! started from it; what it writes is its own from then on. Nothing is read or copied here.

#![expect(unsafe_code, reason = "part of a mapping is replaced by another")]

use std::fs::File;
use std::io;

use rustix::mm::{MapFlags, ProtFlags, mmap};
use vm_memory::{GuestAddress, GuestMemoryBackend};

use super::memory::GuestMemory;

const PAGE: u64 = 4096;

/// Maps `len` bytes of `file` from `offset` on in place of the RAM at `start`. All three are whole pages,
/// and the file is at least so long for as long as the guest lives.
///
/// # Errors
/// The system's, and `EINVAL` for what is no RAM of one region or no whole pages: nothing is mapped then.
pub(crate) fn overlay(
    memory: &GuestMemory,
    start: GuestAddress,
    len: usize,
    file: &File,
    offset: u64,
) -> io::Result<()> {
    let refuse = || io::Error::from_raw_os_error(libc::EINVAL);
    let aligned = start.0.is_multiple_of(PAGE)
        && offset.is_multiple_of(PAGE)
        && len > 0
        && len.is_multiple_of(4096);
    // One region: a slice is contiguous in this process.
    let slice = memory.get_slice(start, len).map_err(|_| refuse())?;
    if !aligned || slice.len() != len {
        return Err(refuse());
    }
    let address = slice.ptr_guard_mut().as_ptr();
    let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
    // SAFETY: the range lies within one mapping that `memory` owns and unmaps as a whole, whatever it
    // was replaced by in part. Nobody has references into it: vm-memory copies, and KVM follows changes of
    // mappings (MMU notifiers). The machine does not run yet, so no access is under way.
    unsafe {
        mmap(
            address.cast(),
            len,
            ProtFlags::READ | ProtFlags::WRITE,
            flags,
            file,
            offset,
        )
    }?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use vm_memory::Bytes;

    use super::*;

    #[test]
    fn a_file_shows_through_and_is_never_written_to() {
        let memory = GuestMemory::from_ranges(&[(GuestAddress(0), 16 << 12)]).unwrap();
        let file = tempfile::tempfile().unwrap();
        file.set_len(16 << 12).unwrap();
        file.write_all_at(b"from the file", 5 << 12).unwrap();
        memory.write_obj(7u8, GuestAddress(4 << 12)).unwrap();
        memory.write_obj(7u8, GuestAddress(6 << 12)).unwrap();
        overlay(&memory, GuestAddress(5 << 12), 4096, &file, 5 << 12).unwrap();
        let mut found = [0; 13];
        memory
            .read_slice(&mut found, GuestAddress(5 << 12))
            .unwrap();
        assert_eq!(&found, b"from the file");
        memory.write_slice(b"to", GuestAddress(5 << 12)).unwrap();
        file.read_exact_at(&mut found, 5 << 12).unwrap();
        assert_eq!(&found, b"from the file");
        // Its neighbours are what they were.
        for page in [4, 6] {
            assert_eq!(memory.read_obj::<u8>(GuestAddress(page << 12)).unwrap(), 7);
        }
    }

    #[test]
    fn what_is_no_ram_is_refused() {
        let ranges = [(GuestAddress(0), 4 << 12), (GuestAddress(1 << 20), 4 << 12)];
        let memory = GuestMemory::from_ranges(&ranges).unwrap();
        let file = tempfile::tempfile().unwrap();
        for (start, len, offset) in [
            (3 << 12, 8192, 0),
            (4 << 12, 4096, 0),
            (1, 4096, 0),
            (0, 4095, 0),
            (0, 0, 0),
            (0, 4096, 1),
        ] {
            let result = overlay(&memory, GuestAddress(start), len, &file, offset);
            assert_eq!(
                result.unwrap_err().raw_os_error(),
                Some(libc::EINVAL),
                "{start:#x}"
            );
        }
    }
}
