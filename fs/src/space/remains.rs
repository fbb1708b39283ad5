//! Objects that nothing refers to any more, and parts of them.

use std::ops::Range;

use rustix::fs::{FallocateFlags, fallocate};

use crate::contents::{BLOCK, ContentsError};
use crate::core::Core;
use crate::dispatch::OpError;
use crate::engine;
use crate::id::{Ino, ObjectId};

/// What a transaction has freed on the disk, to be removed there after it.
#[derive(Debug, Default)]
pub(super) struct Remains {
    /// Objects that are doomed.
    pub(super) objects: Vec<(Ino, ObjectId)>,
    /// Blocks of objects that nobody sees.
    pub(super) blocks: Vec<(ObjectId, Range<u64>)>,
}

/// Bytes that an object takes on the disk; what is gone takes none.
fn allocated(core: &Core, id: ObjectId) -> u64 {
    let meta = std::fs::metadata(core.objects.path(id));
    meta.map_or(0, |meta| {
        std::os::unix::fs::MetadataExt::blocks(&meta) * 512
    })
}

impl Remains {
    pub(super) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.blocks.is_empty()
    }

    /// Removes it, once it is durable that nothing refers to it; returns how many bytes that freed.
    pub(super) fn remove(self, core: &Core) -> Result<u64, OpError> {
        if self.is_empty() {
            return Ok(0);
        }
        let mut freed = 0;
        if !self.blocks.is_empty() {
            core.sync_catalog()?;
        }
        for (id, blocks) in self.blocks {
            let before = allocated(core, id);
            punch(core, id, &blocks)?;
            freed += before.saturating_sub(allocated(core, id));
        }
        freed += self
            .objects
            .iter()
            .map(|&(_, id)| allocated(core, id))
            .sum::<u64>();
        engine::remove(core, self.objects)?;
        Ok(freed)
    }
}

fn punch(core: &Core, id: ObjectId, blocks: &Range<u64>) -> Result<(), ContentsError> {
    let file = core.objects.write(id)?;
    let failed = ContentsError::object("punch a hole in", id);
    let size = file.metadata().map(|meta| meta.len());
    let size = size.map_err(ContentsError::object("look at", id))?;
    let start = blocks.start.saturating_mul(BLOCK).min(size);
    let end = blocks.end.saturating_mul(BLOCK).min(size);
    if start >= end {
        return Ok(());
    }
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&*file, mode, start, end - start).map_err(failed)
}
