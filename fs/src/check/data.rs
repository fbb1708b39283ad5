//! Verifying contents: every object is read, block by block, and held against its checksum.
//!
//! The store may be in use meanwhile. What an object holds in claimed blocks changes only in a live
//! layer, whose objects have no checksum; an object may be given up, or lose blocks, while it is read.
//! So whatever seems to be wrong is looked at again, with the rows read after the bytes, before it is told.

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::ops::{ControlFlow, Range};
use std::time::Instant;

use serde::Serialize;
use thiserror::Error;

use super::places;
use super::report::{CheckReport, Damage, Problem};
use crate::base::host_inode;
use crate::catalog::{CatalogError, HashOf, ServedObject, union};
use crate::change::BLOCK_END;
use crate::contents::raw::{self, read_block};
use crate::contents::{BLOCK, Checksum, WHOLE, as_len, hash_block};
use crate::core::Core;
use crate::id::{Ino, ObjectId};
use crate::store::Store;

/// Objects whose rows are read at once.
const PAGE: usize = 256;

/// Why contents were not verified to the end.
#[derive(Debug, Error)]
pub enum CheckError {
    /// Whoever wanted it does not want it any more.
    #[error("the check was interrupted")]
    Interrupted,
    /// The system does not let an object be read now: that says nothing of its bytes.
    #[error("cannot read object {object}")]
    Read {
        /// Which object.
        object: ObjectId,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct DataReport {
    /// Objects read.
    pub objects: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Blocks that are what was hashed.
    pub verified: u64,
    /// Objects without a checksum, which were only read.
    pub without_checksum: u64,
    /// Blocks that were known to be damaged and are what they were again.
    #[serde(skip)]
    pub(crate) healed: Vec<(ObjectId, u64)>,
}

/// How far a check of contents is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DataProgress {
    /// Objects read.
    pub objects: u64,
    /// Of how many.
    pub total: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// Is told how far it is, and says whether to go on.
pub(crate) type Progress<'a> = &'a mut dyn FnMut(&DataProgress) -> ControlFlow<()>;

impl Store {
    /// As [`Store::check`], and reads all contents: blocks of objects that were hashed are verified. The
    /// store may be in use meanwhile.
    ///
    /// # Errors
    /// [`CheckError`]. What is wrong with the store is no error, it is in the report.
    pub fn check_data(
        &self,
        progress: &mut dyn FnMut(&DataProgress) -> ControlFlow<()>,
    ) -> Result<CheckReport, CheckError> {
        let started = Instant::now();
        let mut report = CheckReport::default();
        self.check_metadata(&mut report)?;
        self.check_contents(&mut report, progress)?;
        places::add(&self.core, &mut report)?;
        report.elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
        Ok(report)
    }

    /// Reads all contents.
    pub(crate) fn check_contents(
        &self,
        report: &mut CheckReport,
        progress: Progress<'_>,
    ) -> Result<(), CheckError> {
        let core = &*self.core;
        let mut reading = Reading {
            core,
            total: core.catalog.object_count()?,
            done: DataReport::default(),
            progress,
            buffer: vec![0; as_len(BLOCK)],
        };
        let mut after = ObjectId(0);
        loop {
            let page = core.catalog.objects_after(after, PAGE)?;
            let Some(last) = page.last() else {
                break;
            };
            after = last.id;
            for record in &page {
                reading.object(record, report)?;
            }
        }
        report.data = Some(reading.done);
        Ok(())
    }
}

/// A pass over all objects.
struct Reading<'a> {
    core: &'a Core,
    total: u64,
    done: DataReport,
    progress: Progress<'a>,
    buffer: Vec<u8>,
}

impl Reading<'_> {
    fn object(
        &mut self,
        record: &ServedObject,
        report: &mut CheckReport,
    ) -> Result<(), CheckError> {
        let ServedObject { id, ino, .. } = *record;
        let file = match self.core.objects.open_raw(id, false) {
            Ok(file) => file,
            // Given up meanwhile; else it is told as what it is, a file that is missing.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return self.tell(),
            Err(source) if !is_damage(&source) => {
                return Err(CheckError::Read { object: id, source });
            }
            Err(error) => {
                tracing::warn!(%error, object = id.0, "cannot open an object");
                if self.core.catalog.has_object(id)? {
                    report.found(damage(id, ino, &(0..1), Damage::Unreadable));
                }
                return self.tell();
            }
        };
        let hash_of = self.core.catalog.hash_of(id)?;
        let checksum = hash_of.as_ref().and_then(believed);
        let claimed = claimed(self.core, record)?;
        let suspects = match &checksum {
            Some(checksum) => self.verify(id, &file, checksum, &claimed)?,
            None => {
                self.done.without_checksum += 1;
                let suspects = self.read_through(&file, &claimed)?;
                // What was hashed once may be refused because its bytes are others.
                if hash_of.is_some_and(|of| !of.hashed && of.checksum.is_none()) {
                    self.heal_readable(id, &file, &claimed, &suspects);
                }
                suspects
            }
        };
        self.done.objects += 1;
        self.tell()?;
        self.judge(record, &file, checksum.as_ref(), suspects, report)
    }

    /// Reads the blocks that have a checksum; returns those that do not match it, known ones included.
    fn verify(
        &mut self,
        id: ObjectId,
        file: &File,
        checksum: &Checksum,
        claimed: &[Range<u64>],
    ) -> Result<Vec<u64>, CheckError> {
        let known: HashSet<u64> = self.known(id).into_iter().collect();
        let (mut suspects, mut healed) = (Vec::new(), Vec::new());
        for &(block, hash) in checksum.entries() {
            if !covers(claimed, block) {
                continue;
            }
            let is_known = known.contains(&block);
            match read_block(file, block, &mut self.buffer) {
                Ok(len) if hash_block(&self.buffer[..len]) == hash => {
                    self.done.bytes += len as u64;
                    self.done.verified += u64::from(!is_known);
                    if is_known {
                        healed.push((id, block));
                    }
                }
                Ok(len) => {
                    self.done.bytes += len as u64;
                    suspects.push(block);
                }
                Err(_) => suspects.push(block),
            }
            self.tell()?;
        }
        suspects.extend(self.strays(file, checksum, claimed, &known)?);
        // A file that was missing is there again: it counts if all of it is what it was.
        if known.contains(&WHOLE) && suspects.is_empty() {
            healed.push((id, WHOLE));
        }
        self.done.healed.extend(healed);
        Ok(suspects)
    }

    /// Reads what has data and was all zeros when it was hashed; returns what is not any more.
    fn strays(
        &mut self,
        file: &File,
        checksum: &Checksum,
        claimed: &[Range<u64>],
        known: &HashSet<u64>,
    ) -> Result<Vec<u64>, CheckError> {
        let mut strays = Vec::new();
        for block in with_data(file, claimed) {
            if checksum.of(block).is_some() || known.contains(&block) {
                continue;
            }
            match read_block(file, block, &mut self.buffer) {
                Ok(0) => break,
                Ok(len) => {
                    self.done.bytes += len as u64;
                    if hash_block(&self.buffer[..len]) != hash_block(&[]) {
                        strays.push(block);
                    }
                }
                Err(_) => strays.push(block),
            }
            self.tell()?;
        }
        Ok(strays)
    }

    /// Reads the data of an object; returns the blocks that the disk does not give out.
    fn read_through(
        &mut self,
        file: &File,
        claimed: &[Range<u64>],
    ) -> Result<Vec<u64>, CheckError> {
        let mut suspects = Vec::new();
        for block in with_data(file, claimed) {
            match read_block(file, block, &mut self.buffer) {
                Ok(0) => break,
                Ok(len) => self.done.bytes += len as u64,
                Err(error) => {
                    tracing::warn!(%error, block, "cannot read a block");
                    suspects.push(block);
                }
            }
            self.tell()?;
        }
        Ok(suspects)
    }

    /// What was refused of an object that was never hashed could not be read: it is good again when it
    /// can.
    fn heal_readable(
        &mut self,
        id: ObjectId,
        file: &File,
        claimed: &[Range<u64>],
        suspects: &[u64],
    ) {
        for block in self.known(id) {
            let is_back = if block == WHOLE {
                suspects.is_empty()
            } else {
                covers(claimed, block) && read_block(file, block, &mut self.buffer).is_ok()
            };
            if is_back {
                self.done.healed.push((id, block));
            }
        }
    }

    /// Looks at blocks again that seemed to be damaged, and tells of those that are.
    fn judge(
        &mut self,
        record: &ServedObject,
        file: &File,
        checksum: Option<&Checksum>,
        suspects: Vec<u64>,
        report: &mut CheckReport,
    ) -> Result<(), CheckError> {
        let ServedObject { id, ino, .. } = *record;
        let known = self.known(id);
        if suspects.is_empty() || self.core.objects.damaged().has_whole(id) {
            return Ok(());
        }
        let mut damaged: Vec<(Damage, u64)> = Vec::new();
        for block in suspects {
            let zeros = hash_block(&[]);
            let expected = checksum.map(|checksum| *checksum.of(block).unwrap_or(&zeros));
            let found = match read_block(file, block, &mut self.buffer) {
                Ok(len) if expected.is_some_and(|hash| hash != hash_block(&self.buffer[..len])) => {
                    if len == 0 {
                        Damage::Short
                    } else {
                        Damage::Changed
                    }
                }
                Ok(_) => continue,
                Err(error) if is_damage(&error) => Damage::Unreadable,
                Err(source) => return Err(CheckError::Read { object: id, source }),
            };
            if !known.contains(&block) {
                damaged.push((found, block));
            }
        }
        // Only now: blocks lose their rows before they lose their bytes.
        let claimed = claimed(self.core, record)?;
        if !self.core.catalog.has_object(id)? {
            return Ok(());
        }
        damaged.retain(|&(_, block)| covers(&claimed, block));
        for of_kind in damaged.chunk_by(|a, b| a.0 == b.0) {
            let blocks: Vec<u64> = of_kind.iter().map(|&(_, block)| block).collect();
            for run in runs(&blocks) {
                report.found(damage(id, ino, &run, of_kind[0].0));
            }
        }
        Ok(())
    }

    /// Damaged blocks of an object that are known.
    fn known(&self, id: ObjectId) -> Vec<u64> {
        self.core.objects.damaged().among(id, &(0..BLOCK_END))
    }

    fn tell(&mut self) -> Result<(), CheckError> {
        let progress = DataProgress {
            objects: self.done.objects,
            total: self.total,
            bytes: self.done.bytes,
        };
        match (self.progress)(&progress) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(CheckError::Interrupted),
        }
    }
}

/// The checksum that counts for an object: one that says of itself what it is, of an object that says
/// that it was hashed.
fn believed(of: &HashOf) -> Option<Checksum> {
    let (digest, blocks) = of.checksum.as_ref().filter(|_| of.hashed)?;
    Checksum::decode(blocks).filter(|checksum| checksum.digest() == *digest)
}

/// Whether an error says that bytes are lost. Others pass: of too little memory, too many open files,
/// missing permissions.
fn is_damage(error: &io::Error) -> bool {
    let lost = [
        // A disk, or a file system's own checksum, fails.
        libc::EIO,
        libc::EUCLEAN,
        libc::EBADMSG,
        // What is there is no file.
        libc::ELOOP,
        libc::EISDIR,
    ];
    error
        .raw_os_error()
        .is_some_and(|code| lost.contains(&code))
}

/// Claimed blocks that have data, or may have where the disk cannot tell; also some that lie behind the end
/// of the file then.
fn with_data<'a>(file: &'a File, claimed: &'a [Range<u64>]) -> impl Iterator<Item = u64> + use<'a> {
    claimed.iter().flat_map(move |range| {
        let mut next = range.start;
        std::iter::from_fn(move || {
            match raw::next_data(file, next.saturating_mul(BLOCK)) {
                Ok(Some(data)) => next = next.max(data.start / BLOCK),
                Ok(None) => return None,
                Err(error) => tracing::debug!(%error, "cannot look for data"),
            }
            (next < range.end).then(|| {
                next += 1;
                next - 1
            })
        })
    })
}

/// The blocks of an object that anything claims, in order, without overlaps.
fn claimed(core: &Core, record: &ServedObject) -> Result<Vec<Range<u64>>, CatalogError> {
    let claims = core.catalog.claims(record.ino, record.id)?;
    // One that is in place has no row here, and no file.
    debug_assert!(claims.is_empty() || host_inode(record.id).is_none_or(|ino| ino == record.ino));
    let ranges = claims.into_iter().map(|claim| claim.start..claim.end);
    Ok(union(ranges.collect()))
}

fn covers(ranges: &[Range<u64>], block: u64) -> bool {
    let at = ranges.partition_point(|range| range.end <= block);
    ranges.get(at).is_some_and(|range| range.start <= block)
}

/// Runs of numbers that follow each other.
pub(super) fn runs(blocks: &[u64]) -> Vec<Range<u64>> {
    let mut runs: Vec<Range<u64>> = Vec::new();
    for &block in blocks {
        match runs.last_mut() {
            Some(last) if last.end == block => last.end += 1,
            _ => runs.push(block..block.saturating_add(1)),
        }
    }
    runs
}

/// Damage as a problem; in bytes. [`WHOLE`] is all that there can be.
pub(super) fn damage(object: ObjectId, ino: Ino, blocks: &Range<u64>, why: Damage) -> Problem {
    let (start, end) = if blocks.start == WHOLE {
        (0, i64::MAX.unsigned_abs())
    } else {
        (
            blocks.start.saturating_mul(BLOCK),
            blocks.end.saturating_mul(BLOCK),
        )
    };
    Problem::Damaged {
        object,
        ino,
        start,
        end,
        why,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_put_together_and_searched() {
        let all = union(vec![5..7, 0..2, 1..3, 7..9, 20..BLOCK_END]);
        assert_eq!(all, [0..3, 5..9, 20..BLOCK_END]);
        for block in [0, 2, 5, 8, 20, 1 << 40] {
            assert!(covers(&all, block), "{block}");
        }
        for block in [3, 4, 9, 19] {
            assert!(!covers(&all, block), "{block}");
        }
    }

    #[test]
    fn a_checksum_counts_only_as_it_was_written_and_errors_that_pass_are_no_damage() {
        let blocks = Checksum::default().encode();
        let digest = Checksum::default().digest();
        let of = |hashed, digest| HashOf {
            hashed,
            checksum: Some((digest, blocks.clone())),
        };
        assert!(believed(&of(true, digest)).is_some());
        assert!(believed(&of(true, digest ^ 1)).is_none());
        assert!(believed(&of(false, digest)).is_none());
        for code in [libc::EACCES, libc::EMFILE, libc::ENOMEM, libc::ENFILE] {
            assert!(!is_damage(&io::Error::from_raw_os_error(code)));
        }
        assert!(is_damage(&io::Error::from_raw_os_error(libc::EIO)));
    }

    #[test]
    fn blocks_that_follow_each_other_are_one_run() {
        assert_eq!(runs(&[1, 2, 3, 7, 9, 10]), [1..4, 7..8, 9..11]);
        assert!(runs(&[]).is_empty());
        let whole = damage(ObjectId(1), Ino(2), &(WHOLE..WHOLE), Damage::Known);
        let Problem::Damaged { start, end, .. } = whole else {
            unreachable!();
        };
        assert_eq!((start, end), (0, i64::MAX.unsigned_abs()));
    }
}
