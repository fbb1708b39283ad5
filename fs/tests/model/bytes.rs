//! Contents of a file in the model: pages that were written, zeros elsewhere.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

pub const PAGE: u64 = 4096;
/// The engine's unit of copying up, for bounds on what a file may take on disk.
const BLOCK: u64 = 65_536;

#[derive(Clone, Debug, Default)]
pub struct Bytes {
    pub size: u64,
    pages: BTreeMap<u64, Arc<[u8]>>,
    /// Blocks that may take space on disk.
    touched: BTreeSet<u64>,
    /// Bytes of space ever asked for. What an older layer reserved and never used is not seen when
    /// a newer one takes the place over, so it stays in the estimate.
    reserved: u64,
}

impl Bytes {
    pub fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (page, within) = (at / PAGE, len(at % PAGE));
            let part = (data.len() - done).min(len(PAGE) - within);
            self.edit(page, |bytes| {
                bytes[within..within + part].copy_from_slice(&data[done..done + part]);
            });
            done += part;
        }
        self.touch(offset..offset + data.len() as u64);
        self.size = self.size.max(offset + data.len() as u64);
    }

    pub fn zero(&mut self, range: Range<u64>) {
        if range.start >= range.end {
            return;
        }
        let pages: Vec<u64> = self
            .pages
            .range(range.start / PAGE..=(range.end - 1) / PAGE)
            .map(|(&page, _)| page)
            .collect();
        for page in pages {
            let start = range.start.max(page * PAGE);
            let end = range.end.min((page + 1) * PAGE);
            if end - start == PAGE {
                self.pages.remove(&page);
            } else {
                self.edit(page, |bytes| {
                    bytes[len(start % PAGE)..len(start % PAGE + end - start)].fill(0);
                });
            }
        }
    }

    pub fn resize(&mut self, size: u64) {
        if size < self.size {
            self.zero(size..self.size);
            self.touched.split_off(&size.div_ceil(BLOCK));
        }
        self.size = size;
    }

    /// Space is reserved.
    pub fn reserve(&mut self, range: Range<u64>) {
        self.reserved += range.end - range.start + BLOCK;
    }

    fn touch(&mut self, range: Range<u64>) {
        self.touched
            .extend(range.start / BLOCK..range.end.div_ceil(BLOCK));
    }

    pub fn read(&self, offset: u64, count: usize) -> Vec<u8> {
        let end = self.size.min(offset.saturating_add(count as u64));
        let mut out = vec![0; len(end.saturating_sub(offset))];
        if out.is_empty() {
            return out;
        }
        for (&page, bytes) in self.pages.range(offset / PAGE..=(end - 1) / PAGE) {
            let start = offset.max(page * PAGE);
            let stop = end.min((page + 1) * PAGE);
            out[len(start - offset)..len(stop - offset)]
                .copy_from_slice(&bytes[len(start % PAGE)..len(start % PAGE + stop - start)]);
        }
        out
    }

    /// Pages that hold something but zeros.
    pub fn data(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.pages
            .iter()
            .filter(|(_, bytes)| bytes.iter().any(|&byte| byte != 0))
            .map(|(&page, _)| page * PAGE..(page + 1) * PAGE)
    }

    /// The first byte at or behind `offset` that is not zero.
    pub fn next_data(&self, offset: u64) -> Option<u64> {
        self.pages
            .range(offset / PAGE..)
            .find_map(|(&page, bytes)| {
                let from = len(offset.saturating_sub(page * PAGE));
                let found = bytes[from..].iter().position(|&byte| byte != 0)?;
                Some(page * PAGE + (from + found) as u64)
            })
    }

    /// Bytes that the file can take on disk at most, give or take some for the disk's own maps.
    pub fn space_max(&self) -> u64 {
        self.touched.len() as u64 * BLOCK + self.reserved
    }

    fn edit(&mut self, page: u64, change: impl FnOnce(&mut [u8])) {
        let zeros = || Arc::from(vec![0_u8; len(PAGE)]);
        let bytes = self.pages.entry(page).or_insert_with(zeros);
        change(Arc::make_mut(bytes));
    }
}

/// Bytes to write: no zeros among them, except that one seed in eight is zeros only.
pub fn pattern(seed: u8, count: usize) -> Vec<u8> {
    if seed.is_multiple_of(8) {
        return vec![0; count];
    }
    let mut state = u64::from(seed).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut out = Vec::with_capacity(count + 8);
    while out.len() < count {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        out.extend((state | 0x0101_0101_0101_0101).to_le_bytes());
    }
    out.truncate(count);
    out
}

pub fn len(value: u64) -> usize {
    usize::try_from(value).unwrap()
}
