//! Reading one file's extents.
//!
//! Invariant: what is known to be damaged never reads as anything, and never passes for a hole.

use std::fs::File;
use std::ops::Range;

use rustix::fs::{SeekFrom, seek};

use super::damaged::WHOLE;
use super::{BLOCK, ContentsError, ExtentMap, Objects, as_len, raw};
use crate::id::ObjectId;

/// Reads from a file's extents.
pub(crate) struct Source<'a> {
    pub(crate) objects: &'a Objects,
    pub(crate) map: &'a ExtentMap,
}

/// The blocks that hold the bytes `range`.
pub(super) fn blocks(range: &Range<u64>) -> Range<u64> {
    range.start / BLOCK..range.end.div_ceil(BLOCK)
}

/// The bytes of a run of blocks.
pub(super) fn bytes(blocks: &Range<u64>) -> Range<u64> {
    blocks.start * BLOCK..blocks.end.saturating_mul(BLOCK)
}

impl Source<'_> {
    /// Fills `out` with the bytes at `offset`; holes and what lies behind an object's end read as
    /// zeros. The caller has cut the range to the file's size.
    pub(crate) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), ContentsError> {
        let end = offset + out.len() as u64;
        for (run, segment) in self.map.runs(blocks(&(offset..end))) {
            let part = bytes(&run);
            let (from, to) = (part.start.max(offset), part.end.min(end));
            let slice = &mut out[as_len(from - offset)..as_len(to - offset)];
            match segment.and_then(|segment| segment.object) {
                None => slice.fill(0),
                Some(object) => {
                    let objects = self.objects;
                    intact(objects, object, &(from..to))?;
                    objects.read_with(object, |file| read_object(file, object, from, slice))?;
                }
            }
        }
        Ok(())
    }

    /// The next data or hole at or after `offset`, which lies before `size`; `size` when there is
    /// none. Damaged blocks are data, whatever has become of them: whoever copies or compares reads
    /// them, and is told.
    pub(crate) fn seek(&self, offset: u64, size: u64, hole: bool) -> Result<u64, ContentsError> {
        for (run, segment) in self.map.runs(blocks(&(offset..size))) {
            let part = bytes(&run);
            let (mut at, end) = (part.start.max(offset), part.end.min(size));
            let Some(object) = segment.and_then(|segment| segment.object) else {
                if hole {
                    return Ok(at);
                }
                continue;
            };
            let damaged = self.objects.damaged().among(object, &blocks(&(at..end)));
            at = match damaged[..] {
                // There is no file that could be asked.
                [WHOLE] if hole => end,
                [WHOLE] => at,
                _ => self.objects.read_with(object, |file| {
                    beyond_damage(&damaged, at..end, hole, |at| {
                        seek_object(file, object, at, hole)
                    })
                })?,
            };
            if at < end {
                return Ok(at);
            }
        }
        Ok(size)
    }
}

/// Makes sure that bytes of an object are not known to be damaged.
pub(super) fn intact(
    objects: &Objects,
    object: ObjectId,
    range: &Range<u64>,
) -> Result<(), ContentsError> {
    match objects.damaged().among(object, &blocks(range)).first() {
        None => Ok(()),
        Some(&block) => Err(ContentsError::Damaged { object, block }),
    }
}

/// Fills `out` from an object; behind its end are zeros.
pub(super) fn read_object(
    file: &File,
    object: ObjectId,
    offset: u64,
    out: &mut [u8],
) -> Result<(), ContentsError> {
    let len = raw::read_at(file, offset, out).map_err(ContentsError::object("read", object))?;
    out[len..].fill(0);
    Ok(())
}

/// The next data or hole of an object's file; none behind its end is data.
fn seek_object(
    file: &File,
    object: ObjectId,
    at: u64,
    hole: bool,
) -> Result<Option<u64>, ContentsError> {
    let from = if hole {
        SeekFrom::Hole(at)
    } else {
        SeekFrom::Data(at)
    };
    match seek(file, from) {
        Ok(found) => Ok(Some(found)),
        // Behind the object's end there is nothing but hole.
        Err(rustix::io::Errno::NXIO) => Ok(hole.then_some(at)),
        Err(errno) => Err(ContentsError::object("seek in", object)(errno)),
    }
}

/// The next data or hole in `part`, or its end or what lies behind, where damaged blocks count as data
/// and `find` does not know of them.
fn beyond_damage(
    damaged: &[u64],
    part: Range<u64>,
    hole: bool,
    find: impl Fn(u64) -> Result<Option<u64>, ContentsError>,
) -> Result<u64, ContentsError> {
    let mut at = part.start;
    if !hole {
        let first = damaged.iter().map(|&block| (block * BLOCK).max(at)).min();
        let found = find(at)?.unwrap_or(part.end);
        return Ok(first.map_or(found, |first| found.min(first)));
    }
    while at < part.end {
        at = find(at)?.unwrap_or(part.end);
        if damaged.binary_search(&(at / BLOCK)).is_err() {
            break;
        }
        at = (at / BLOCK + 1) * BLOCK;
    }
    Ok(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In a file whose data is its second block alone.
    fn find(at: u64, hole: bool) -> Option<u64> {
        let data = BLOCK..2 * BLOCK;
        match (data.contains(&at), hole) {
            (true, true) => Some(data.end),
            (true, false) | (false, true) => Some(at),
            (false, false) => (at < data.end).then_some(data.start),
        }
    }

    #[test]
    fn damaged_blocks_are_data_to_whoever_looks_for_data_or_holes() {
        let next = |damaged: &[u64], at, hole| {
            beyond_damage(damaged, at..8 * BLOCK, hole, |at| Ok(find(at, hole))).unwrap()
        };
        assert_eq!(next(&[], 0, false), BLOCK);
        assert_eq!(next(&[0], 7, false), 7);
        assert_eq!(next(&[3], 2 * BLOCK, false), 3 * BLOCK);
        assert_eq!(next(&[], 2 * BLOCK, false), 8 * BLOCK);
        assert_eq!(next(&[], BLOCK, true), 2 * BLOCK);
        assert_eq!(next(&[2, 3, 5], BLOCK, true), 4 * BLOCK);
        assert_eq!(next(&[2, 3], 2 * BLOCK + 9, true), 4 * BLOCK);
        assert_eq!(next(&[4, 5, 6, 7], 4 * BLOCK, true), 8 * BLOCK);
    }
}
