//! Sets of guest pages, one bit each.
//!
//! Pages are numbered through all of RAM without its hole, so that page `n` is at byte `n * PAGE` of a
//! memory file. Pure.

use serde::{Deserialize, Serialize};

/// Bytes of a page of guest memory, as dirty logs and images count them.
pub const PAGE: u64 = 4096;

/// A set of pages out of a fixed number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Pages {
    // Bits beyond `len` are 0.
    words: Vec<u64>,
    len: usize,
}

/// Pages that follow each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Run {
    /// The first.
    pub start: usize,
    /// How many, at least one.
    pub len: usize,
}

impl Run {
    /// The first page after it.
    #[must_use]
    pub fn end(self) -> usize {
        self.start + self.len
    }
}

impl Pages {
    /// The empty set of `len` pages.
    #[must_use]
    pub fn none(len: usize) -> Self {
        Self {
            words: vec![0; len.div_ceil(64)],
            len,
        }
    }

    /// All of `len` pages.
    #[must_use]
    pub fn all(len: usize) -> Self {
        let mut all = Self {
            words: vec![u64::MAX; len.div_ceil(64)],
            len,
        };
        all.trim();
        all
    }

    /// Of how many pages this is a set.
    #[must_use]
    pub fn total(&self) -> usize {
        self.len
    }

    /// How many pages are in it.
    #[must_use]
    pub fn count(&self) -> usize {
        // A word has at most 64.
        self.words
            .iter()
            .map(|word| word.count_ones() as usize)
            .sum()
    }

    /// Whether none is.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.words.iter().all(|word| *word == 0)
    }

    /// Whether `page` is in it. Pages that do not exist are not.
    #[must_use]
    pub fn contains(&self, page: usize) -> bool {
        self.words
            .get(page / 64)
            .is_some_and(|word| word & 1 << (page % 64) != 0)
    }

    /// Adds `page`, if it exists.
    pub fn insert(&mut self, page: usize) {
        if page < self.len {
            self.words[page / 64] |= 1 << (page % 64);
        }
    }

    /// Takes `page` out.
    pub fn remove(&mut self, page: usize) {
        if page < self.len {
            self.words[page / 64] &= !(1 << (page % 64));
        }
    }

    /// Adds a run. What does not exist is left out.
    pub fn insert_run(&mut self, run: Run) {
        (run.start..run.end().min(self.len)).for_each(|page| self.insert(page));
    }

    /// Adds all of `other`.
    pub fn union(&mut self, other: &Self) {
        for (word, more) in self.words.iter_mut().zip(&other.words) {
            *word |= more;
        }
        self.trim();
    }

    /// Adds pages as a log shows them: a bit each, from page `first` on, which is a multiple of 64.
    pub fn union_log(&mut self, first: usize, log: &[u64]) {
        let words = self.words.iter_mut().skip(first / 64);
        for (word, more) in words.zip(log) {
            *word |= more;
        }
        self.trim();
    }

    /// The runs in order, each as long as it can be.
    pub fn runs(&self) -> impl Iterator<Item = Run> {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, true)?;
            let end = self.next(start, false).unwrap_or(self.len);
            at = end;
            Some(Run {
                start,
                len: end - start,
            })
        })
    }

    /// The first page from `from` on that is (or is not) in the set.
    fn next(&self, from: usize, wanted: bool) -> Option<usize> {
        let mut mask = u64::MAX << (from % 64);
        for index in from / 64..self.words.len() {
            let word = self.words[index];
            let found = if wanted { word } else { !word } & mask;
            mask = u64::MAX;
            if found != 0 {
                let page = index * 64 + found.trailing_zeros() as usize;
                return (page < self.len).then_some(page);
            }
        }
        None
    }

    /// Whether the invariants hold, of a set that somebody else made.
    pub(super) fn is_sound(&self) -> bool {
        let mut trimmed = self.clone();
        trimmed.trim();
        self.words.len() == self.len.div_ceil(64) && trimmed == *self
    }

    fn trim(&mut self) {
        if let Some(last) = self
            .words
            .last_mut()
            .filter(|_| !self.len.is_multiple_of(64))
        {
            *last &= (1 << (self.len % 64)) - 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_set_of_pages_is_a_set(
            len in 1usize..300,
            steps in prop::collection::vec((0usize..320, 0usize..5, any::<u64>()), 0..60),
        ) {
            let (mut pages, mut model) = (Pages::none(len), BTreeSet::new());
            for (page, step, word) in steps {
                match step {
                    0 | 1 => {
                        pages.insert(page);
                        model.extend((page < len).then_some(page));
                    }
                    2 => {
                        pages.remove(page);
                        model.remove(&page);
                    }
                    3 => {
                        let first = page / 64 * 64;
                        pages.union_log(first, &[word]);
                        let bits = (0..64).filter(|bit| word & 1 << bit != 0);
                        model.extend(bits.map(|bit| first + bit).filter(|page| *page < len));
                    }
                    _ => {
                        let run = Run { start: page, len: (word % 70) as usize + 1 };
                        pages.insert_run(run);
                        model.extend((run.start..run.end()).filter(|page| *page < len));
                    }
                }
            }
            prop_assert_eq!(pages.count(), model.len());
            prop_assert_eq!(pages.is_empty(), model.is_empty());
            let runs: Vec<Run> = pages.runs().collect();
            let in_runs: BTreeSet<usize> = runs.iter().flat_map(|run| run.start..run.end()).collect();
            prop_assert_eq!(&in_runs, &model);
            prop_assert!(runs.windows(2).all(|pair| pair[0].end() < pair[1].start), "as long as can be");
            prop_assert!((0..330).all(|page| pages.contains(page) == model.contains(&page)));
        }
    }

    #[test]
    fn all_pages_are_one_run() {
        for len in [1, 63, 64, 65, 1000] {
            let all = Pages::all(len);
            assert_eq!(all.count(), len);
            assert_eq!(all.runs().collect::<Vec<_>>(), [Run { start: 0, len }]);
        }
        assert_eq!(Pages::all(0).runs().count(), 0);
    }
}
