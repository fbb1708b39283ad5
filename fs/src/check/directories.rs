//! Looking for directories that lie in themselves.
//!
//! A loop that a layer has and its parent has not goes through a directory that the layer moved
//! or made. So it is enough to walk up from those, and to stop where the walk has been.

use std::collections::{BTreeMap, HashSet};

use super::ino;
use super::report::{CheckReport, Problem};
use super::tree::{Layer, Layers};
use crate::id::Ino;

/// Where a directory is from a layer on; 0 when it is nowhere.
#[derive(Clone, Copy, Debug)]
struct Place {
    number: i64,
    enter: u32,
    exit: u32,
    parent: i64,
}

/// Places of directories, in the order of their numbers and of the walk.
#[derive(Debug, Default)]
pub(super) struct Directories(Vec<Place>);

impl Directories {
    /// A directory's parent in a layer. Calls come in the order of numbers and of the walk.
    pub(super) fn put(&mut self, number: i64, layer: &Layer, parent: i64) {
        let nearest = self
            .0
            .iter()
            .rev()
            .take_while(|place| place.number == number)
            .find(|place| place.exit > layer.enter);
        if nearest.is_none_or(|place| place.parent != parent) {
            self.0.push(Place {
                number,
                enter: layer.enter,
                exit: layer.exit,
                parent,
            });
        }
    }

    /// A directory does not exist in a layer any more.
    pub(super) fn forget(&mut self, number: i64, layer: &Layer) {
        if self.0.last().is_some_and(|place| place.number == number) {
            self.put(number, layer, 0);
        }
    }

    /// The parent of a directory as a layer sees it; 0 if there is none.
    fn parent(&self, number: i64, enter: u32) -> i64 {
        let from = self.0.partition_point(|place| place.number < number);
        self.0[from..]
            .iter()
            .take_while(|place| place.number == number && place.enter <= enter)
            .filter(|place| place.exit > enter)
            .last()
            .map_or(0, |place| place.parent)
    }

    pub(super) fn look_for_loops(&self, layers: &Layers, report: &mut CheckReport) {
        let mut moved: BTreeMap<u32, Vec<i64>> = BTreeMap::new();
        for place in self.0.iter().filter(|place| place.parent != 0) {
            moved.entry(place.enter).or_default().push(place.number);
        }
        for (enter, numbers) in moved {
            let mut seen = HashSet::new();
            for start in numbers {
                let mut way = HashSet::new();
                let mut at = start;
                while at != 0 && ino(at) != Ino::ROOT && !seen.contains(&at) {
                    if !way.insert(at) {
                        report.found(Problem::DirectoryLoop {
                            layer: layers.at(enter).id,
                            ino: ino(at),
                        });
                        break;
                    }
                    at = self.parent(at, enter);
                }
                seen.extend(way);
            }
        }
    }
}
