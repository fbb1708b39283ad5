//! Contents of a file at a layer, and whether two are equal.

use std::fs::File;
use std::ops::Range;
use std::sync::Arc;

use crate::catalog::{CatalogError, Queries};
use crate::change::{ContentKind, InodeRow};
use crate::contents::{BLOCK, ContentsError, ExtentMap, FileIo, Objects, Source, as_len};
use crate::fault;
use crate::id::{Ino, ObjectId};
use crate::layers::Lineage;

/// Bytes copied at a time. Inside a run of data there may be holes, of at least a page.
const COPY_CHUNK: usize = 64 << 10;
/// Bytes compared at a time.
const CHUNK: usize = 64 << 10;

/// Where the bytes of a file are.
#[derive(Clone, Debug)]
pub(crate) struct Contents {
    size: u64,
    bytes: Bytes,
}

#[derive(Clone, Debug)]
enum Bytes {
    Zeros,
    Inline(Arc<[u8]>),
    Extents(ExtentMap),
}

impl Contents {
    /// Finds out where the bytes of a file, or the target of a symbolic link, are.
    pub(crate) fn load(
        queries: Queries<'_>,
        at: Lineage<'_>,
        ino: Ino,
        row: &InodeRow,
    ) -> Result<Self, CatalogError> {
        let damaged = |what: &str| CatalogError::Damaged {
            what: format!("inode {ino} {what}"),
        };
        let bytes = match row.content {
            ContentKind::Empty => Bytes::Zeros,
            ContentKind::Inline => {
                let found = queries.inline(ino, at)?;
                let data = found.ok_or_else(|| damaged("has no inline bytes"))?;
                if data.len() as u64 != row.attr.size {
                    return Err(damaged("has another size than its inline bytes"));
                }
                Bytes::Inline(data)
            }
            ContentKind::Extents => {
                let mut map = ExtentMap::default();
                queries.extents(ino, at, &mut |row| map.fill(row))?;
                Bytes::Extents(map)
            }
            ContentKind::Host => return Err(damaged("has the contents of a directory")),
        };
        Ok(Self {
            size: row.attr.size,
            bytes,
        })
    }

    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Contents that are these bytes.
    pub(crate) fn of_bytes(data: Arc<[u8]>) -> Self {
        Self {
            size: data.len() as u64,
            bytes: Bytes::Inline(data),
        }
    }

    /// Whether nothing was ever written.
    pub(crate) fn is_zeros(&self) -> bool {
        matches!(self.bytes, Bytes::Zeros)
    }

    /// Whether the bytes are in objects.
    pub(crate) fn is_large(&self) -> bool {
        matches!(self.bytes, Bytes::Extents(_))
    }

    /// Runs of blocks that are not those of the other, if both are in objects.
    pub(crate) fn unshared_with(&self, other: &Self) -> Option<Vec<Range<u64>>> {
        let (Bytes::Extents(a), Bytes::Extents(b)) = (&self.bytes, &other.bytes) else {
            return None;
        };
        let mut joined: Vec<Range<u64>> = Vec::new();
        for run in unshared(a, b, self.blocks()) {
            match joined.last_mut() {
                Some(last) if last.end == run.start => last.end = run.end,
                _ => joined.push(run),
            }
        }
        Some(joined)
    }

    /// 512-byte blocks that an object takes on disk.
    pub(crate) fn blocks_of(objects: &Objects, object: ObjectId) -> Result<u64, ContentsError> {
        FileIo::blocks_of(objects, object)
    }

    /// The bytes of a run of blocks, up to the end of the file.
    fn bytes_of(&self, run: &Range<u64>) -> Range<u64> {
        run.start * BLOCK..run.end.saturating_mul(BLOCK).min(self.size)
    }

    /// Whether there is anything but holes in some blocks.
    pub(crate) fn has_data(
        &self,
        objects: &Objects,
        runs: &[Range<u64>],
    ) -> Result<bool, ContentsError> {
        for run in runs {
            let part = self.bytes_of(run);
            if part.start < part.end && self.next_data(objects, part.start)? < part.end {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Copies some blocks to their places in an empty object, and leaves holes out.
    pub(crate) fn copy(
        &self,
        objects: &Objects,
        runs: &[Range<u64>],
        to: &File,
        object: ObjectId,
    ) -> Result<(), ContentsError> {
        let mut buffer = vec![0; COPY_CHUNK];
        for run in runs {
            let part = self.bytes_of(run);
            let mut at = part.start;
            while at < part.end {
                at = self.next_data(objects, at)?;
                if at >= part.end {
                    break;
                }
                let len = as_len(part.end - at).min(COPY_CHUNK);
                self.read(objects, at, &mut buffer[..len])?;
                fault::write_all_at(to, &buffer[..len], at)
                    .map_err(ContentsError::object("write to", object))?;
                at += len as u64;
            }
        }
        Ok(())
    }

    fn blocks(&self) -> Range<u64> {
        0..self.size.div_ceil(BLOCK)
    }

    /// Whether two contents are equal, if that can be told without reading objects.
    pub(crate) fn same_at_a_glance(&self, other: &Self) -> Option<bool> {
        if self.size != other.size {
            return Some(false);
        }
        match (&self.bytes, &other.bytes) {
            _ if self.size == 0 => Some(true),
            (Bytes::Zeros, Bytes::Zeros) => Some(true),
            (Bytes::Inline(a), Bytes::Inline(b)) => Some(a == b),
            (Bytes::Extents(a), Bytes::Extents(b)) => unshared(a, b, self.blocks())
                .next()
                .is_none()
                .then_some(true),
            _ => None,
        }
    }

    /// Where the next bytes are that may not be zeros.
    fn next_data(&self, objects: &Objects, at: u64) -> Result<u64, ContentsError> {
        match &self.bytes {
            _ if at >= self.size => Ok(self.size),
            Bytes::Zeros => Ok(self.size),
            Bytes::Inline(_) => Ok(at),
            Bytes::Extents(map) => Source { objects, map }.seek(at, self.size, false),
        }
    }

    /// Fills `out` with the bytes at `offset`, which lie in the file.
    pub(crate) fn read(
        &self,
        objects: &Objects,
        offset: u64,
        out: &mut [u8],
    ) -> Result<(), ContentsError> {
        match &self.bytes {
            Bytes::Zeros => out.fill(0),
            Bytes::Inline(data) => {
                let from = as_len(offset);
                out.copy_from_slice(&data[from..from + out.len()]);
            }
            Bytes::Extents(map) => Source { objects, map }.read(offset, out)?,
        }
        Ok(())
    }

    /// All bytes; the caller has looked at the size.
    pub(crate) fn read_all(&self, objects: &Objects) -> Result<Vec<u8>, ContentsError> {
        let mut all = vec![0; as_len(self.size)];
        self.read(objects, 0, &mut all)?;
        Ok(all)
    }
}

/// Runs of blocks that two files do not have from the same object, nor both as a hole.
fn unshared<'a>(
    a: &'a ExtentMap,
    b: &'a ExtentMap,
    blocks: Range<u64>,
) -> impl Iterator<Item = Range<u64>> + 'a {
    a.runs(blocks).flat_map(move |(run, left)| {
        let object = left.and_then(|segment| segment.object);
        b.runs(run).filter_map(move |(run, right)| {
            let other = right.and_then(|segment| segment.object);
            (object != other).then_some(run)
        })
    })
}

/// Whether two contents are equal, byte by byte where they do not share an object.
pub(crate) fn same_bytes(
    objects: &Objects,
    a: &Contents,
    b: &Contents,
) -> Result<bool, ContentsError> {
    if let Some(same) = a.same_at_a_glance(b) {
        return Ok(same);
    }
    let mut buffers = (vec![0; CHUNK], vec![0; CHUNK]);
    let mut same_in = |run: Range<u64>| same_in(objects, a, b, run, &mut buffers);
    if let (Bytes::Extents(left), Bytes::Extents(right)) = (&a.bytes, &b.bytes) {
        for blocks in unshared(left, right, a.blocks()) {
            let end = blocks.end.saturating_mul(BLOCK).min(a.size);
            if !same_in(blocks.start * BLOCK..end)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    same_in(0..a.size)
}

fn same_in(
    objects: &Objects,
    a: &Contents,
    b: &Contents,
    run: Range<u64>,
    (left, right): &mut (Vec<u8>, Vec<u8>),
) -> Result<bool, ContentsError> {
    let mut at = run.start;
    loop {
        at = a.next_data(objects, at)?.min(b.next_data(objects, at)?);
        if at >= run.end {
            return Ok(true);
        }
        let len = as_len(run.end - at).min(CHUNK);
        a.read(objects, at, &mut left[..len])?;
        b.read(objects, at, &mut right[..len])?;
        if left[..len] != right[..len] {
            return Ok(false);
        }
        at += len as u64;
    }
}
