//! What differs between what the directories of the host have and a workspace, as far as it knows:
//! they have the state that was landed last as a whole, and of single paths a later one.

use std::collections::{BTreeMap, BTreeSet};

use super::super::steps::joined;
use super::known::Known;
use crate::diff::side::under;
use crate::diff::{DiffEntry, DiffError, DiffOptions, FileChange};
use crate::id::LayerId;
use crate::store::Store;

/// What was landed by itself, by paths of the workspace.
#[derive(Default)]
pub(super) struct Partly {
    /// By the layer that they were landed of.
    paths: BTreeMap<LayerId, BTreeSet<Vec<u8>>>,
    /// From where to where something was moved, with what is in it.
    moves: Vec<(Vec<u8>, Vec<u8>)>,
}

/// What was landed by itself. `place` says where the workspace shows a root.
pub(super) fn partly<'a>(known: &Known, place: impl Fn(&[u8]) -> Option<&'a [u8]>) -> Partly {
    let shown = |root: &[u8], path: &[u8]| Some(joined(place(root)?, path));
    let mut partly = Partly::default();
    for ((root, path), layer) in &known.partly {
        if let Some(path) = shown(root, path) {
            partly.paths.entry(*layer).or_default().insert(path);
        }
    }
    let moves = known.moves.iter();
    partly.moves = moves
        .filter_map(|(root, from, to)| Some((shown(root, from)?, shown(root, to)?)))
        .collect();
    partly
}

impl Partly {
    /// Whether something has come from one path to another with a directory that it is in.
    fn went_along(&self, from: &[u8], to: &[u8]) -> bool {
        self.moves.iter().any(|(old, new)| {
            let rest = from.strip_prefix(&old[..]);
            rest.is_some_and(|rest| {
                rest.first() == Some(&b'/') && to.strip_prefix(&new[..]) == Some(rest)
            })
        })
    }
}

/// Every difference, by path.
pub(super) fn differences(
    store: &Store,
    since: LayerId,
    partly: &Partly,
    layer: LayerId,
    only: &[Vec<u8>],
) -> Result<Vec<DiffEntry>, DiffError> {
    let options = |paths: Vec<Vec<u8>>| DiffOptions {
        paths,
        each_file: true,
    };
    let all = store.diff_layers(since, layer, &options(only.to_vec()))?;
    if partly.paths.is_empty() {
        return Ok(all);
    }
    let covered = |path: &[u8]| partly.paths.values().any(|paths| paths.contains(path));
    let mut found: BTreeMap<Vec<u8>, DiffEntry> = BTreeMap::new();
    for (of, paths) in &partly.paths {
        let wanted = paths.iter().filter(|path| under(path, only));
        let wanted: Vec<_> = wanted.cloned().collect();
        if wanted.is_empty() {
            continue;
        }
        for entry in store.diff_layers(*of, layer, &options(wanted))? {
            let from = entry.from.as_ref();
            if paths.contains(&entry.path) || from.is_some_and(|from| paths.contains(from)) {
                found.entry(entry.path.clone()).or_insert(entry);
            }
        }
    }
    for entry in all {
        let from_covered = entry.from.as_ref().is_some_and(|from| covered(from));
        match (covered(&entry.path), from_covered) {
            (false, false) => {
                let came = entry.from.as_ref();
                let entry = match came.filter(|from| partly.went_along(from, &entry.path)) {
                    Some(_) if !entry.contents && !entry.metadata => continue,
                    Some(_) => DiffEntry {
                        from: None,
                        change: if entry.contents {
                            FileChange::Modified
                        } else {
                            FileChange::Metadata
                        },
                        ..entry
                    },
                    None => entry,
                };
                found.entry(entry.path.clone()).or_insert(entry);
            }
            // It has left the place that it had, and where it is was landed by itself.
            (true, false) => {
                if let Some(from) = entry.from {
                    let gone = DiffEntry {
                        path: from.clone(),
                        from: None,
                        change: FileChange::Deleted,
                        contents: false,
                        metadata: false,
                        old: entry.old,
                        new: None,
                    };
                    found.entry(from).or_insert(gone);
                }
            }
            // It is new where it is, and the place that it had was landed by itself.
            (false, true) => {
                let new = DiffEntry {
                    from: None,
                    change: FileChange::Added,
                    contents: false,
                    metadata: false,
                    old: None,
                    ..entry
                };
                found.entry(new.path.clone()).or_insert(new);
            }
            (true, true) => {}
        }
    }
    Ok(found.into_values().collect())
}
