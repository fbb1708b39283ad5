//! Hashing one object, a little at a time: files can be large.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::FileExt;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::catalog::ObjectRecord;
use crate::change::BLOCK_END;
use crate::contents::{BLOCK, Checksum, ContentsError, as_len, hash_block};
use crate::core::Core;
use crate::dispatch::OpError;
use crate::id::ObjectId;

/// An object that is being hashed.
pub(super) struct Reading {
    object: ObjectId,
    file: File,
    len: u64,
    /// Runs of claimed blocks that are not done yet, the next one last. None reaches behind the file.
    claimed: Vec<Range<u64>>,
    /// Blocks that are left out.
    damaged: Vec<u64>,
    pub(super) checksum: Checksum,
    buffer: Vec<u8>,
}

impl Reading {
    pub(super) fn open(core: &Core, record: &ObjectRecord) -> Result<Self, OpError> {
        let (file, len) = open(core, record.id)?;
        let end = len.div_ceil(BLOCK);
        // In a damaged catalog they may overlap.
        let mut at = 0;
        let claimed = core.catalog.claimed(record)?.into_iter().map(|run| {
            let run = run.start.max(at)..run.end.min(end);
            at = at.max(run.end);
            run
        });
        let mut claimed: Vec<_> = claimed.filter(|run| run.start < run.end).collect();
        claimed.reverse();
        Ok(Self {
            object: record.id,
            file,
            len,
            claimed,
            // Or what they are now would count for what they were.
            damaged: core.objects.damaged().among(record.id, &(0..BLOCK_END)),
            checksum: Checksum::default(),
            buffer: vec![0; as_len(BLOCK)],
        })
    }

    /// Whether everything was read.
    pub(super) fn is_done(&self) -> bool {
        self.claimed.is_empty()
    }

    /// Goes on, for about so many bytes; returns how many were read.
    pub(super) fn step(&mut self, bytes: u64) -> Result<u64, ContentsError> {
        let mut read = 0;
        while read < bytes {
            let Some(run) = self.claimed.last_mut() else {
                break;
            };
            let Some(data) = next_data(&self.file, self.object, run.start * BLOCK)? else {
                // There is no data behind.
                self.claimed.clear();
                break;
            };
            let block = run.start.max(data / BLOCK);
            if block + 1 >= run.end {
                run.start = run.end;
            } else {
                run.start = block + 1;
            }
            let (start, end) = (run.start, run.end);
            if block < end && self.damaged.binary_search(&block).is_err() {
                let bytes = read_block(&self.file, self.object, block, self.len, &mut self.buffer)?;
                read += bytes.len() as u64;
                if bytes.iter().any(|&byte| byte != 0) {
                    self.checksum.push(block, hash_block(bytes));
                }
            }
            if start >= end {
                self.claimed.pop();
            }
        }
        Ok(read)
    }
}

/// Opens an object's own file; an error says that it is missing. Returns its length as well.
///
/// Not through the cache of descriptors: that is for those who use a workspace, and what it has of an
/// object that was just taken in may be the file on the host still.
pub(crate) fn open(core: &Core, id: ObjectId) -> Result<(File, u64), ContentsError> {
    let file = File::open(core.objects.path(id)).map_err(ContentsError::object("open", id))?;
    let meta = file.metadata();
    let len = meta.map_err(ContentsError::object("look at", id))?.len();
    Ok((file, len))
}

/// Reads a block of an object: fewer bytes than [`BLOCK`] at the end of the file, none behind it.
pub(crate) fn read_block<'b>(
    file: &File,
    id: ObjectId,
    block: u64,
    len: u64,
    buffer: &'b mut [u8],
) -> Result<&'b [u8], ContentsError> {
    let start = block.saturating_mul(BLOCK).min(len);
    let wanted = as_len((len - start).min(BLOCK));
    let mut filled = 0;
    while filled < wanted {
        match file.read_at(&mut buffer[filled..wanted], start + filled as u64) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(ContentsError::object("read", id)(error)),
        }
    }
    Ok(&buffer[..filled])
}

/// The next data at or behind an offset; none if there is nothing but holes.
pub(super) fn next_data(file: &File, id: ObjectId, at: u64) -> Result<Option<u64>, ContentsError> {
    match seek(file, SeekFrom::Data(at)) {
        Ok(data) => Ok(Some(data)),
        Err(Errno::NXIO) => Ok(None),
        Err(errno) => Err(ContentsError::object("seek in", id)(errno)),
    }
}
