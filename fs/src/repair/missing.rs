//! Missing files of objects: whether they are lost, or rather all somewhere else. Pure.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::check::Problem;
use crate::contents::FAN_OUT;
use crate::id::ObjectId;

/// Files of this many objects may be missing before it is asked whether they are somewhere else.
pub(super) const MANY: usize = 16;

/// Objects whose files are missing.
pub(super) fn missing_files(problems: &[Problem]) -> Vec<ObjectId> {
    let missing = problems.iter().filter_map(|problem| match *problem {
        Problem::ObjectFileMissing { object } => Some(object),
        _ => None,
    });
    missing.collect()
}

/// Directories of objects whose files are rather somewhere else (a disk that is not mounted, a copy
/// that is not finished) than lost: all of a directory is missing, or more than half of everything.
pub(super) fn misplaced(missing: &[ObjectId], objects: &HashMap<u64, u64>) -> BTreeSet<u64> {
    if missing.len() <= MANY {
        return BTreeSet::new();
    }
    let mut by_directory: BTreeMap<u64, u64> = BTreeMap::new();
    for object in missing {
        *by_directory.entry(object.0 / FAN_OUT).or_default() += 1;
    }
    let most = missing.len() as u64 > objects.values().sum::<u64>() / 2;
    by_directory
        .retain(|directory, count| most || objects.get(directory).is_none_or(|&all| *count >= all));
    by_directory.into_keys().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_that_is_gone_or_most_of_all_is_misplaced_and_a_few_are_lost() {
        let of = |missing: std::ops::Range<u64>, objects: &[(u64, u64)]| {
            let missing: Vec<ObjectId> = missing.map(ObjectId).collect();
            let found = misplaced(&missing, &objects.iter().copied().collect());
            found.into_iter().collect::<Vec<u64>>()
        };
        let all = [(0, 4095), (1, 20), (2, 4096)];
        // A few, or many of very many.
        assert!(of(1..17, &[(0, 16)]).is_empty());
        assert!(of(1..1000, &all).is_empty());
        assert_eq!(of(FAN_OUT..FAN_OUT + 20, &all), [1]);
        assert!(of(FAN_OUT..FAN_OUT + 19, &all).is_empty());
        assert_eq!(of(1..FAN_OUT + 10, &[(0, 4095), (1, 20)]), [0, 1]);
    }
}
