//! Objects that nothing refers to any more, and parts of them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FallocateFlags, fallocate};

use crate::contents::{self, BLOCK, ContentsError, FileId, Punched, file_id, raw};
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

/// What keeps the space of blocks that nobody sees.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// The objects.
    pub(super) objects: Vec<ObjectId>,
    /// The first error that one of them has it from.
    pub(super) failed: Option<ContentsError>,
}

/// Bytes that an object takes on the disk; what is gone takes none.
fn allocated(core: &Core, id: ObjectId) -> u64 {
    let meta = std::fs::metadata(core.objects.path(id));
    meta.map_or(0, |meta| contents::allocated(&meta))
}

/// Objects whose files go, and what that frees. Several can be one file, which frees its bytes with the
/// last of its names.
#[derive(Debug, Default)]
pub(super) struct Going {
    objects: HashSet<ObjectId>,
    /// How many names of it go, of files that have several.
    names: HashMap<FileId, u64>,
}

impl Going {
    /// How many objects go.
    pub(super) fn len(&self) -> usize {
        self.objects.len()
    }

    /// Another object goes, if it was not known to: returns how many bytes that frees.
    fn add(&mut self, core: &Core, id: ObjectId) -> u64 {
        if !self.objects.insert(id) {
            return 0;
        }
        let Ok(meta) = std::fs::metadata(core.objects.path(id)) else {
            // Gone already: it takes nothing.
            return 0;
        };
        let names = match meta.nlink() {
            1 => 1,
            _ => {
                let names = self.names.entry(file_id(&meta)).or_default();
                *names += 1;
                *names
            }
        };
        if names == meta.nlink() {
            contents::allocated(&meta)
        } else {
            0
        }
    }
}

impl Remains {
    pub(super) fn len(&self) -> usize {
        self.objects.len() + self.blocks.len()
    }

    pub(super) fn append(&mut self, mut other: Self) {
        self.objects.append(&mut other.objects);
        self.blocks.append(&mut other.blocks);
    }

    /// Bytes that removing it would free; what was counted before does not count again.
    pub(super) fn count(&self, core: &Core, counted: &mut Going) -> Result<u64, ContentsError> {
        let mut bytes = 0;
        for (id, blocks) in &self.blocks {
            if !counted.objects.contains(id) {
                bytes += data_in(core, *id, blocks)?;
            }
        }
        for &(_, id) in &self.objects {
            bytes += counted.add(core, id);
        }
        Ok(bytes)
    }

    /// Removes it, once it is durable that nothing refers to it; returns how many bytes that freed.
    /// Objects that could not be removed stay. `kept` is told of those that keep the space of blocks.
    pub(super) fn remove(&mut self, core: &Core, kept: &mut Kept) -> Result<u64, OpError> {
        if self.len() == 0 {
            return Ok(0);
        }
        let mut going = Going::default();
        let sizes = self.objects.iter().map(|&(_, id)| going.add(core, id));
        let mut freed: u64 = sizes.sum();
        // Which makes it durable that nothing refers to the blocks either. A file has fewer names
        // afterwards, and one that has a single one left can get holes.
        if self.objects.is_empty() {
            core.sync_catalog()?;
        } else {
            engine::remove(core, self.objects.clone())?;
        }
        self.objects.clear();
        for (id, blocks) in self.blocks.drain(..) {
            if going.objects.contains(&id) {
                continue;
            }
            let before = allocated(core, id);
            match punch(core, id, &blocks) {
                Ok(Punched::Yes) => freed += before.saturating_sub(allocated(core, id)),
                Ok(Punched::Refused) => kept.objects.push(id),
                Ok(Punched::Gone) => {}
                Err(error) => {
                    tracing::warn!(
                        error = &error as &dyn std::error::Error,
                        "what nobody sees of an object keeps its space"
                    );
                    kept.objects.push(id);
                    kept.failed.get_or_insert(error);
                }
            }
        }
        Ok(freed)
    }
}

/// Bytes with data in blocks of an object.
pub(super) fn data_in(
    core: &Core,
    id: ObjectId,
    blocks: &Range<u64>,
) -> Result<u64, ContentsError> {
    let file = match core.objects.open_raw(id, false) {
        // Somebody removed it meanwhile.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(0),
        opened => opened.map_err(ContentsError::object("open", id))?,
    };
    let meta = file.metadata();
    if meta.map_err(ContentsError::object("look at", id))?.nlink() > 1 {
        // Others need it whole.
        return Ok(0);
    }
    let part = blocks.start.saturating_mul(BLOCK)..blocks.end.saturating_mul(BLOCK);
    raw::data_in(&file, part).map_err(ContentsError::object("look at", id))
}

/// Makes blocks of an object a hole, unless others are the same file: those need it whole.
pub(super) fn punch(
    core: &Core,
    id: ObjectId,
    blocks: &Range<u64>,
) -> Result<Punched, ContentsError> {
    core.objects.punch(id, |file| {
        let failed = ContentsError::object("punch a hole in", id);
        let size = file.metadata().map(|meta| meta.len());
        let size = size.map_err(ContentsError::object("look at", id))?;
        let start = blocks.start.saturating_mul(BLOCK).min(size);
        // To the end of its last block, or what that has on the disk would stay.
        let end = blocks.end.min(size.div_ceil(BLOCK)).saturating_mul(BLOCK);
        if start >= end {
            return Ok(());
        }
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(file, mode, start, end - start).map_err(failed)
    })
}
