//! What becomes of each file that ours changed: names, contents and attributes, each by themselves.

use std::collections::{BTreeSet, HashMap};
use std::rc::Rc;
use std::sync::Arc;

use super::merge::{self, XattrChanges};
use super::place;
use super::trio::{Id, Trio};
use super::{LandConflict, LandEntry, LandError};
use crate::attr::Attr;
use crate::catalog::Queries;
use crate::change::Name;
use crate::contents::Objects;
use crate::core::Core;
use crate::diff::FileChange;
use crate::diff::contents::{Contents, same_bytes};
use crate::diff::entry::same_attributes;
use crate::diff::side::{File, Known, under};
use crate::id::{Ino, LayerId};
use crate::layers::Lineage;

/// A name in a directory of theirs, or in one that is landed.
pub(super) type Key = (Ino, Name);

/// Where the bytes come from.
#[derive(Clone, Debug)]
pub(crate) enum Bytes {
    /// Ours, of this size and change time.
    Ours(Contents),
    /// Merged text.
    Merged(Arc<[u8]>),
}

/// What is to be done to one file.
#[derive(Clone, Debug)]
pub(crate) struct Step {
    /// Its inode where it lands.
    pub(crate) ino: Ino,
    /// How it is in theirs; none if it is new there.
    pub(crate) theirs: Option<File>,
    /// How it is in ours; none if it goes.
    pub(crate) ours: Option<File>,
    /// Names that go.
    pub(crate) remove: BTreeSet<Key>,
    /// Names that come.
    pub(crate) add: BTreeSet<Key>,
    /// New contents.
    pub(crate) bytes: Option<Bytes>,
    /// New attributes.
    pub(crate) attr: Option<Attr>,
    /// Extended attributes to set and remove.
    pub(crate) xattrs: XattrChanges,
}

impl Step {
    pub(super) fn is_directory(&self) -> bool {
        let file = self.ours.as_ref().or(self.theirs.as_ref());
        file.is_some_and(File::is_directory)
    }
}

/// A plan.
#[derive(Debug, Default)]
pub(crate) struct Plan {
    pub(crate) steps: Vec<Step>,
    pub(crate) entries: Vec<LandEntry>,
    pub(crate) conflicts: Vec<LandConflict>,
}

impl Plan {
    /// How much it is, in words.
    pub(crate) fn said(&self) -> String {
        let count = self.entries.len();
        format!("{count} {}", if count == 1 { "file" } else { "files" })
    }
}

/// A landing that theirs had before: layer and time, and who landed.
#[derive(Clone, Debug)]
pub(crate) struct Earlier {
    pub(crate) layer: LayerId,
    pub(crate) at: i64,
    pub(crate) workspace: String,
}

/// What to plan from.
pub(crate) struct Input<'a> {
    pub(crate) core: &'a Core,
    pub(crate) queries: Queries<'a>,
    /// Base, ours, theirs.
    pub(crate) lineages: [Lineage<'a>; 3],
    /// Inodes of which there is a version between base and ours.
    pub(crate) changed: &'a BTreeSet<Ino>,
    pub(crate) only: &'a [Vec<u8>],
    pub(crate) no_merge: bool,
    pub(crate) earlier: &'a [Earlier],
}

/// Plans a landing.
pub(crate) fn plan(input: &Input<'_>) -> Result<Plan, LandError> {
    let mut planner = Planner {
        input,
        trio: Trio::new(input.queries, input.lineages),
        fresh: HashMap::new(),
        plan: Plan::default(),
    };
    let ids = planner.ids()?;
    for id in ids {
        planner.file(id)?;
    }
    place::check(&mut planner)?;
    let Plan {
        entries, conflicts, ..
    } = &mut planner.plan;
    entries.sort_by(|a, b| (&a.path, &a.from).cmp(&(&b.path, &b.from)));
    conflicts.sort_by(|a, b| a.path.cmp(&b.path));
    conflicts.dedup();
    Ok(planner.plan)
}

pub(super) struct Planner<'a> {
    pub(super) input: &'a Input<'a>,
    pub(super) trio: Trio<'a>,
    /// Numbers of files that are new in theirs.
    fresh: HashMap<Ino, Ino>,
    pub(super) plan: Plan,
}

/// A file in the three states.
struct Three {
    base: Option<Rc<Known>>,
    ours: Option<Rc<Known>>,
    theirs: Option<Rc<Known>>,
}

/// A file that two states have.
pub(super) type Two<'k> = (&'k Rc<Known>, &'k Rc<Known>);

/// A name, with the directory it is in.
pub(super) type Place = (Id, Name);

/// The names of ours against those of the base.
pub(super) struct Moved {
    pub(super) gone: BTreeSet<Place>,
    pub(super) come: BTreeSet<Place>,
}

impl Planner<'_> {
    pub(super) fn objects(&self) -> &Objects {
        &self.input.core.objects
    }

    /// The files to look at: what was changed, as far as it is asked for, and the directories that
    /// this lies in if they are new.
    fn ids(&mut self) -> Result<BTreeSet<Id>, LandError> {
        let mut ids = BTreeSet::new();
        for &ino in self.input.changed {
            let (base, ours) = (self.trio.base.known(ino)?, self.trio.ours.known(ino)?);
            if base.is_none() && ours.is_none() {
                continue;
            }
            let id = match base {
                Some(_) => Id::Base(ino),
                None => self.trio.id(ino)?,
            };
            let known = [base, ours].into_iter().flatten();
            let mut paths = known.flat_map(|known| {
                let paths = known.places.iter().map(|place| place.path.clone());
                paths.collect::<Vec<_>>()
            });
            if paths.any(|path| under(&path, self.input.only)) {
                ids.insert(id);
            }
        }
        let mut waiting: Vec<Id> = ids.iter().copied().collect();
        while let Some(id) = waiting.pop() {
            let Some(ino) = self.trio.of_ours(id)? else {
                continue;
            };
            let Some(known) = self.trio.ours.known(ino)? else {
                continue;
            };
            for place in &known.places {
                let parent = self.trio.id(place.parent)?;
                let new = matches!(parent, Id::New(_)) && self.trio.of_theirs(parent)?.is_none();
                if new && ids.insert(parent) {
                    waiting.push(parent);
                }
            }
        }
        Ok(ids)
    }

    /// The inode of a file where it lands; none if it is gone there.
    pub(super) fn target(&mut self, id: Id) -> Result<Option<Ino>, LandError> {
        match (self.trio.of_theirs(id)?, id) {
            (Some(ino), _) => Ok(Some(ino)),
            (None, Id::Base(_)) => Ok(None),
            (None, Id::New(ino)) => {
                if let Some(fresh) = self.fresh.get(&ino) {
                    return Ok(Some(*fresh));
                }
                // A number that was used there once is not used again.
                let used = self.input.queries.inode(ino, self.input.lineages[2])?;
                let fresh = match used {
                    None => ino,
                    Some(_) => self.input.core.numbers.ino()?,
                };
                self.fresh.insert(ino, fresh);
                Ok(Some(fresh))
            }
        }
    }

    fn file(&mut self, id: Id) -> Result<(), LandError> {
        let base = match id {
            Id::Base(ino) => self.trio.base.known(ino)?,
            Id::New(_) => None,
        };
        let ours = match self.trio.of_ours(id)? {
            Some(ino) => self.trio.ours.known(ino)?,
            None => None,
        };
        let theirs = match self.trio.of_theirs(id)? {
            Some(ino) => self.trio.theirs.known(ino)?,
            None => None,
        };
        let three = Three { base, ours, theirs };
        match (&three.base, &three.ours, &three.theirs) {
            (Some(b), Some(o), Some(t)) => self.both(b, o, t),
            (Some(b), Some(o), None) => self.gone_there(b, o),
            (Some(b), None, Some(t)) => self.gone_here(b, t),
            (None, Some(o), None) => self.new_here(id, o),
            (None, Some(o), Some(t)) => self.new_on_both(id, o, t),
            _ => Ok(()),
        }
    }

    /// The places of a file in ours, or those that it has in the base.
    pub(super) fn places(
        &mut self,
        known: &Known,
        base: bool,
    ) -> Result<BTreeSet<Place>, LandError> {
        let mut places = BTreeSet::new();
        for place in &known.places {
            let parent = if base {
                Id::Base(place.parent)
            } else {
                self.trio.id(place.parent)?
            };
            places.insert((parent, place.name.clone()));
        }
        Ok(places)
    }

    pub(super) fn moved(&mut self, base: &Known, ours: &Known) -> Result<Moved, LandError> {
        let (before, after) = (self.places(base, true)?, self.places(ours, false)?);
        Ok(Moved {
            gone: before.difference(&after).cloned().collect(),
            come: after.difference(&before).cloned().collect(),
        })
    }

    /// Places as keys where they land; none for one in a directory that is gone there.
    pub(super) fn keys(&mut self, places: &BTreeSet<Place>) -> Result<Vec<Option<Key>>, LandError> {
        let mut keys = Vec::new();
        for (parent, name) in places {
            let parent = self.target(*parent)?;
            keys.push(parent.map(|parent| (parent, name.clone())));
        }
        Ok(keys)
    }

    /// Adds the names that come. A directory that is gone there is a conflict.
    pub(super) fn add(
        &mut self,
        places: &BTreeSet<Place>,
        ours: &Known,
        verb: &str,
    ) -> Result<Option<BTreeSet<Key>>, LandError> {
        let keys = self.keys(places)?;
        if keys.iter().any(Option::is_none) {
            self.conflict(path(ours), verb, "removed the directory", None);
            return Ok(None);
        }
        Ok(Some(keys.into_iter().flatten().collect()))
    }

    pub(super) fn same_bytes(&self, which: [usize; 2], (a, b): Two<'_>) -> Result<bool, LandError> {
        let (a, b) = (&a.file, &b.file);
        if a.row.attr.kind != b.row.attr.kind {
            return Ok(false);
        }
        if !a.has_bytes() || (a.ino == b.ino && a.wrote == b.wrote) {
            return Ok(true);
        }
        let load = |at: usize, file: &File| {
            Contents::load(
                self.input.queries,
                self.input.lineages[at],
                file.ino,
                &file.row,
            )
        };
        let (a, b) = (load(which[0], a)?, load(which[1], b)?);
        Ok(same_bytes(self.objects(), &a, &b)?)
    }

    pub(super) fn xattrs(&self, at: usize, file: &File) -> Result<merge::Xattrs, LandError> {
        if !file.row.has_xattr {
            return Ok(merge::Xattrs::new());
        }
        Ok(self
            .input
            .queries
            .xattrs(file.ino, self.input.lineages[at])?)
    }

    pub(super) fn contents(&self, at: usize, file: &File) -> Result<Contents, LandError> {
        let lineage = self.input.lineages[at];
        Ok(Contents::load(
            self.input.queries,
            lineage,
            file.ino,
            &file.row,
        )?)
    }

    /// Whether attributes differ that count, but for the time of the last change.
    pub(super) fn same_attributes(
        &self,
        which: [usize; 2],
        (a, b): Two<'_>,
    ) -> Result<bool, LandError> {
        let (a, b) = (&a.file, &b.file);
        Ok(same_attributes(&a.row.attr, &b.row.attr)
            && self.xattrs(which[0], a)? == self.xattrs(which[1], b)?)
    }

    /// The landing that made a version of theirs, unless that was changed since.
    fn by(&self, theirs: &File) -> Option<String> {
        let ctime = theirs.row.attr.ctime.nanoseconds();
        let mut earlier = self.input.earlier.iter();
        let found = earlier.find(|one| one.layer == theirs.wrote && ctime <= one.at);
        found.map(|one| one.workspace.clone())
    }

    pub(super) fn conflict(
        &mut self,
        path: Vec<u8>,
        ours: &str,
        theirs: &str,
        version: Option<&File>,
    ) {
        let by = version.and_then(|file| self.by(file));
        self.plan.conflicts.push(LandConflict {
            path,
            ours: ours.to_owned(),
            theirs: theirs.to_owned(),
            by,
        });
    }

    pub(super) fn entry(
        &mut self,
        path: Vec<u8>,
        from: Option<Vec<u8>>,
        change: FileChange,
        merged: bool,
    ) {
        self.plan.entries.push(LandEntry {
            path,
            from,
            change,
            merged,
        });
    }
}

pub(super) fn step(ino: Ino, theirs: Option<&Rc<Known>>, ours: Option<&Rc<Known>>) -> Step {
    Step {
        ino,
        theirs: theirs.map(|known| known.file.clone()),
        ours: ours.map(|known| known.file.clone()),
        remove: BTreeSet::new(),
        add: BTreeSet::new(),
        bytes: None,
        attr: None,
        xattrs: XattrChanges::new(),
    }
}

pub(super) fn keys_of(known: &Known) -> BTreeSet<Key> {
    let places = known.places.iter();
    // The root has no name.
    let named = places.filter(|place| !place.name.is_empty());
    named
        .map(|place| (place.parent, place.name.clone()))
        .collect()
}

/// A path of it, the first of several.
pub(super) fn path(known: &Known) -> Vec<u8> {
    let first = known.places.first();
    first.map(|place| place.path.clone()).unwrap_or_default()
}

pub(super) fn shown_path(path: &[u8]) -> String {
    format!("'{}'", String::from_utf8_lossy(path))
}
