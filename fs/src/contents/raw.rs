//! The file of an object by itself, for whoever looks after the store.
//!
//! Not through the cache of descriptors: that is for those who use a workspace, and what it has of an
//! object that was just taken in may be the file on the host still. What is known to be damaged is
//! given out here as it is.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt, OpenOptionsExt};

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use super::{BLOCK, Objects};
use crate::id::ObjectId;

impl Objects {
    /// Opens an object's own file. An error says that it is missing, or no file.
    pub(crate) fn open_raw(&self, id: ObjectId, writable: bool) -> io::Result<File> {
        let mut options = OpenOptions::new();
        options.read(true).write(writable);
        options.custom_flags(libc::O_NOFOLLOW).open(self.path(id))
    }
}

/// Fills a buffer from a place on, as far as the file goes; returns how much that is.
pub(crate) fn read_at(file: &File, mut at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut len = 0;
    while len < buffer.len() {
        match file.read_at(&mut buffer[len..], at) {
            Ok(0) => break,
            Ok(count) => {
                len += count;
                at += count as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(len)
}

/// Reads a block; fewer bytes than [`BLOCK`] at the end of the file, none behind it.
pub(crate) fn read_block(file: &File, block: u64, buffer: &mut [u8]) -> io::Result<usize> {
    debug_assert_eq!(buffer.len() as u64, BLOCK);
    read_at(file, block.saturating_mul(BLOCK), buffer)
}

/// The next run of data at or behind a place; none if there is nothing but holes.
pub(crate) fn next_data(file: &File, at: u64) -> io::Result<Option<Range<u64>>> {
    let found = seek(file, SeekFrom::Data(at)).and_then(|start| {
        let end = seek(file, SeekFrom::Hole(start))?;
        Ok(start..end)
    });
    match found {
        Ok(run) => Ok(Some(run)),
        // Also if it is cut meanwhile.
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

/// Bytes of data in a part of a file.
pub(crate) fn data_in(file: &File, part: Range<u64>) -> io::Result<u64> {
    let (mut at, mut bytes) = (part.start, 0);
    while at < part.end {
        let Some(run) = next_data(file, at)? else {
            break;
        };
        bytes += run.end.min(part.end).saturating_sub(run.start);
        at = run.end;
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contents::as_len;

    #[test]
    fn data_is_found_and_read_as_far_as_there_is_any() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(next_data(&file, 0).unwrap(), None);
        file.write_all_at(&[1; 4096], 2 * BLOCK).unwrap();
        file.write_all_at(&[2; 100], 3 * BLOCK).unwrap();
        let first = next_data(&file, 0).unwrap().unwrap();
        // A file system without holes has data everywhere.
        if first.start > 0 {
            assert_eq!(first, 2 * BLOCK..2 * BLOCK + 4096);
            assert_eq!(data_in(&file, 0..u64::MAX).unwrap(), 4096 + 100);
            assert_eq!(data_in(&file, 0..2 * BLOCK + 7).unwrap(), 7);
        }
        assert_eq!(next_data(&file, 4 * BLOCK).unwrap(), None);
        let mut buffer = vec![9; as_len(BLOCK)];
        assert_eq!(read_block(&file, 3, &mut buffer).unwrap(), 100);
        assert!(buffer[..100].iter().all(|&byte| byte == 2));
        assert_eq!(read_block(&file, 4, &mut buffer).unwrap(), 0);
    }
}
