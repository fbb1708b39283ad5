//! Hashing one object, a little at a time: files can be large.

use std::fs::File;
use std::ops::Range;

use crate::catalog::ObjectRecord;
use crate::change::BLOCK_END;
use crate::contents::{BLOCK, Checksum, ContentsError, as_len, hash_block, raw};
use crate::core::Core;
use crate::dispatch::OpError;
use crate::id::ObjectId;

/// An object that is being hashed.
pub(super) struct Reading {
    object: ObjectId,
    file: File,
    /// Runs of claimed blocks that are not done yet, the next one last. None reaches behind the file.
    claimed: Vec<Range<u64>>,
    /// Blocks that are left out.
    damaged: Vec<u64>,
    pub(super) checksum: Checksum,
    buffer: Vec<u8>,
}

impl Reading {
    pub(super) fn open(core: &Core, record: &ObjectRecord) -> Result<Self, OpError> {
        let file = core.objects.open_raw(record.id, false);
        let file = file.map_err(ContentsError::object("open", record.id))?;
        let meta = file.metadata();
        let meta = meta.map_err(ContentsError::object("look at", record.id))?;
        let end = meta.len().div_ceil(BLOCK);
        let claimed = core.catalog.claimed(record)?.into_iter();
        let mut claimed: Vec<_> = claimed
            .map(|run| run.start..run.end.min(end))
            .filter(|run| !run.is_empty())
            .collect();
        claimed.reverse();
        Ok(Self {
            object: record.id,
            file,
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
            let data = raw::next_data(&self.file, run.start * BLOCK);
            let data = data.map_err(ContentsError::object("seek in", self.object))?;
            let Some(data) = data else {
                // There is no data behind.
                self.claimed.clear();
                break;
            };
            let block = run.start.max(data.start / BLOCK);
            let is_claimed = block < run.end;
            run.start = block + 1;
            if run.start >= run.end {
                self.claimed.pop();
            }
            if is_claimed && self.damaged.binary_search(&block).is_err() {
                let len = raw::read_block(&self.file, block, &mut self.buffer)
                    .map_err(ContentsError::object("read", self.object))?;
                let bytes = &self.buffer[..len];
                read += len as u64;
                if bytes.iter().any(|&byte| byte != 0) {
                    self.checksum.push(block, hash_block(bytes));
                }
            }
        }
        Ok(read)
    }
}
