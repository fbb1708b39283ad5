//! Reading and changing one file's extents: copy-up, writes, truncation, holes.
//!
//! Order of events, so that a crash at any point loses nothing that was acknowledged and shows
//! nothing that was not: bytes go into blocks no reader can see yet (or over bytes the caller asked
//! to overwrite), then the caller commits the change, then what the change gave up is cut off. Two
//! rules keep leftovers of a crash invisible: blocks are cleaned before they are claimed, and a
//! file that grows first cuts its object to the old size.

use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};

use super::damaged::WHOLE;
use super::extents::Segment;
use super::source::{blocks, bytes, intact, read_object};
use super::{BLOCK, ContentsError, ExtentMap, Objects, WHOLE_COPY_MAX, as_len};
use crate::change::{BLOCK_END, Change, Row};
use crate::fault;
use crate::id::{Ino, LayerId, ObjectId};

/// Bytes copied up at a time.
const COPY_CHUNK: usize = 64 << 10;
/// Bytes in a run of zeros worth leaving a hole for.
const PAGE: usize = 4096;

/// Changes a file's extents in the live layer. Collects the rows to commit in `change`.
pub(crate) struct FileIo<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) map: &'a mut ExtentMap,
    pub(crate) change: &'a mut Change,
    pub(crate) ino: Ino,
    /// The live layer.
    pub(crate) layer: LayerId,
    /// Size before the change.
    pub(crate) size: u64,
    /// An id for the layer's own object, drawn when it has none yet.
    pub(crate) new_object: &'a mut dyn FnMut() -> Result<ObjectId, crate::catalog::CatalogError>,
    /// The object this change created, so that the caller can remove it if the commit fails.
    pub(crate) created: Option<ObjectId>,
    /// Whether bytes were copied here that were in another object or in the catalog before.
    pub(crate) inherited: bool,
    /// 512-byte blocks the change added to (or took from) the file.
    pub(crate) blocks_delta: i64,
}

/// Why extents could not be changed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileIoError {
    #[error(transparent)]
    Contents(#[from] ContentsError),
    #[error(transparent)]
    Catalog(#[from] crate::catalog::CatalogError),
}

impl From<FileIoError> for crate::dispatch::OpError {
    fn from(error: FileIoError) -> Self {
        match error {
            FileIoError::Contents(error) => Self::Contents(error),
            FileIoError::Catalog(error) => Self::Catalog(error),
        }
    }
}

impl FileIo<'_> {
    /// Writes the bytes; the file ends at `max(size, offset + len)` afterwards.
    pub(crate) fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), FileIoError> {
        let end = offset + data.len() as u64;
        let own = if end > self.size {
            let old_end = self.size;
            self.grow_from(offset.min(old_end), offset..end)?
        } else {
            self.claim(blocks(&(offset..end)), offset..end)?
        };
        let renewed = self.renewed(own, &(offset..end), end.max(self.size));
        let renewed = renewed.map_err(|block| ContentsError::Damaged { object: own, block })?;
        let file = self.own_file(own)?;
        let before = allocated(&file, own)?;
        fault::write_all_at(&file, data, offset).map_err(ContentsError::object("write to", own))?;
        self.blocks_delta += allocated(&file, own)? - before;
        self.renew(own, renewed);
        Ok(())
    }

    /// Damaged blocks of the layer's own object that are written over as a whole, in a file of a
    /// size; else one of which something would be left.
    fn renewed(&self, own: ObjectId, written: &Range<u64>, size: u64) -> Result<Vec<u64>, u64> {
        let damaged = self.objects.damaged().among(own, &blocks(written));
        for &block in &damaged {
            if block == WHOLE {
                return Err(block);
            }
            let whole = bytes(&(block..block.saturating_add(1)));
            if whole.start < written.start || whole.end.min(size) > written.end {
                return Err(block);
            }
        }
        Ok(damaged)
    }

    /// Damaged blocks of the layer's own object hold something new.
    fn renew(&mut self, own: ObjectId, damaged: Vec<u64>) {
        for block in damaged.into_iter().filter(|&block| block != WHOLE) {
            // If the change is not committed they still hold the new bytes, as after a crash.
            self.objects.damaged().remove(own, block);
            self.change.push(Row::DropDamaged { object: own, block });
        }
    }

    /// Makes the file end at `size`, which is larger than now.
    pub(crate) fn grow(&mut self, size: u64) -> Result<(), FileIoError> {
        debug_assert!(size > self.size);
        let end = self.size;
        self.grow_from(end, end..end).map(drop)
    }

    /// Makes the file end at `size`, which is smaller than now. The caller calls
    /// [`FileIo::cut`] after the commit.
    pub(crate) fn shrink(&mut self, size: u64) -> Result<(), FileIoError> {
        debug_assert!(size < self.size);
        // Bytes behind the new end need no copying: claim with everything there "overwritten".
        let own = self.claim(size / BLOCK..BLOCK_END, size..u64::MAX)?;
        let behind = size.div_ceil(BLOCK)..BLOCK_END;
        let cut_off = self.objects.damaged().among(own, &behind);
        self.renew(own, cut_off);
        Ok(())
    }

    /// After a committed shrink: gives the disk space behind the end back, and returns how many
    /// 512-byte blocks that were. The tail is owned by then.
    pub(crate) fn cut(
        objects: &Objects,
        map: &ExtentMap,
        layer: LayerId,
        size: u64,
    ) -> Result<i64, ContentsError> {
        let Some(own) = map.object_of(layer) else {
            return Ok(0);
        };
        let file = objects.write(own)?;
        let before = allocated(&file, own)?;
        // Also where the object ends before: what was reserved behind its end goes.
        file.set_len(length(&file, own)?.min(size))
            .map_err(ContentsError::object("truncate", own))?;
        Ok(before - allocated(&file, own)?)
    }

    /// Makes the bytes `range` (cut to the size by the caller) read as zeros, as holes where whole
    /// blocks allow it.
    pub(crate) fn punch(&mut self, range: Range<u64>) -> Result<(), FileIoError> {
        let to_end = range.end >= self.size;
        // The last block counts as whole if the file ends in the range.
        let last = if to_end {
            range.end.div_ceil(BLOCK)
        } else {
            range.end / BLOCK
        };
        let whole = range.start.div_ceil(BLOCK)..last;
        for part in self.unowned_inside(whole.clone()) {
            for (run, segment) in self.map.runs(part.clone()) {
                if let Some(object) = segment.and_then(|segment| segment.object) {
                    self.blocks_delta -= self.data_blocks(object, &run)?;
                }
            }
            self.map
                .claim(part, self.layer, None, self.ino, self.change);
        }
        let edges = [
            range.start..range.end.min(bytes(&whole).start),
            bytes(&whole).end..range.end,
        ];
        for edge in edges {
            // Blocks that are holes already need no copy to be zeroed.
            let empty = |this: &Self| {
                this.map
                    .runs(blocks(&edge))
                    .all(|(_, segment)| segment.is_none_or(|segment| segment.object.is_none()))
            };
            if edge.start < edge.end && !empty(self) {
                self.claim(blocks(&edge), edge.clone())?;
            }
        }
        let Some(own) = self.map.object_of(self.layer) else {
            return Ok(());
        };
        let file = self.own_file(own)?;
        let before = allocated(&file, own)?;
        clean(&file, own, &range)?;
        self.blocks_delta += allocated(&file, own)? - before;
        // Of the others nothing can be read all the same.
        let emptied = self.objects.damaged().among(own, &whole);
        self.renew(own, emptied);
        Ok(())
    }

    /// Reserves disk space for what the layer's own object serves of `range`.
    pub(crate) fn reserve(&mut self, range: &Range<u64>) -> Result<(), FileIoError> {
        let Some(own) = self.map.object_of(self.layer) else {
            return Ok(());
        };
        let file = self.own_file(own)?;
        let before = allocated(&file, own)?;
        for (run, segment) in self.map.runs(blocks(range)) {
            if segment.and_then(|segment| segment.object) != Some(own) {
                continue;
            }
            let part = bytes(&run);
            let (from, to) = (part.start.max(range.start), part.end.min(range.end));
            fault::write()
                .and_then(|()| {
                    let flags = FallocateFlags::KEEP_SIZE;
                    Ok(fallocate(&*file, flags, from, to - from)?)
                })
                .map_err(ContentsError::object("reserve space in", own))?;
        }
        self.blocks_delta += allocated(&file, own)? - before;
        Ok(())
    }

    /// Owns everything from the block of `from` (at most the old end) on, and makes sure that what
    /// lies between the old end and `written` reads as zeros.
    fn grow_from(&mut self, from: u64, written: Range<u64>) -> Result<ObjectId, FileIoError> {
        let first = from / BLOCK;
        let own = self.claim(first..BLOCK_END, written.clone())?;
        if written.start > self.size || written.is_empty() {
            // A write that was not committed may have left bytes behind the end.
            let file = self.own_file(own)?;
            if length(&file, own)? > self.size {
                file.set_len(self.size)
                    .map_err(ContentsError::object("truncate", own))?;
            }
        }
        Ok(own)
    }

    /// Makes the layer's own object serve `range` (blocks), copying what was there except for the
    /// bytes in `written`, which the caller is about to write or drop.
    fn claim(
        &mut self,
        mut range: Range<u64>,
        written: Range<u64>,
    ) -> Result<ObjectId, FileIoError> {
        let (own, file) = match self.map.object_of(self.layer) {
            Some(own) if self.map.unowned(range.clone(), self.layer).is_empty() => return Ok(own),
            Some(own) => (own, self.own_file(own)?),
            None => {
                let (own, file) = self.create_own()?;
                if self.clone_whole(own, &file)? {
                    return Ok(own);
                }
                // What is damaged stays where it is, unless it is written over.
                if self.size <= WHOLE_COPY_MAX && !self.has_damage() {
                    range = 0..BLOCK_END;
                }
                (own, file)
            }
        };
        let before = allocated(&file, own)?;
        let mut replaced = 0;
        let parts = self.map.unowned(range, self.layer);
        for part in &parts {
            if self.created != Some(own) {
                clean(&file, own, &bytes(part))?;
            }
            for (run, segment) in self.map.runs(part.clone()) {
                let Some(Segment {
                    object: Some(from), ..
                }) = segment
                else {
                    continue;
                };
                replaced += self.data_blocks(from, &run)?;
                let data = bytes(&run).start..bytes(&run).end.min(self.size);
                let kept = [
                    data.start..data.end.min(written.start),
                    data.start.max(written.end)..data.end,
                ];
                for range in kept.into_iter().filter(|range| range.start < range.end) {
                    intact(self.objects, from, &range)?;
                    self.inherited = true;
                    let mut again = false;
                    self.objects.read_with(from, |source| {
                        // Zeros are left out, and the first time there may have been others.
                        if std::mem::replace(&mut again, true) {
                            clean(&file, own, &range)?;
                        }
                        copy_data(source, from, &file, own, range.clone())
                    })?;
                }
            }
        }
        for part in parts {
            self.map
                .claim(part, self.layer, Some(own), self.ino, self.change);
        }
        self.blocks_delta += allocated(&file, own)? - before - replaced;
        Ok(own)
    }

    /// Owns the whole of a file that has no contents yet.
    pub(crate) fn own_all(&mut self) -> Result<(), FileIoError> {
        self.claim(0..BLOCK_END, 0..0).map(drop)
    }

    /// 512-byte blocks an object takes on disk.
    pub(crate) fn blocks_of(objects: &Objects, object: ObjectId) -> Result<u64, ContentsError> {
        allocated(&objects.read(object)?.file, object).map(i64::unsigned_abs)
    }

    /// Whether anything of the file is known to be damaged.
    fn has_damage(&self) -> bool {
        let damaged = self.objects.damaged();
        let mut runs = self.map.runs(0..BLOCK_END);
        runs.any(|(_, segment)| {
            let object = segment.and_then(|segment| segment.object);
            object.is_some_and(|object| damaged.has(object))
        })
    }

    fn own_file(&self, own: ObjectId) -> Result<std::sync::Arc<File>, ContentsError> {
        self.objects.mark_dirty(self.ino, own);
        let file = self.objects.write(own)?;
        // What is written here is in no other object.
        debug_assert!(file.metadata().is_ok_and(|meta| meta.nlink() <= 1));
        Ok(file)
    }

    fn create_own(&mut self) -> Result<(ObjectId, std::sync::Arc<File>), FileIoError> {
        let own = (self.new_object)()?;
        let file = self.objects.create(own)?;
        self.objects.mark_dirty(self.ino, own);
        self.created = Some(own);
        self.change.push(Row::AddObject {
            id: own,
            ino: self.ino,
            layer: self.layer,
        });
        Ok((own, file))
    }

    /// Shares all of the file's extents with the object it had so far, where the disk can.
    fn clone_whole(&mut self, own: ObjectId, file: &File) -> Result<bool, FileIoError> {
        if !self.objects.can_reflink() {
            return Ok(false);
        }
        let Some((_, from)) = self.map.single_object() else {
            return Ok(false);
        };
        if self.objects.damaged().has(from) {
            return Ok(false);
        }
        let opened = match self.objects.read(from) {
            // Perhaps nothing of it is needed.
            Err(error) if error.is_of_host() || error.is_missing() => return Ok(false),
            other => other?,
        };
        if rustix::fs::ioctl_ficlone(file, &*opened.file).is_err() {
            // Copying block by block is always possible.
            return Ok(false);
        }
        match opened.check() {
            // Perhaps nothing of it is needed.
            Err(error) if error.is_of_host() => {
                file.set_len(0)
                    .map_err(ContentsError::object("truncate", own))?;
                return Ok(false);
            }
            other => other?,
        }
        self.inherited = true;
        if length(file, own)? > self.size {
            file.set_len(self.size)
                .map_err(ContentsError::object("truncate", own))?;
        }
        // One object is all there is now, and its blocks are counted by asking the disk.
        let whole = 0..BLOCK_END;
        self.map
            .claim(whole, self.layer, Some(own), self.ino, self.change);
        Ok(true)
    }

    /// 512-byte blocks that a run of blocks counts for in an older object: its data, up to the
    /// size.
    fn data_blocks(&self, object: ObjectId, run: &Range<u64>) -> Result<i64, ContentsError> {
        let Range { start: mut at, end } = bytes(run).start..bytes(run).end.min(self.size);
        let mut count = 0;
        let file = match self.objects.read(object) {
            Ok(opened) => opened.file,
            // Not ours, and not readable any more: as if it had no holes.
            // Nor what is missing, which may be written over.
            Err(error) if error.is_of_host() || error.is_missing() => {
                return Ok(whole_blocks(at..end));
            }
            Err(error) => return Err(error),
        };
        while at < end {
            let failed = ContentsError::object("seek in", object);
            let from = match seek(&*file, SeekFrom::Data(at)) {
                Ok(from) if from < end => from,
                Ok(_) | Err(rustix::io::Errno::NXIO) => break,
                Err(errno) => return Err(failed(errno)),
            };
            at = seek(&*file, SeekFrom::Hole(from)).map_err(failed)?.min(end);
            // The disk gives space out by the page, also behind the end of the file.
            let page = PAGE as u64;
            count += (at.next_multiple_of(page) - from / page * page) / 512;
        }
        Ok(i64::try_from(count).unwrap_or(i64::MAX))
    }

    fn unowned_inside(&self, range: Range<u64>) -> Vec<Range<u64>> {
        if range.start < range.end {
            self.map.unowned(range, self.layer)
        } else {
            Vec::new()
        }
    }
}

/// 512-byte blocks of a range without holes.
fn whole_blocks(range: Range<u64>) -> i64 {
    let bytes = range.end.saturating_sub(range.start);
    i64::try_from(bytes.next_multiple_of(PAGE as u64) / 512).unwrap_or(i64::MAX)
}

fn allocated(file: &File, object: ObjectId) -> Result<i64, ContentsError> {
    let meta = file
        .metadata()
        .map_err(ContentsError::object("stat", object))?;
    Ok(i64::try_from(meta.blocks()).unwrap_or(i64::MAX))
}

fn length(file: &File, object: ObjectId) -> Result<u64, ContentsError> {
    file.metadata()
        .map(|meta| meta.len())
        .map_err(ContentsError::object("stat", object))
}

/// Makes a range of an object a hole; what lies behind its end is one already.
fn clean(file: &File, object: ObjectId, range: &Range<u64>) -> Result<(), ContentsError> {
    let len = length(file, object)?;
    if range.start >= len {
        return Ok(());
    }
    punch_object(file, object, &(range.start..range.end.min(len)))
}

fn punch_object(file: &File, object: ObjectId, range: &Range<u64>) -> Result<(), ContentsError> {
    if range.start >= range.end {
        return Ok(());
    }
    let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    // A hole in the middle of an extent needs another one.
    fault::write()
        .and_then(|()| Ok(fallocate(file, mode, range.start, range.end - range.start)?))
        .map_err(ContentsError::object("punch a hole in", object))
}

/// Copies a range between objects, leaving pages of zeros out.
fn copy_data(
    from: &File,
    from_object: ObjectId,
    to: &File,
    to_object: ObjectId,
    range: Range<u64>,
) -> Result<(), ContentsError> {
    let mut buffer = [0_u8; COPY_CHUNK];
    let mut at = range.start;
    while at < range.end {
        let len = as_len((range.end - at).min(COPY_CHUNK as u64));
        let chunk = &mut buffer[..len];
        read_object(from, from_object, at, chunk)?;
        // Runs of pages that are not all zeros, each in one write.
        let mut from_page = 0;
        while from_page < len {
            let pages = chunk[from_page..].chunks(PAGE);
            let run = pages.take_while(|page| page.iter().any(|&byte| byte != 0));
            let run_len = run.map(<[u8]>::len).sum::<usize>();
            if run_len > 0 {
                fault::write_all_at(
                    to,
                    &chunk[from_page..from_page + run_len],
                    at + from_page as u64,
                )
                .map_err(ContentsError::object("copy to", to_object))?;
            }
            from_page += run_len + PAGE;
        }
        at += len as u64;
    }
    Ok(())
}
