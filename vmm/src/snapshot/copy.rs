//! Writing pages of a guest into a memory file, each at its place.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use vm_memory::GuestMemoryError;

use super::image::{by_zero, offset, parts, punch};
use super::pages::{Pages, Run};
use super::ram::{Ram, bytes};

/// A memory file that is being filled.
///
/// Invariant: a page that was written last as zeros is a hole, so that an image has no page of zeros.
#[derive(Debug)]
pub(super) struct Copier<'a> {
    file: &'a File,
    // Pages that are not a hole.
    filled: Pages,
    buffer: Vec<u8>,
}

/// Why pages were not copied.
#[derive(Debug, thiserror::Error)]
pub enum CopyError {
    /// The guest's memory cannot be read, which does not happen.
    #[error("the guest's memory cannot be read")]
    Memory(#[from] GuestMemoryError),
    /// The file cannot be written.
    #[error("the memory file cannot be written")]
    File(#[from] io::Error),
}

impl<'a> Copier<'a> {
    pub(super) fn new(file: &'a File, pages: usize) -> Self {
        Self {
            file,
            filled: Pages::none(pages),
            buffer: Vec::new(),
        }
    }

    /// Copies pages as they are now, for as long as `go_on`; false if it said no.
    pub(super) fn copy(
        &mut self,
        ram: &Ram,
        pages: &Pages,
        go_on: &dyn Fn() -> bool,
    ) -> Result<bool, CopyError> {
        for part in pages.runs().flat_map(parts) {
            if !go_on() {
                return Ok(false);
            }
            self.copy_run(ram, part)?;
        }
        Ok(true)
    }

    /// Copies some pages that follow one another.
    pub(super) fn copy_run(&mut self, ram: &Ram, run: Run) -> Result<(), CopyError> {
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(bytes(run.len), 0);
        ram.read(run, &mut buffer)?;
        self.write(run.start, &buffer)?;
        self.buffer = buffer;
        Ok(())
    }

    /// Writes pages that were copied before.
    pub(super) fn write(&mut self, first: usize, pages: &[u8]) -> io::Result<()> {
        for (run, is_zero, bytes) in by_zero(first, pages) {
            if is_zero {
                self.clear(run)?;
            } else {
                self.file.write_all_at(bytes, offset(run.start))?;
                self.filled.insert_run(run);
            }
        }
        Ok(())
    }

    fn clear(&mut self, run: Run) -> io::Result<()> {
        let mut at = run.start;
        while let Some(start) = (at..run.end()).find(|page| self.filled.contains(*page)) {
            let filled = (start..run.end()).take_while(|page| self.filled.contains(*page));
            let len = filled.count();
            punch(self.file, Run { start, len })?;
            at = start + len;
            (start..at).for_each(|page| self.filled.remove(page));
        }
        Ok(())
    }
}
