//! Reading and writing pages of sparse files.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{FallocateFlags, SeekFrom};

use crate::snapshot::pages::{PAGE, Run};
use crate::snapshot::ram::bytes;

/// Most pages that are copied at once.
pub(super) const AT_ONCE: usize = 256;

/// Parts of a run of at most [`AT_ONCE`] pages.
pub(in crate::snapshot) fn parts(run: Run) -> impl Iterator<Item = Run> {
    (run.start..run.end())
        .step_by(AT_ONCE)
        .map(move |start| Run {
            start,
            len: AT_ONCE.min(run.end() - start),
        })
}

/// Where a page is in a memory file.
pub(in crate::snapshot) fn offset(page: usize) -> u64 {
    page as u64 * PAGE
}

/// Reads pages; `to` has room for them.
pub(super) fn read(file: &File, run: Run, to: &mut [u8]) -> io::Result<()> {
    file.read_exact_at(&mut to[..bytes(run.len)], offset(run.start))
}

/// Gives the pages' space back: they are zeros then.
pub(in crate::snapshot) fn punch(file: &File, run: Run) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    let len = run.len as u64 * PAGE;
    Ok(rustix::fs::fallocate(file, flags, offset(run.start), len)?)
}

/// Pages as runs of which all are zeros, or none is: where each is, and its bytes.
pub(in crate::snapshot) fn by_zero(
    first: usize,
    pages: &[u8],
) -> impl Iterator<Item = (Run, bool, &[u8])> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = pages.get(bytes(at)..).filter(|rest| !rest.is_empty())?;
        let mut each = rest.chunks(4096).map(is_zero);
        let zero = each.next()?;
        let len = 1 + each.take_while(|is_zero| *is_zero == zero).count();
        let run = Run {
            start: first + at,
            len,
        };
        at += len;
        Some((run, zero, &rest[..bytes(len).min(rest.len())]))
    })
}

/// Writes pages where they are not all zeros; the file has a hole there before.
pub(super) fn write_sparse(file: &File, first: usize, pages: &[u8]) -> io::Result<()> {
    let mut filled = by_zero(first, pages).filter(|(_, zero, _)| !zero);
    filled.try_for_each(|(run, _, bytes)| file.write_all_at(bytes, offset(run.start)))
}

/// Whether a page has nothing but zeros.
pub(super) fn is_zero(page: &[u8]) -> bool {
    // By words, which the compiler makes vectors of.
    let (words, rest) = page.as_chunks::<64>();
    rest.iter().all(|byte| *byte == 0)
        && words
            .iter()
            .all(|word| word.iter().fold(0, |all, byte| all | byte) == 0)
}

/// The parts of a file that have data, as (offset, bytes).
pub(super) fn data(file: &File, len: u64) -> io::Result<Vec<(u64, u64)>> {
    let mut found = Vec::new();
    let mut at = 0;
    while at < len {
        let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // No data after here.
            Err(rustix::io::Errno::NXIO) => break,
            Err(error) => return Err(error.into()),
        };
        let end = rustix::fs::seek(file, SeekFrom::Hole(start))?;
        found.push((start, end.min(len) - start.min(len)));
        at = end;
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_pages_take_no_space_and_punched_ones_give_it_back() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(64 * PAGE).unwrap();
        let mut pages = vec![0; bytes(8)];
        pages[bytes(2)] = 1;
        pages[bytes(3) + 4095] = 2;
        pages[bytes(7) + 1] = 3;
        write_sparse(&file, 10, &pages).unwrap();
        let found = data(&file, 64 * PAGE).unwrap();
        assert_eq!(found, [(12 * PAGE, 2 * PAGE), (17 * PAGE, PAGE)]);
        let mut back = vec![1; bytes(8)];
        read(&file, Run { start: 10, len: 8 }, &mut back).unwrap();
        assert_eq!(back, pages);
        punch(&file, Run { start: 12, len: 1 }).unwrap();
        assert_eq!(data(&file, 64 * PAGE).unwrap()[0], (13 * PAGE, PAGE));
    }

    #[test]
    fn only_zeros_are_zero() {
        let mut page = [0; 4096];
        assert!(is_zero(&page));
        for at in [0, 63, 64, 4095] {
            page[at] = 1;
            assert!(!is_zero(&page), "{at}");
            page[at] = 0;
        }
    }
}
