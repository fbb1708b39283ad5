//! The tables of what is watched: which directory is which, for each channel.
//!
//! Invariants: both tables say the same; a path of a channel has one number, that of the directory which
//! was found there last; a number that has no place is in neither.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::path::{Path, PathBuf};

/// A directory in what a channel watches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    pub channel: u64,
    /// Relative to the watched directory; empty for that itself.
    pub path: PathBuf,
}

/// All of them, by the kernel's number and by path.
#[derive(Debug, Default)]
pub struct Places {
    by_number: BTreeMap<i32, Vec<Place>>,
    /// Of each channel. What is below a path comes right behind it.
    by_path: BTreeMap<u64, BTreeMap<PathBuf, i32>>,
}

impl Places {
    /// The places of a number: the same directory for several channels, or by several ways.
    pub fn of(&self, number: i32) -> Vec<Place> {
        self.by_number.get(&number).cloned().unwrap_or_default()
    }

    /// How many places a channel has, not counting that path.
    pub fn count_others(&self, channel: u64, path: &Path) -> usize {
        self.by_path.get(&channel).map_or(0, |paths| {
            paths.len() - usize::from(paths.contains_key(path))
        })
    }

    /// Notes a place. The number of the directory that was there, if it has no place any more.
    pub fn note(&mut self, place: Place, number: i32) -> Option<i32> {
        let paths = self.by_path.entry(place.channel).or_default();
        let before = paths.insert(place.path.clone(), number);
        if before == Some(number) {
            return None;
        }
        let left = before.filter(|before| self.take(*before, &place));
        self.by_number.entry(number).or_default().push(place);
        left
    }

    /// Forgets a number. The places that it had.
    pub fn forget_number(&mut self, number: i32) -> Vec<Place> {
        let here = self.by_number.remove(&number).unwrap_or_default();
        for place in &here {
            self.take_path(place);
        }
        here
    }

    /// Forgets a path of a channel and what is below it. The numbers that have no place any more.
    pub fn forget_below(&mut self, channel: u64, below: &Path) -> Vec<i32> {
        let from = (Bound::Included(below), Bound::Unbounded);
        let all = self.by_path.get(&channel).map_or_else(Vec::new, |paths| {
            paths
                .range::<Path, _>(from)
                .take_while(|(path, _)| path.starts_with(below))
                .map(|(path, number)| (path.clone(), *number))
                .collect()
        });
        let mut left = Vec::new();
        for (path, number) in all {
            let place = Place { channel, path };
            self.take_path(&place);
            if self.take(number, &place) {
                left.push(number);
            }
        }
        left
    }

    fn take_path(&mut self, place: &Place) {
        if let Some(paths) = self.by_path.get_mut(&place.channel) {
            paths.remove(&place.path);
            if paths.is_empty() {
                self.by_path.remove(&place.channel);
            }
        }
    }

    /// Takes a place away from a number. Whether that has none any more.
    fn take(&mut self, number: i32, place: &Place) -> bool {
        let Some(here) = self.by_number.get_mut(&number) else {
            return false;
        };
        here.retain(|one| one != place);
        let none = here.is_empty();
        if none {
            self.by_number.remove(&number);
        }
        none
    }

    /// What a channel watches, after checking that both tables say the same.
    #[cfg(test)]
    pub fn watched(&self, channel: u64) -> Vec<(PathBuf, i32)> {
        let mut by_number: Vec<(PathBuf, i32)> = self
            .by_number
            .iter()
            .flat_map(|(number, here)| here.iter().map(move |place| (place, *number)))
            .filter(|(place, _)| place.channel == channel)
            .map(|(place, number)| (place.path.clone(), number))
            .collect();
        by_number.sort();
        let paths = self.by_path.get(&channel).cloned().unwrap_or_default();
        assert_eq!(by_number, paths.into_iter().collect::<Vec<_>>());
        assert!(self.by_number.values().all(|here| !here.is_empty()));
        by_number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(channel: u64, path: &str) -> Place {
        Place {
            channel,
            path: path.into(),
        }
    }

    #[test]
    fn a_path_has_the_number_that_was_noted_last() {
        let mut places = Places::default();
        assert_eq!(places.note(place(1, "a"), 5), None);
        assert_eq!(places.note(place(1, "a"), 5), None);
        // The same directory by another way.
        assert_eq!(places.note(place(1, "b"), 5), None);
        assert_eq!(places.note(place(1, "a"), 6), None);
        assert_eq!(places.of(5), [place(1, "b")]);
        assert_eq!(places.note(place(1, "b"), 6), Some(5));
        assert_eq!(places.of(5), []);
        assert_eq!(places.watched(1), [("a".into(), 6), ("b".into(), 6)]);
        assert_eq!(places.count_others(1, Path::new("a")), 1);
        assert_eq!(places.count_others(1, Path::new("c")), 2);
    }

    #[test]
    fn what_is_below_a_path_is_forgotten_with_it_and_nothing_else() {
        let mut places = Places::default();
        for (number, path) in [(1, ""), (2, "a"), (3, "a/b"), (4, "a.b"), (5, "ab")] {
            places.note(place(1, path), number);
        }
        places.note(place(2, "a"), 2);
        assert_eq!(places.forget_below(1, Path::new("a")), [3]);
        let left = [(PathBuf::new(), 1), ("a.b".into(), 4), ("ab".into(), 5)];
        assert_eq!(places.watched(1), left);
        assert_eq!(places.watched(2), [("a".into(), 2)]);
        assert_eq!(places.forget_below(1, Path::new("")), [1, 4, 5]);
        assert_eq!(places.forget_number(2), [place(2, "a")]);
        assert!(places.by_number.is_empty() && places.by_path.is_empty());
    }
}
