//! What one connection holds of a view that it shares with others: references to inodes, and open files.
//! Pure, but for the locks.
//!
//! A guest may name only what it holds, may return only what it holds, and can hold so much and no more.
//! The counts here are never above what the [`Dispatch`](crate::dispatch::Dispatch) has counted for this
//! connection, so returning them returns nothing of anybody else.

use std::collections::HashMap;

use parking_lot::Mutex;

use crate::dispatch::OpenMode;
use crate::id::Ino;

/// Lookup references by inode.
#[derive(Debug)]
pub(in crate::dispatch) struct Nodes {
    max: usize,
    counts: Mutex<HashMap<Ino, u64>>,
}

impl Nodes {
    /// A table of at most `max` inodes.
    pub(in crate::dispatch) fn new(max: usize) -> Self {
        Self {
            max,
            counts: Mutex::default(),
        }
    }

    /// Whether the guest may name an inode. Everybody may name the root.
    pub(in crate::dispatch) fn holds(&self, ino: Ino) -> bool {
        ino == Ino::ROOT || self.counts.lock().contains_key(&ino)
    }

    /// Whether there is room for another inode.
    pub(in crate::dispatch) fn has_room(&self) -> bool {
        self.counts.lock().len() < self.max
    }

    /// Counts a reference that the guest is about to be told of; false if there is no room for one more
    /// inode.
    pub(in crate::dispatch) fn take(&self, ino: Ino) -> bool {
        self.take_all(ino, 1)
    }

    /// Counts several references to one inode; false if there is no room for one more inode.
    pub(in crate::dispatch) fn take_all(&self, ino: Ino, count: u64) -> bool {
        let mut counts = self.counts.lock();
        let full = counts.len() >= self.max;
        match counts.get_mut(&ino) {
            Some(held) => *held = held.saturating_add(count),
            None if full => return false,
            None => {
                counts.insert(ino, count);
            }
        }
        true
    }

    /// Takes references back; returns how many there were of them.
    pub(in crate::dispatch) fn give_back(&self, ino: Ino, count: u64) -> u64 {
        let mut counts = self.counts.lock();
        match counts.get_mut(&ino) {
            Some(held) if *held > count => {
                *held -= count;
                count
            }
            Some(_) => counts.remove(&ino).unwrap_or(0),
            None => 0,
        }
    }

    /// The inodes that are held.
    pub(in crate::dispatch) fn all(&self) -> Vec<Ino> {
        self.counts.lock().keys().copied().collect()
    }

    /// How many references there are to each inode.
    pub(in crate::dispatch) fn counts(&self) -> Vec<(Ino, u64)> {
        let counts = self.counts.lock();
        counts.iter().map(|(&ino, &count)| (ino, count)).collect()
    }

    /// Takes all of them back.
    pub(in crate::dispatch) fn drain(&self) -> HashMap<Ino, u64> {
        std::mem::take(&mut *self.counts.lock())
    }
}

/// How often one file is open, by mode.
#[derive(Clone, Copy, Debug, Default)]
struct Opened {
    read: u64,
    write: u64,
    both: u64,
}

impl Opened {
    /// How often in each mode, of those in which it is open.
    fn modes(self) -> impl Iterator<Item = (OpenMode, u64)> {
        let all = [
            (OpenMode::Read, self.read),
            (OpenMode::Write, self.write),
            (OpenMode::ReadWrite, self.both),
        ];
        all.into_iter().filter(|&(_, count)| count > 0)
    }

    fn of(&mut self, mode: OpenMode) -> &mut u64 {
        match mode {
            OpenMode::Read => &mut self.read,
            OpenMode::Write => &mut self.write,
            OpenMode::ReadWrite => &mut self.both,
        }
    }
}

/// Open files. There are no handles: a file that is open twice in one mode is counted twice.
#[derive(Debug)]
pub(in crate::dispatch) struct Opens {
    max: usize,
    files: Mutex<Files>,
}

#[derive(Debug, Default)]
struct Files {
    total: usize,
    by_inode: HashMap<Ino, Opened>,
}

impl Files {
    fn counts(&self) -> Vec<(Ino, OpenMode, u64)> {
        let each = |(&ino, opened): (&Ino, &Opened)| {
            opened.modes().map(move |(mode, count)| (ino, mode, count))
        };
        self.by_inode.iter().flat_map(each).collect()
    }
}

impl Opens {
    /// A table of at most `max` opens.
    pub(in crate::dispatch) fn new(max: usize) -> Self {
        Self {
            max,
            files: Mutex::default(),
        }
    }

    /// Whether there is room for another one.
    pub(in crate::dispatch) fn has_room(&self) -> bool {
        self.files.lock().total < self.max
    }

    /// Counts one; false if there is no room.
    pub(in crate::dispatch) fn open(&self, ino: Ino, mode: OpenMode) -> bool {
        let mut files = self.files.lock();
        if files.total >= self.max {
            return false;
        }
        files.total += 1;
        *files.by_inode.entry(ino).or_default().of(mode) += 1;
        true
    }

    /// Takes one back; false if there was none of that mode.
    pub(in crate::dispatch) fn close(&self, ino: Ino, mode: OpenMode) -> bool {
        let mut files = self.files.lock();
        let Some(opened) = files.by_inode.get_mut(&ino) else {
            return false;
        };
        let count = opened.of(mode);
        if *count == 0 {
            return false;
        }
        *count -= 1;
        if opened.read == 0 && opened.write == 0 && opened.both == 0 {
            files.by_inode.remove(&ino);
        }
        files.total -= 1;
        true
    }

    /// Whether the file is open in any mode.
    pub(in crate::dispatch) fn has(&self, ino: Ino) -> bool {
        self.files.lock().by_inode.contains_key(&ino)
    }

    /// Whether the file is open for writing.
    pub(in crate::dispatch) fn has_writer(&self, ino: Ino) -> bool {
        let files = self.files.lock();
        let opened = files.by_inode.get(&ino);
        opened.is_some_and(|opened| opened.write > 0 || opened.both > 0)
    }

    /// Takes all of them back: file, mode, how often.
    pub(in crate::dispatch) fn drain(&self) -> Vec<(Ino, OpenMode, u64)> {
        std::mem::take(&mut *self.files.lock()).counts()
    }

    /// File, mode, how often.
    pub(in crate::dispatch) fn counts(&self) -> Vec<(Ino, OpenMode, u64)> {
        self.files.lock().counts()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_references_are_returned_than_were_taken() {
        let nodes = Nodes::new(2);
        assert!(nodes.holds(Ino::ROOT) && !nodes.holds(Ino(20)));
        assert!(nodes.take(Ino(20)) && nodes.take(Ino(20)) && nodes.take(Ino(21)));
        assert!(
            !nodes.has_room() && !nodes.take(Ino(22)),
            "two inodes are all"
        );
        assert!(nodes.take(Ino(21)), "one that is there already");
        assert_eq!(nodes.give_back(Ino(20), 1), 1);
        assert!(nodes.holds(Ino(20)));
        assert_eq!(nodes.give_back(Ino(20), u64::MAX), 1);
        assert_eq!(nodes.give_back(Ino(20), 1), 0);
        assert!(!nodes.holds(Ino(20)) && nodes.has_room());
        assert_eq!(nodes.give_back(Ino(21), 0), 0);
        assert_eq!(nodes.drain(), HashMap::from([(Ino(21), 2)]));
        assert!(nodes.drain().is_empty());
    }

    #[test]
    fn what_was_held_elsewhere_is_taken_at_once() {
        let (nodes, opens) = (Nodes::new(1), Opens::new(3));
        assert!(nodes.take_all(Ino(20), 5) && nodes.take_all(Ino(20), 2));
        assert!(!nodes.take_all(Ino(21), 5) && !nodes.holds(Ino(21)));
        assert_eq!(nodes.counts(), [(Ino(20), 7)]);
        assert!(nodes.take_all(Ino(20), u64::MAX) && nodes.take(Ino(20)));
        assert_eq!(nodes.give_back(Ino(20), u64::MAX), u64::MAX);
        for mode in [OpenMode::Read, OpenMode::ReadWrite, OpenMode::Read] {
            assert!(opens.open(Ino(20), mode));
        }
        let counts = [
            (Ino(20), OpenMode::Read, 2),
            (Ino(20), OpenMode::ReadWrite, 1),
        ];
        assert_eq!(opens.counts(), counts);
        assert_eq!(opens.drain(), counts);
    }

    #[test]
    fn a_file_is_closed_as_often_and_in_the_mode_that_it_was_opened() {
        let opens = Opens::new(3);
        assert!(!opens.close(Ino(20), OpenMode::Read));
        assert!(opens.open(Ino(20), OpenMode::Read) && !opens.has_writer(Ino(20)));
        assert!(opens.open(Ino(20), OpenMode::Write) && opens.has_writer(Ino(20)));
        assert!(opens.open(Ino(21), OpenMode::ReadWrite));
        assert!(!opens.has_room() && !opens.open(Ino(21), OpenMode::Read));
        assert!(!opens.close(Ino(20), OpenMode::ReadWrite));
        assert!(opens.close(Ino(20), OpenMode::Write) && !opens.close(Ino(20), OpenMode::Write));
        assert!(opens.has(Ino(20)) && !opens.has_writer(Ino(20)));
        assert!(opens.close(Ino(20), OpenMode::Read) && !opens.has(Ino(20)));
        assert_eq!(opens.drain(), [(Ino(21), OpenMode::ReadWrite, 1)]);
        assert!(opens.has_room() && opens.drain().is_empty());
    }
}
