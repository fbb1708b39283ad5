//! A plan as the journal has it: steps in the order in which they are done. docs/format.md,
//! section 8.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::guard::Guard;
use super::meta::Meta;
use super::{HostChange, HostLandError, NewKind, NewThing};
use crate::attr::FileKind;

/// The plan's format.
pub(super) const VERSION: u32 = 1;

/// Bytes that are mostly text: a JSON string where they are UTF-8.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(from = "Written", into = "Written")]
pub(super) struct Bytes(pub(super) Vec<u8>);

#[derive(Serialize, Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Raw { bytes: Vec<u8> },
}

impl From<Written> for Bytes {
    fn from(written: Written) -> Self {
        Self(match written {
            Written::Text(text) => text.into_bytes(),
            Written::Raw { bytes } => bytes,
        })
    }
}

impl From<Bytes> for Written {
    fn from(bytes: Bytes) -> Self {
        match String::from_utf8(bytes.0) {
            Ok(text) => Self::Text(text),
            Err(error) => Self::Raw {
                bytes: error.into_bytes(),
            },
        }
    }
}

/// The whole plan.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Plan {
    pub(super) version: u32,
    pub(super) layer: Option<u64>,
    pub(super) from: Option<u64>,
    pub(super) kind: Kind,
    pub(super) undoes: Option<u64>,
    pub(super) parts: Vec<Part>,
}

/// How much a landing brought.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Kind {
    /// Everything that differed.
    Whole,
    /// Some paths.
    Part,
    /// What was there before another.
    Undo,
    /// Nothing: it went back, which files that were moved away and back show.
    Back,
}

/// What is done below one root.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Part {
    pub(super) root: Bytes,
    pub(super) seen: Guard,
    pub(super) staging: String,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) takes: Vec<Take>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) swaps: Vec<Swap>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) puts: Vec<Put>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) metas: Vec<SetMeta>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) landed: Vec<Landed>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub(super) moved: Vec<Moved>,
}

/// Renames what is at a path into the staging directory.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Take {
    pub(super) path: Bytes,
    pub(super) to: String,
    pub(super) was: Guard,
    /// It is put elsewhere.
    pub(super) stays: bool,
}

/// Exchanges what is at a path and something staged.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Swap {
    pub(super) path: Bytes,
    pub(super) with: String,
    pub(super) was: Guard,
    pub(super) is: Option<Guard>,
}

/// Renames something staged to a path where nothing is.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Put {
    pub(super) path: Bytes,
    pub(super) from: String,
    pub(super) is: Option<Guard>,
}

/// Sets the metadata of what is at a path after all the other steps.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct SetMeta {
    pub(super) path: Bytes,
    pub(super) from: Bytes,
    pub(super) is: Option<Guard>,
    pub(super) before: Option<Meta>,
    pub(super) after: Meta,
}

/// What a landing left at a path.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Landed {
    pub(super) path: Bytes,
    pub(super) is: Option<Guard>,
}

/// From where to where a landing moved a directory with what is in it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Moved {
    pub(super) from: Bytes,
    pub(super) to: Bytes,
}

/// Where something is after a landing's moves, all of which were made at once; nothing if it stayed.
pub(super) fn moved_to(moves: &[Moved], path: &[u8]) -> Option<Vec<u8>> {
    let rest = |moved: &Moved| {
        let rest = path.strip_prefix(&moved.from.0[..])?;
        (rest.first() == Some(&b'/')).then_some(rest.len())
    };
    let nearest = moves
        .iter()
        .filter_map(|moved| Some((rest(moved)?, moved)))
        .min_by_key(|(rest, _)| *rest);
    let (rest, moved) = nearest?;
    Some([&moved.to.0[..], &path[path.len() - rest..]].concat())
}

impl Part {
    /// The directories that were moved.
    pub(super) fn moves(&self) -> Vec<Moved> {
        let mut moves = self.moved.clone();
        let directories = self.takes.iter().filter(|take| take.was.is_directory());
        for take in directories.filter(|take| take.stays) {
            let put = self.puts.iter().find(|put| put.from == take.to);
            moves.extend(put.map(|put| Moved {
                from: take.path.clone(),
                to: put.path.clone(),
            }));
        }
        moves
    }

    /// What is at each path that was changed, as far as it is known.
    pub(super) fn after(&self) -> Vec<Landed> {
        let landed = |path: &Bytes, is: Option<Guard>| Landed {
            path: path.clone(),
            is,
        };
        let gone = self.takes.iter().map(|take| landed(&take.path, None));
        let swapped = self.swaps.iter().map(|swap| landed(&swap.path, swap.is));
        let put = self.puts.iter().map(|put| landed(&put.path, put.is));
        let meta = self.metas.iter().map(|meta| landed(&meta.path, meta.is));
        let remembered = self.landed.iter().cloned();
        // Later ones say what is there in the end.
        remembered
            .chain(gone)
            .chain(swapped)
            .chain(put)
            .chain(meta)
            .collect()
    }

    /// What was taken away for good, by the names it has while it is staged.
    pub(super) fn originals(&self) -> impl Iterator<Item = &str> {
        let taken = self.takes.iter().filter(|take| !take.stays);
        let taken = taken.map(|take| take.to.as_str());
        taken.chain(self.swaps.iter().map(|swap| swap.with.as_str()))
    }
}

/// Something to be made in the staging directory.
pub(super) struct Staged {
    pub(super) name: String,
    pub(super) path: Vec<u8>,
    pub(super) new: NewThing,
}

/// The steps of one part, and what they need.
#[derive(Default)]
pub(super) struct Steps {
    pub(super) takes: Vec<Take>,
    pub(super) swaps: Vec<Swap>,
    pub(super) puts: Vec<Put>,
    pub(super) metas: Vec<SetMeta>,
    pub(super) staged: Vec<Staged>,
    /// What needs no step, as it is there already.
    pub(super) already: Vec<Landed>,
    /// By their new path, the old one of everything that is moved.
    moves: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The old paths of these.
    moved: BTreeSet<Vec<u8>>,
    /// New paths of new things.
    new: BTreeSet<Vec<u8>>,
    /// Old paths of everything that is taken or swapped.
    taken: BTreeSet<Vec<u8>>,
    /// By old path, the metadata that was seen, where a guard does not tell.
    seen: BTreeMap<Vec<u8>, Meta>,
}

fn depth(path: &[u8]) -> usize {
    path.iter().filter(|&&byte| byte == b'/').count()
}

pub(super) fn parent(path: &[u8]) -> Option<&[u8]> {
    path.iter()
        .rposition(|&byte| byte == b'/')
        .map(|at| &path[..at])
}

fn ancestors(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::successors(parent(path), |path| parent(path))
}

pub(super) fn joined(dir: &[u8], name: &[u8]) -> Vec<u8> {
    if dir.is_empty() {
        return name.to_vec();
    }
    [dir, b"/", name].concat()
}

impl Steps {
    /// Turns changes into steps.
    ///
    /// # Errors
    /// [`HostLandError::Plan`] when they contradict one another.
    pub(super) fn new(changes: &[HostChange]) -> Result<Self, HostLandError> {
        let mut made = Self::default();
        let mut removes: BTreeMap<&[u8], Guard> = BTreeMap::new();
        let mut puts: BTreeMap<&[u8], &NewThing> = BTreeMap::new();
        let twice = |path: &[u8]| HostLandError::Plan {
            what: format!("'{}' is changed twice", String::from_utf8_lossy(path)),
        };
        for change in changes {
            let is_new = match change {
                HostChange::Remove { path, was, seen } => {
                    let seen = seen.iter().map(|seen| (path.clone(), seen.clone()));
                    made.seen.extend(seen);
                    removes.insert(path, *was);
                    made.taken.insert(path.clone())
                }
                HostChange::Put { path, new } => {
                    puts.insert(path, new);
                    !made.moves.contains_key(path) && made.new.insert(path.clone())
                }
                HostChange::Move { from, to, .. } => {
                    made.moved.insert(from.clone());
                    !made.new.contains(to)
                        && made.moves.insert(to.clone(), from.clone()).is_none()
                        && made.taken.insert(from.clone())
                }
                HostChange::SetMeta { .. } => true,
            };
            if !is_new {
                let (HostChange::Remove { path, .. }
                | HostChange::Put { path, .. }
                | HostChange::Move { to: path, .. }
                | HostChange::SetMeta { path, .. }) = change;
                return Err(twice(path));
            }
        }
        made.stage(&puts);
        made.take(&removes, changes);
        made.set_meta(&puts, changes)?;
        made.takes
            .sort_by(|a, b| (depth(&b.path.0), &b.path).cmp(&(depth(&a.path.0), &a.path)));
        made.puts
            .sort_by(|a, b| (depth(&a.path.0), &a.path).cmp(&(depth(&b.path.0), &b.path)));
        Ok(made)
    }

    /// New things: swapped with what is replaced in a directory that stays, else put.
    fn stage(&mut self, puts: &BTreeMap<&[u8], &NewThing>) {
        for (at, (path, new)) in puts.iter().enumerate() {
            let name = format!("n{at}");
            if !self.is_swapped(path) {
                self.puts.push(Put {
                    path: Bytes(path.to_vec()),
                    from: name.clone(),
                    is: None,
                });
            }
            self.staged.push(Staged {
                name,
                path: path.to_vec(),
                new: (*new).clone(),
            });
        }
    }

    /// Whether something at a path is replaced by something new in one step.
    fn is_swapped(&self, path: &[u8]) -> bool {
        self.taken.contains(path)
            && self.new.contains(path)
            && !self.moved.contains(path)
            && !ancestors(path).any(|dir| self.taken.contains(dir))
    }

    fn take(&mut self, removes: &BTreeMap<&[u8], Guard>, changes: &[HostChange]) {
        for (path, was) in removes {
            let path = Bytes(path.to_vec());
            if self.is_swapped(&path.0) {
                let with = self.staged_at(&path.0).map(|staged| staged.name.clone());
                self.swaps.extend(with.map(|with| Swap {
                    path,
                    with,
                    was: *was,
                    is: None,
                }));
                continue;
            }
            self.takes.push(Take {
                path,
                to: format!("o{}", self.takes.len()),
                was: *was,
                stays: false,
            });
        }
        for change in changes {
            let HostChange::Move { from, to, was } = change else {
                continue;
            };
            let token = format!("o{}", self.takes.len());
            self.takes.push(Take {
                path: Bytes(from.clone()),
                to: token.clone(),
                was: *was,
                stays: true,
            });
            self.puts.push(Put {
                path: Bytes(to.clone()),
                from: token,
                is: Some(*was),
            });
        }
    }

    /// Metadata that changes, and that of new directories, which changes while they are filled.
    fn set_meta(
        &mut self,
        puts: &BTreeMap<&[u8], &NewThing>,
        changes: &[HostChange],
    ) -> Result<(), HostLandError> {
        let mut metas = Vec::new();
        for change in changes {
            let HostChange::SetMeta {
                path,
                was,
                seen,
                meta,
            } = change
            else {
                continue;
            };
            let from = self.origin(path).filter(|_| !self.new.contains(path));
            let (Some(from), false) = (from, was.kind() == FileKind::Symlink) else {
                return Err(HostLandError::Plan {
                    what: format!("'{}' has no metadata to set", String::from_utf8_lossy(path)),
                });
            };
            let seen = seen.iter().map(|seen| (from.clone(), seen.clone()));
            self.seen.extend(seen);
            let step = SetMeta {
                path: Bytes(path.clone()),
                from: Bytes(from),
                is: Some(*was),
                before: None,
                after: meta.clone(),
            };
            metas.push(step);
        }
        for (path, new) in puts {
            if new.kind.kind() == FileKind::Directory {
                let step = SetMeta {
                    path: Bytes(path.to_vec()),
                    from: Bytes(path.to_vec()),
                    is: None,
                    before: None,
                    after: new.meta.clone(),
                };
                metas.push(step);
            }
        }
        // What is set in a directory changes nothing of it, but its mode may keep others out.
        metas.sort_by(|a, b| (depth(&b.path.0), &b.path).cmp(&(depth(&a.path.0), &a.path)));
        self.metas = metas;
        Ok(())
    }

    /// Where something is now that will be at a path; nothing inside of something new.
    pub(super) fn origin(&self, path: &[u8]) -> Option<Vec<u8>> {
        for at in std::iter::once(path).chain(ancestors(path)) {
            if let Some(from) = self.moves.get(at) {
                return Some([&from[..], &path[at.len()..]].concat());
            }
            if at.len() < path.len() && self.new.contains(at) {
                return None;
            }
        }
        Some(path.to_vec())
    }

    /// The place that something new comes to, by the way that leads there now.
    pub(super) fn place(&self, path: &[u8]) -> Option<Vec<u8>> {
        let Some(dir) = parent(path) else {
            return Some(path.to_vec());
        };
        if self.new.contains(dir) {
            return None;
        }
        let name = &path[dir.len() + 1..];
        Some(joined(&self.origin(dir)?, name))
    }

    /// What was to come to a path is there already.
    pub(super) fn not_new(&mut self, path: &[u8], found: Guard) {
        self.new.remove(path);
        self.is_already(path, found);
    }

    /// What is at a path is what it is to be.
    pub(super) fn is_already(&mut self, path: &[u8], found: Guard) {
        self.already.push(Landed {
            path: Bytes(path.to_vec()),
            is: Some(found),
        });
    }

    /// Whether something new comes to a path.
    pub(super) fn is_new(&self, path: &[u8]) -> bool {
        self.new.contains(path)
    }

    /// What does not come is not staged, but for contents that are linked to from elsewhere.
    pub(super) fn leave_out(&mut self) {
        let mut linked = BTreeSet::new();
        for staged in &self.staged {
            if let NewKind::Link { to } = &staged.new.kind
                && self.new.contains(&staged.path)
            {
                linked.insert(to.clone());
            }
        }
        let (new, staged) = (&self.new, &mut self.staged);
        staged.retain(|staged| new.contains(&staged.path) || linked.contains(&staged.path));
    }

    /// The metadata that was seen at a path, where a guard does not tell.
    pub(super) fn seen_at(&self, path: &[u8]) -> Option<&Meta> {
        self.seen.get(path)
    }

    /// Whether what is at a path now is taken away or replaced.
    pub(super) fn is_taken(&self, path: &[u8]) -> bool {
        self.taken.contains(path)
    }

    /// The new thing that comes to a path.
    pub(super) fn staged_at(&self, path: &[u8]) -> Option<&Staged> {
        let at = self
            .staged
            .binary_search_by(|staged| staged.path.as_slice().cmp(path));
        at.ok().map(|at| &self.staged[at])
    }
}
