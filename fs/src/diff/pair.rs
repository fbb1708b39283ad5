//! Which file of one state is which of the other. Pure.
//!
//! An inode keeps its number, so a rename is one inode with two places. What came to a place where
//! something else went away (editors write a new file and rename it over the old one) counts as a
//! change of the file at that place. A place is a name in a directory, or else a path: in a
//! directory that was renamed, paths differ and places do not.

use std::collections::{HashMap, HashSet, VecDeque};

use super::side::{File, Known, Place, under};
use crate::change::Name;
use crate::id::Ino;

/// A file at a place.
#[derive(Clone, Debug)]
pub(super) struct Named {
    pub(super) file: File,
    pub(super) parent: Ino,
    pub(super) name: Name,
    pub(super) path: Vec<u8>,
}

impl Named {
    fn new(known: &Known, place: &Place) -> Self {
        Self {
            file: known.file.clone(),
            parent: place.parent,
            name: place.name.clone(),
            path: place.path.clone(),
        }
    }

    fn key(&self) -> (Ino, Name) {
        (self.parent, self.name.clone())
    }
}

/// A file on both sides, or on one.
#[derive(Clone, Debug, Default)]
pub(super) struct Pair {
    pub(super) old: Option<Named>,
    pub(super) new: Option<Named>,
    /// It has another place now.
    pub(super) moved: bool,
    /// Found to have the same attributes.
    pub(super) same_attributes: bool,
}

impl Pair {
    fn of(old: Named, new: Named, moved: bool) -> Self {
        Self {
            old: Some(old),
            new: Some(new),
            moved,
            same_attributes: true,
        }
    }

    /// Whether one of its paths is one of these, or lies under one. No path means all.
    pub(super) fn concerns(&self, paths: &[Vec<u8>]) -> bool {
        let sides = [&self.old, &self.new];
        sides
            .into_iter()
            .flatten()
            .any(|named| under(&named.path, paths))
    }
}

/// Names that an inode has on both sides.
pub(super) fn each_kept((a, b): (&Known, &Known), of: impl Fn(Ino) -> bool) -> Vec<Pair> {
    let kept = a.places.iter().filter_map(|old| {
        let same = |new: &&Place| new.parent == old.parent && new.name == old.name;
        let new = b.places.iter().find(same)?;
        of(old.parent).then(|| Pair::of(Named::new(a, old), Named::new(b, new), false))
    });
    kept.collect()
}

/// Pairs the inodes that have a version between the two states.
pub(super) fn pairs(inodes: Vec<(Option<Known>, Option<Known>)>) -> Vec<Pair> {
    let mut done = Vec::new();
    let (mut moved, mut gone, mut come) = (Vec::new(), Vec::new(), Vec::new());
    for (old, new) in inodes {
        let (mut from, mut to) = (names(old.as_ref()), names(new.as_ref()));
        if let (Some(old), Some(new)) = (&old, &new) {
            let kept = each_kept((old, new), |_| true);
            let keys = kept.iter().filter_map(|pair| pair.old.as_ref());
            let keys: HashSet<(Ino, Name)> = keys.map(Named::key).collect();
            done.extend(kept);
            from.retain(|named| !keys.contains(&named.key()));
            to.retain(|named| !keys.contains(&named.key()));
            let both = from.len().min(to.len());
            moved.extend(from.drain(..both).zip(to.drain(..both)));
        }
        gone.extend(from);
        come.extend(to);
    }
    let (moved, gone) = replaced(moved, gone, &mut done);
    let gone = same_place(gone, &mut come, &mut done);
    let gone = same_inode(gone, &mut come, &mut done);
    let one_sided = |old, new| Pair {
        old,
        new,
        ..Pair::default()
    };
    done.extend(moved.into_iter().map(|(a, b)| Pair::of(a, b, true)));
    done.extend(gone.into_iter().map(|old| one_sided(Some(old), None)));
    done.extend(come.into_iter().map(|new| one_sided(None, Some(new))));
    done
}

fn names(known: Option<&Known>) -> Vec<Named> {
    let places = |known: &Known| known.places.iter().map(|p| Named::new(known, p)).collect();
    known.map(places).unwrap_or_default()
}

type Moves = Vec<(Named, Named)>;

/// A file that was renamed over another: the other is changed there, and the first is gone from its
/// old place. That may be where yet another was renamed to, and so on. A directory that was put in
/// the place of an empty one stays renamed.
fn replaced(moves: Moves, gone: Vec<Named>, done: &mut Vec<Pair>) -> (Moves, Vec<Named>) {
    let mut moves: Vec<Option<(Named, Named)>> = moves.into_iter().map(Some).collect();
    let mut by_key = HashMap::new();
    let mut by_path = HashMap::new();
    for (at, (_, new)) in moves.iter().flatten().enumerate() {
        by_key.insert(new.key(), at);
        by_path.insert(new.path.clone(), at);
    }
    let mut queue = VecDeque::from(gone);
    let mut stay_gone = Vec::new();
    while let Some(old) = queue.pop_front() {
        let at = by_key.get(&old.key()).or_else(|| by_path.get(&old.path));
        let slot = at.map(|&at| &mut moves[at]);
        let move_here = slot.as_ref().and_then(|slot| slot.as_ref());
        let by_directory = move_here.map(|(_, new)| new.file.is_directory());
        match (by_directory, slot.and_then(Option::take)) {
            (Some(false), Some((left, new))) => {
                done.push(Pair::of(old, new, false));
                queue.push_back(left);
            }
            (Some(true), Some((left, new))) => {
                let also_directory = old.file.is_directory();
                done.push(Pair::of(left, new, true));
                if !also_directory {
                    stay_gone.push(old);
                }
            }
            _ => stay_gone.push(old),
        }
    }
    (moves.into_iter().flatten().collect(), stay_gone)
}

/// What went and what came at one place is one file that was changed. Returns what is still gone.
fn same_place(gone: Vec<Named>, come: &mut Vec<Named>, done: &mut Vec<Pair>) -> Vec<Named> {
    fn join<K: std::hash::Hash + Eq>(
        gone: Vec<Named>,
        come: &mut Vec<Named>,
        done: &mut Vec<Pair>,
        key: impl Fn(&Named) -> K,
    ) -> Vec<Named> {
        let mut by_key: HashMap<K, Named> = std::mem::take(come)
            .into_iter()
            .map(|new| (key(&new), new))
            .collect();
        let mut left = Vec::new();
        for old in gone {
            match by_key.remove(&key(&old)) {
                Some(new) => done.push(Pair::of(old, new, false)),
                None => left.push(old),
            }
        }
        come.extend(by_key.into_values());
        left
    }
    let left = join(gone, come, done, Named::key);
    join(left, come, done, |named| named.path.clone())
}

/// What lost the place that it was paired with, and has gone to yet another as well.
fn same_inode(gone: Vec<Named>, come: &mut Vec<Named>, done: &mut Vec<Pair>) -> Vec<Named> {
    let (mut left, mut by_ino) = (Vec::new(), HashMap::<Ino, Vec<Named>>::new());
    for new in std::mem::take(come) {
        by_ino.entry(new.file.ino).or_default().push(new);
    }
    for old in gone {
        match by_ino.get_mut(&old.file.ino).and_then(Vec::pop) {
            Some(new) => done.push(Pair::of(old, new, true)),
            None => left.push(old),
        }
    }
    come.extend(by_ino.into_values().flatten());
    left
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attr::{Attr, FileKind, Timestamp};
    use crate::change::{ContentKind, InodeRow};
    use crate::id::LayerId;

    /// An inode with names `(directory, path)`.
    fn known(ino: u64, kind: FileKind, places: &[(u64, &str)]) -> Option<Known> {
        let now = Timestamp { secs: 1, nanos: 0 };
        let attr = Attr {
            kind,
            perm: 0o644,
            uid: 0,
            gid: 0,
            nlink: 1,
            rdev: 0,
            size: 0,
            blocks: 0,
            atime: now,
            mtime: now,
            ctime: now,
            btime: now,
        };
        let row = InodeRow {
            attr,
            born: LayerId(1),
            parent: Ino(0),
            content: ContentKind::Empty,
            has_xattr: false,
        };
        let place = |&(parent, path): &(u64, &str)| Place {
            parent: Ino(parent),
            name: Arc::from(path.rsplit('/').next().unwrap().as_bytes()),
            path: path.into(),
        };
        Some(Known {
            file: File {
                ino: Ino(ino),
                at: LayerId(1),
                wrote: LayerId(1),
                row,
            },
            places: places.iter().map(place).collect(),
        })
    }

    fn file(ino: u64, places: &[(u64, &str)]) -> Option<Known> {
        known(ino, FileKind::File, places)
    }

    fn directory(ino: u64, path: &str) -> Option<Known> {
        known(ino, FileKind::Directory, &[(1, path)])
    }

    /// Each pair as `old>new`, a rename as `old=>new`, sorted.
    fn shown(inodes: Vec<(Option<Known>, Option<Known>)>) -> Vec<String> {
        let path = |named: &Option<Named>| {
            let path = named.as_ref().map(|named| named.path.clone());
            String::from_utf8(path.unwrap_or_default()).unwrap()
        };
        let all = pairs(inodes);
        let mut all: Vec<String> = all
            .iter()
            .map(|pair| {
                let arrow = if pair.moved { "=>" } else { ">" };
                format!("{}{arrow}{}", path(&pair.old), path(&pair.new))
            })
            .collect();
        all.sort();
        all
    }

    #[test]
    fn a_file_renamed_over_another_changes_that_one() {
        let new_file_over = vec![(file(20, &[(1, "f")]), None), (None, file(21, &[(1, "f")]))];
        assert_eq!(shown(new_file_over), ["f>f"]);
        let old_file_over = vec![
            (file(20, &[(1, "f")]), None),
            (file(21, &[(1, "a")]), file(21, &[(1, "f")])),
        ];
        assert_eq!(shown(old_file_over), ["a>", "f>f"]);
    }

    #[test]
    fn a_file_with_a_second_new_name_is_renamed_to_the_one_that_was_free() {
        let inodes = vec![
            (file(20, &[(1, "a")]), None),
            (file(21, &[(1, "c")]), file(21, &[(1, "a"), (1, "b")])),
        ];
        assert_eq!(shown(inodes), ["a>a", "c=>b"]);
    }

    #[test]
    fn rotated_logs_are_changed_logs() {
        let rotated = vec![
            (file(20, &[(1, "log.2")]), None),
            (file(21, &[(1, "log.1")]), file(21, &[(1, "log.2")])),
            (file(22, &[(1, "log")]), file(22, &[(1, "log.1")])),
            (None, file(23, &[(1, "log")])),
        ];
        assert_eq!(shown(rotated), ["log.1>log.1", "log.2>log.2", "log>log"]);
    }

    #[test]
    fn two_files_that_were_exchanged_are_two_renames() {
        let exchanged = vec![
            (file(20, &[(1, "a")]), file(20, &[(1, "b")])),
            (file(21, &[(1, "b")]), file(21, &[(1, "a")])),
        ];
        assert_eq!(shown(exchanged), ["a=>b", "b=>a"]);
    }

    #[test]
    fn names_of_a_hard_link_come_go_and_move_by_themselves() {
        let one_more = vec![(file(20, &[(1, "a")]), file(20, &[(1, "a"), (1, "b")]))];
        assert_eq!(shown(one_more), [">b", "a>a"]);
        let moved = vec![(
            file(20, &[(1, "a"), (1, "b")]),
            file(20, &[(1, "a"), (1, "c")]),
        )];
        assert_eq!(shown(moved), ["a>a", "b=>c"]);
    }

    #[test]
    fn in_a_renamed_directory_places_count_and_not_paths() {
        let inodes = vec![
            (directory(5, "d"), directory(5, "e")),
            (file(20, &[(5, "d/kept")]), file(20, &[(5, "e/kept")])),
            (file(21, &[(5, "d/saved")]), None),
            (None, file(22, &[(5, "e/saved")])),
        ];
        assert_eq!(shown(inodes), ["d/kept>e/kept", "d/saved>e/saved", "d=>e"]);
        let over_an_empty_one = vec![
            (directory(5, "d"), directory(5, "e")),
            (directory(6, "e"), None),
        ];
        assert_eq!(shown(over_an_empty_one), ["d=>e"]);
        let over_a_file = vec![
            (directory(5, "d"), directory(5, "e")),
            (file(20, &[(1, "e")]), None),
        ];
        assert_eq!(shown(over_a_file), ["d=>e", "e>"]);
    }

    #[test]
    fn a_directory_made_anew_is_compared_by_paths() {
        let inodes = vec![
            (directory(5, "d"), None),
            (None, directory(6, "d")),
            (file(20, &[(5, "d/f")]), None),
            (None, file(21, &[(6, "d/f")])),
        ];
        assert_eq!(shown(inodes), ["d/f>d/f", "d>d"]);
    }

    #[test]
    fn paths_are_filtered_by_whole_names() {
        let pair = Pair {
            old: Some(names(file(20, &[(1, "ab/c")]).as_ref()).remove(0)),
            ..Pair::default()
        };
        let concerns = |paths: &[&str]| {
            let paths: Vec<Vec<u8>> = paths.iter().map(|path| path.as_bytes().to_vec()).collect();
            pair.concerns(&paths)
        };
        assert!(concerns(&[]) && concerns(&["ab"]) && concerns(&["x", "ab/c"]) && concerns(&[""]));
        assert!(!concerns(&["a"]) && !concerns(&["ab/c/d"]) && !concerns(&["ab/"]));
    }
}
