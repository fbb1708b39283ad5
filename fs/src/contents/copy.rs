//! Copying a file of the host into an object.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};

use super::ContentsError;
use crate::fault::write_all_at;
use crate::id::ObjectId;

/// Bytes copied at a time.
const CHUNK: usize = 1 << 20;

/// Why a file could not be copied.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CopyError {
    #[error("cannot read the source")]
    Source(#[source] io::Error),
    #[error(transparent)]
    Target(#[from] ContentsError),
    #[error("stopped")]
    Stopped,
}

/// A copy to make.
pub(crate) struct FileCopy<'a> {
    pub(crate) from: &'a File,
    pub(crate) to: &'a File,
    /// The object that is copied to.
    pub(crate) object: ObjectId,
    pub(crate) size: u64,
    /// Whether the disk can share extents.
    pub(crate) reflink: bool,
}

/// Copies a file's data, by sharing extents where the disk can, leaving its holes out. `buffer` is
/// for the caller to keep; `go_on` is asked now and then.
pub(crate) fn copy_file(
    copy: &FileCopy<'_>,
    buffer: &mut Vec<u8>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), CopyError> {
    let FileCopy {
        from,
        to,
        object,
        size,
        reflink,
    } = *copy;
    if reflink && rustix::fs::ioctl_ficlone(to, from).is_ok() {
        return Ok(());
    }
    buffer.resize(CHUNK, 0);
    let mut at = 0;
    while at < size {
        let data = match seek(from, SeekFrom::Data(at)) {
            Ok(data) => data,
            Err(rustix::io::Errno::NXIO) => break,
            // A file system without holes has data everywhere.
            Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => at,
            Err(errno) => return Err(CopyError::Source(errno.into())),
        };
        let hole = seek(from, SeekFrom::Hole(data)).unwrap_or(size).min(size);
        at = data;
        while at < hole {
            if !go_on() {
                return Err(CopyError::Stopped);
            }
            let len = usize::try_from(hole - at).unwrap_or(CHUNK).min(CHUNK);
            let count = from
                .read_at(&mut buffer[..len], at)
                .map_err(CopyError::Source)?;
            if count == 0 {
                // Cut shorter while it was read; the rest reads as zeros.
                return Ok(());
            }
            write_all_at(to, &buffer[..count], at)
                .map_err(ContentsError::object("write to", object))?;
            at += count as u64;
        }
    }
    Ok(())
}
