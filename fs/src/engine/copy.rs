//! `copy_file_range` inside the engine.

use super::View;
use crate::dispatch::{Caller, OpError, Write};
use crate::id::Ino;

/// Bytes copied under one lock at a time.
const CHUNK: u64 = 1 << 20;
/// Bytes copied by one request: callers ask again for the rest, and can be interrupted between.
const REQUEST_MAX: u64 = 64 << 20;

impl View {
    pub(super) fn do_copy_range(
        &self,
        caller: Caller,
        (from, from_offset): (Ino, u64),
        (to, to_offset): (Ino, u64),
        len: u64,
    ) -> Result<u64, OpError> {
        if self.is_frozen() {
            return Err(OpError::ReadOnly);
        }
        let mut buffer = Vec::new();
        let mut copied = 0;
        // Checks the kind of the source even where there is nothing to copy.
        self.do_read(from, from_offset, 0, &mut buffer)?;
        // The end of the source as it is now: a file that is copied onto its own end grows.
        let available = self.do_getattr(from)?.size.saturating_sub(from_offset);
        let len = len.min(REQUEST_MAX).min(available);
        while copied < len {
            let chunk = usize::try_from(CHUNK.min(len - copied)).unwrap_or(usize::MAX);
            let Some(at) = from_offset.checked_add(copied) else {
                break;
            };
            self.do_read(from, at, chunk, &mut buffer)?;
            if buffer.is_empty() {
                break;
            }
            let offset = to_offset
                .checked_add(copied)
                .ok_or(OpError::TooBig { size: to_offset })?;
            let write = Write {
                offset,
                data: &buffer,
                append: false,
                // The kernel leaves it to us here, and does not say who may keep the bits.
                kill_set_id: caller.uid != 0,
            };
            match self.do_write(to, write) {
                Ok(()) => copied += buffer.len() as u64,
                // What has been copied counts; the caller meets the error when it asks again.
                Err(_) if copied > 0 => break,
                Err(error) => return Err(error),
            }
        }
        Ok(copied)
    }
}
