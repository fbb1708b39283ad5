//! Whether a difference that the engine tells of is the one between two states of the model.
//!
//! A place is a name in a directory: `(directory's inode, name)`. Everything on both sides must be
//! explained once: by an entry, or by being the same file at the same place.

use std::collections::{BTreeMap, BTreeSet};

use floe_fs::attr::FileKind;
use floe_fs::{DiffEntry, FileChange};

use super::tree::{Body, ROOT, State};
use super::{Outcome, ensure};

type Key = (u64, Vec<u8>);

/// Everything that has a name in a state.
struct Side<'a> {
    state: &'a State,
    by_path: BTreeMap<Vec<u8>, (Key, u64)>,
    by_key: BTreeMap<Key, (Vec<u8>, u64)>,
    by_ino: BTreeMap<u64, Vec<(Key, Vec<u8>)>>,
}

impl<'a> Side<'a> {
    fn new(state: &'a State) -> Self {
        let mut side = Self {
            state,
            by_path: BTreeMap::new(),
            by_key: BTreeMap::new(),
            by_ino: BTreeMap::new(),
        };
        side.add((ROOT, Vec::new()), b".".to_vec(), ROOT);
        let mut waiting = vec![(ROOT, Vec::new())];
        while let Some((directory, path)) = waiting.pop() {
            for (name, named) in state.entries(directory) {
                let path = match path.len() {
                    0 => name.clone(),
                    _ => [&path[..], b"/", name].concat(),
                };
                side.add((directory, name.clone()), path.clone(), named.ino);
                if state.is_directory(named.ino) {
                    waiting.push((named.ino, path));
                }
            }
        }
        for places in side.by_ino.values_mut() {
            places.sort_by(|a, b| a.1.cmp(&b.1));
        }
        side
    }

    fn add(&mut self, key: Key, path: Vec<u8>, ino: u64) {
        self.by_path.insert(path.clone(), (key.clone(), ino));
        self.by_key.insert(key.clone(), (path.clone(), ino));
        self.by_ino.entry(ino).or_default().push((key, path));
    }

    fn at(&self, path: &[u8]) -> Result<&(Key, u64), String> {
        let found = self.by_path.get(path);
        found.ok_or_else(|| format!("there is no {}", path.escape_ascii()))
    }
}

/// What differs between two nodes: kind, contents, attributes.
fn differs(a: &Side<'_>, old: u64, b: &Side<'_>, new: u64) -> (bool, bool, bool) {
    let (a, b) = (a.state.node(old), b.state.node(new));
    let kind = a.kind != b.kind;
    let contents = match (&a.body, &b.body) {
        (Body::File(a), Body::File(b)) => {
            let pages: BTreeSet<u64> = a.data().chain(b.data()).map(|page| page.start).collect();
            a.size != b.size || pages.iter().any(|&at| a.read(at, 4096) != b.read(at, 4096))
        }
        (Body::Symlink(a), Body::Symlink(b)) => a != b,
        _ => false,
    };
    let attributes =
        (a.perm, a.uid, a.gid, a.rdev, &a.xattrs) != (b.perm, b.uid, b.gid, b.rdev, &b.xattrs);
    let time = a.mtime != b.mtime && a.kind != FileKind::Directory;
    let metadata = !kind && (attributes || (time && !contents));
    (kind, contents || kind, metadata)
}

/// What was explained of a side.
#[derive(Default)]
struct Explained(BTreeSet<Key>);

impl Explained {
    fn add(&mut self, key: &Key) -> Outcome {
        let new = self.0.insert(key.clone());
        ensure!(new, "{key:?} is explained twice");
        Ok(())
    }
}

/// Checks every entry against the two states, and that none is missing.
pub fn check(from: &State, to: &State, entries: &[DiffEntry]) -> Outcome {
    let (a, b) = (Side::new(from), Side::new(to));
    let (mut left, mut right) = (Explained::default(), Explained::default());
    for entry in entries {
        one(&a, &b, entry, (&mut left, &mut right))
            .map_err(|error| format!("{entry:?}: {error}"))?;
    }
    // The rest is the same on both sides.
    for (key, (path, ino)) in &b.by_key {
        if right.0.contains(key) {
            continue;
        }
        let shown = path.escape_ascii();
        let old = a.by_key.get(key).filter(|(_, old)| old == ino);
        // A directory, or a file, that was made anew at the same path and is the same.
        let anew = || {
            let gone = a.by_path.get(path).filter(|(key, _)| !left.0.contains(key));
            gone.map(|(key, old)| (key.clone(), *old))
        };
        let place = a.by_key.get(key).map(|(_, old)| (key.clone(), *old));
        let (old_key, old) = match old {
            Some((_, old)) => (key.clone(), *old),
            None => place
                .filter(|(key, _)| !left.0.contains(key))
                .or_else(anew)
                .ok_or_else(|| format!("{shown} is new and not told of"))?,
        };
        let found = differs(&a, old, &b, *ino);
        ensure!(found == (false, false, false), "{shown} differs: {found:?}");
        left.add(&old_key)?;
    }
    for (key, (path, _)) in &a.by_key {
        // An empty directory that another was renamed over.
        let replaced = || {
            let new = b.by_key.get(key).or_else(|| {
                let found = b.by_path.get(path);
                found.and_then(|(key, _)| b.by_key.get(key))
            });
            new.is_some_and(|(_, new)| b.state.is_directory(*new))
        };
        ensure!(
            left.0.contains(key) || replaced(),
            "{} is gone and not told of",
            path.escape_ascii()
        );
    }
    Ok(())
}

fn one(
    a: &Side<'_>,
    b: &Side<'_>,
    entry: &DiffEntry,
    (left, right): (&mut Explained, &mut Explained),
) -> Outcome {
    let ino = |version: Option<floe_fs::FileVersion>| version.map(|version| version.ino.0);
    let (old, new) = (ino(entry.old), ino(entry.new));
    if entry.change == FileChange::Deleted {
        let (key, there) = a.at(&entry.path)?;
        ensure!(Some(*there) == old && new.is_none(), "it is {there}");
        let came = b
            .by_key
            .get(key)
            .filter(|(_, new)| !b.state.is_directory(*new));
        ensure!(came.is_none(), "something else is there now: {came:?}");
        return left.add(key);
    }
    let (key, there) = b.at(&entry.path)?;
    ensure!(Some(*there) == new, "it is {there}");
    right.add(key)?;
    if entry.change == FileChange::Added {
        ensure!(old.is_none(), "it was {old:?}");
        let kept = a.by_ino.get(there);
        let all_kept = kept.is_none_or(|places| {
            places.iter().all(|(key, path)| {
                b.by_key.get(key).is_some_and(|(_, ino)| ino == there)
                    || left.0.contains(key)
                    // Something else is there, and that is what is told.
                    || b.by_path.contains_key(path)
                    || b.by_key.contains_key(key)
                    || places.len() > 1
            })
        });
        ensure!(all_kept, "it was renamed");
        return Ok(());
    }
    let old = old.ok_or("nothing was there")?;
    let differs = differs(a, old, b, *there);
    let told = (entry.contents, entry.metadata);
    ensure!((differs.1, differs.2) == told, "differs: {differs:?}");
    match (&entry.from, entry.change) {
        (Some(from), FileChange::Renamed) => {
            let (old_key, was) = a.at(from)?;
            ensure!(was == there && old == *there, "it was {was}");
            ensure!(old_key != key, "it has not moved");
            let stays = b.by_key.get(old_key).is_some_and(|(_, ino)| ino == there);
            let was_here = a.by_key.get(key).is_some_and(|(_, ino)| ino == there);
            ensure!(!stays && !was_here, "another name has moved");
            left.add(old_key)
        }
        (None, change) => {
            let expected = match differs {
                (true, ..) => FileChange::TypeChanged,
                (_, true, _) => FileChange::Modified,
                (_, _, true) => FileChange::Metadata,
                _ => return Err("nothing differs".into()),
            };
            ensure!(change == expected, "expected {expected:?}");
            let at_place = a.by_key.get(key).filter(|(_, ino)| *ino == old);
            let old_key = match at_place {
                Some(_) => key,
                None => {
                    let (key, was) = a.at(&entry.path)?;
                    ensure!(*was == old, "it was {was}");
                    key
                }
            };
            left.add(old_key)
        }
        other => Err(format!("{other:?}")),
    }
}
