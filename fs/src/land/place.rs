//! Whether the names fit together: no two at one place, no directory that goes while something is
//! in it, none that comes to lie in itself.

use std::collections::{HashMap, HashSet};

use super::LandError;
use super::plan::{Key, Planner, path};
use crate::id::Ino;

/// Levels of directories that are looked at before the catalog is taken for damaged.
const DEPTH_MAX: u32 = 1 << 20;

/// Adds the conflicts of what is planned.
pub(super) fn check(planner: &mut Planner<'_>) -> Result<(), LandError> {
    let steps = &planner.plan.steps;
    let going: HashSet<Key> = steps.iter().flat_map(|step| step.remove.clone()).collect();
    let mut coming: HashMap<Key, usize> = HashMap::new();
    let mut found = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        for key in &step.add {
            if let Some(other) = coming.insert(key.clone(), at) {
                found.push((at, key.clone(), Some(other)));
            }
        }
    }
    for (key, &at) in &coming {
        let there = planner.trio.theirs.entry(key.0, &key.1)?;
        let ino = planner.plan.steps[at].ino;
        if there.is_some_and(|there| there.ino != ino) && !going.contains(key) {
            found.push((at, key.clone(), None));
        }
    }
    for (at, (parent, name), other) in found {
        let ours = planner.plan.steps[at].ours.clone();
        let known = match ours {
            Some(file) => planner.trio.ours.known(file.ino)?,
            None => None,
        };
        let shown = known.as_deref().map(path).unwrap_or_default();
        let there = planner.trio.theirs.entry(parent, &name)?;
        let theirs = match there {
            Some(there) => planner.trio.theirs.known(there.ino)?,
            None => None,
        };
        let verb = match other {
            Some(_) => "put something else there as well",
            None => "put something else there",
        };
        planner.conflict(
            shown,
            "put it there",
            verb,
            theirs.as_deref().map(|known| &known.file),
        );
    }
    emptied(planner, &going)?;
    loops(planner, &coming)
}

/// A directory goes only with everything that is in it.
fn emptied(planner: &mut Planner<'_>, going: &HashSet<Key>) -> Result<(), LandError> {
    let steps = planner.plan.steps.iter();
    let directories = steps.filter(|step| step.ours.is_none() && step.is_directory());
    let directories: Vec<Ino> = directories.map(|step| step.ino).collect();
    for directory in directories {
        for (name, entry) in planner.trio.theirs.side.entries(directory)? {
            if going.contains(&(directory, name)) {
                continue;
            }
            let known = planner.trio.theirs.known(entry.ino)?;
            let shown = known.as_deref().map(path).unwrap_or_default();
            let file = known.as_deref().map(|known| &known.file);
            planner.conflict(shown, "removed the directory", "has it there", file);
        }
    }
    Ok(())
}

/// Looks for directories that would lie in themselves.
fn loops(planner: &mut Planner<'_>, coming: &HashMap<Key, usize>) -> Result<(), LandError> {
    let mut parents: HashMap<Ino, Ino> = HashMap::new();
    for ((parent, _), &at) in coming {
        let step = &planner.plan.steps[at];
        if step.is_directory() {
            parents.insert(step.ino, *parent);
        }
    }
    let moved: Vec<Ino> = parents.keys().copied().collect();
    for start in moved {
        let (mut at, mut left) = (parents[&start], DEPTH_MAX);
        while at != Ino::ROOT && at != start && left > 0 {
            left -= 1;
            at = match parents.get(&at) {
                Some(parent) => *parent,
                None => match planner.trio.theirs.known(at)? {
                    Some(known) => known.file.row.parent,
                    None => break,
                },
            };
        }
        if at == start {
            let known = planner.trio.theirs.known(start)?;
            let shown = known.as_deref().map(path).unwrap_or_default();
            let file = known.as_deref().map(|known| &known.file);
            planner.conflict(
                shown,
                "moved it into a directory",
                "moved that into it",
                file,
            );
        }
    }
    Ok(())
}
