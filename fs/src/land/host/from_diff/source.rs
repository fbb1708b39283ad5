//! Contents of a workspace's files, for new files on the host.

use std::io;
use std::ops::Range;

use super::super::Source;
use crate::dispatch::{Dispatch, Errno, OpError};
use crate::engine::View;
use crate::id::Ino;

/// A view as a source: contents have the number of their inode.
pub(super) struct ViewSource<'a>(pub(super) &'a View);

fn failed(error: OpError) -> io::Error {
    io::Error::new(
        io::Error::from_raw_os_error(Errno::from(&error).0).kind(),
        error,
    )
}

impl Source for ViewSource<'_> {
    fn read(&self, contents: u64, offset: u64, len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        self.0.read(Ino(contents), offset, len, out).map_err(failed)
    }

    fn data(&self, contents: u64, from: u64) -> io::Result<Option<Range<u64>>> {
        let seek = |at, hole| self.0.seek(Ino(contents), at, hole);
        let start = match seek(from, false) {
            Err(OpError::SeekPastEnd { .. }) => return Ok(None),
            start => start.map_err(failed)?,
        };
        Ok(Some(start..seek(start, true).map_err(failed)?))
    }
}
