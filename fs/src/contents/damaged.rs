//! Blocks of objects that cannot be read, because their bytes are not what they were.
//!
//! Known by the rows of `damaged`, which are loaded when the store is opened. Hardly ever there are any:
//! then asking costs one look at a flag. Whoever reads an object for its bytes asks before.

use std::collections::{BTreeSet, HashMap};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::change::BLOCK_END;
use crate::id::ObjectId;
use crate::lock::{Mutex, rank};

/// Number of a block that stands for all of an object: its file is missing.
pub(crate) const WHOLE: u64 = BLOCK_END;

/// Every damaged block that is known.
#[derive(Default)]
pub(crate) struct Damaged {
    any: AtomicBool,
    blocks: Mutex<{ rank::LEAF }, HashMap<ObjectId, BTreeSet<u64>>>,
}

impl Damaged {
    /// A block is damaged, or with [`WHOLE`] all of them.
    pub(crate) fn add(&self, object: ObjectId, block: u64) {
        let mut blocks = self.blocks.lock();
        blocks.entry(object).or_default().insert(block);
        self.any.store(true, Ordering::Release);
    }

    /// A block is not damaged any more.
    pub(crate) fn remove(&self, object: ObjectId, block: u64) {
        let mut blocks = self.blocks.lock();
        if let Some(of) = blocks.get_mut(&object) {
            of.remove(&block);
            if of.is_empty() {
                blocks.remove(&object);
            }
        }
        self.any.store(!blocks.is_empty(), Ordering::Release);
    }

    /// Whether all of an object is.
    pub(crate) fn has_whole(&self, object: ObjectId) -> bool {
        self.among(object, &(0..1)) == [WHOLE]
    }

    /// Whether an object has any.
    pub(crate) fn has(&self, object: ObjectId) -> bool {
        self.any.load(Ordering::Acquire) && self.blocks.lock().contains_key(&object)
    }

    /// The damaged ones among some blocks of an object; [`WHOLE`] if it is all of them.
    pub(crate) fn among(&self, object: ObjectId, range: &Range<u64>) -> Vec<u64> {
        if !self.any.load(Ordering::Acquire) || range.start >= range.end {
            return Vec::new();
        }
        let blocks = self.blocks.lock();
        let Some(of) = blocks.get(&object) else {
            return Vec::new();
        };
        if of.contains(&WHOLE) {
            return vec![WHOLE];
        }
        of.range(range.clone()).copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_block_is_damaged_from_when_it_is_added_until_it_is_removed() {
        let damaged = Damaged::default();
        let (one, two) = (ObjectId(1), ObjectId(2));
        assert!(damaged.among(one, &(0..9)).is_empty());
        damaged.add(one, 3);
        damaged.add(one, 5);
        damaged.add(two, WHOLE);
        assert_eq!(damaged.among(one, &(0..9)), [3, 5]);
        assert!(damaged.among(one, &(4..5)).is_empty());
        assert_eq!(damaged.among(two, &(7..8)), [WHOLE]);
        assert!(damaged.among(two, &(7..7)).is_empty());
        assert!(damaged.has(two) && !damaged.has(ObjectId(3)));
        damaged.remove(one, 3);
        damaged.remove(two, WHOLE);
        assert_eq!(damaged.among(one, &(0..9)), [5]);
        assert!(!damaged.has(two));
        damaged.remove(one, 5);
        assert!(!damaged.has(one));
    }
}
