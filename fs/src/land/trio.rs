//! Which inodes of the three states are one file.
//!
//! Mostly those with one number. Beside that, a file that was replaced at its place (a new file was
//! renamed over it) is that file still; and what both sides made at one place is one. A place is a
//! name in a directory, which may itself be such a directory.

use std::collections::HashMap;
use std::rc::Rc;

use super::LandError;
use crate::catalog::{CatalogError, Queries};
use crate::change::EntryRow;
use crate::diff::side::{Known, Side};
use crate::id::Ino;
use crate::layers::Lineage;

/// Directories that lie in each other and were all made or removed. Following them recurses.
const DEPTH_MAX: u32 = 2_000;

/// A file, whatever its inode is in a state: that of the base, or one of ours that the base lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Id {
    Base(Ino),
    New(Ino),
}

/// A state, remembering what was asked.
pub(super) struct State<'a> {
    pub(super) side: Side<'a>,
    known: HashMap<Ino, Option<Rc<Known>>>,
}

impl<'a> State<'a> {
    fn new(queries: Queries<'a>, lineage: Lineage<'a>) -> Self {
        Self {
            side: Side::new(queries, lineage),
            known: HashMap::new(),
        }
    }

    /// An inode that has a name.
    pub(super) fn known(&mut self, ino: Ino) -> Result<Option<Rc<Known>>, CatalogError> {
        if let Some(known) = self.known.get(&ino) {
            return Ok(known.clone());
        }
        let known = self.side.known(ino)?.map(Rc::new);
        self.known.insert(ino, known.clone());
        Ok(known)
    }

    pub(super) fn entry(&self, parent: Ino, name: &[u8]) -> Result<Option<EntryRow>, CatalogError> {
        self.side.entry(parent, name)
    }
}

/// The three states.
pub(super) struct Trio<'a> {
    pub(super) base: State<'a>,
    pub(super) ours: State<'a>,
    pub(super) theirs: State<'a>,
    /// What stands for a file of the base in ours and in theirs.
    in_ours: HashMap<Ino, Option<Ino>>,
    in_theirs: HashMap<Ino, Option<Ino>>,
    ids: HashMap<Ino, Id>,
    targets: HashMap<Id, Option<Ino>>,
    /// Each inode of theirs is one file.
    taken: HashMap<Ino, Id>,
    depth: u32,
}

impl<'a> Trio<'a> {
    pub(super) fn new(queries: Queries<'a>, [base, ours, theirs]: [Lineage<'a>; 3]) -> Self {
        let state = |lineage| State::new(queries, lineage);
        Self {
            base: state(base),
            ours: state(ours),
            theirs: state(theirs),
            in_ours: HashMap::new(),
            in_theirs: HashMap::new(),
            ids: HashMap::new(),
            targets: HashMap::new(),
            taken: HashMap::new(),
            depth: 0,
        }
    }

    fn deeper<T>(
        &mut self,
        act: impl FnOnce(&mut Self) -> Result<T, LandError>,
    ) -> Result<T, LandError> {
        if self.depth >= DEPTH_MAX {
            return Err(LandError::TooDeep);
        }
        self.depth += 1;
        let done = act(self);
        self.depth -= 1;
        done
    }

    /// The inode that stands for a file of the base on one of the sides.
    fn counterpart(&mut self, ours: bool, file: Ino) -> Result<Option<Ino>, LandError> {
        let known = if ours { &self.in_ours } else { &self.in_theirs };
        if let Some(found) = known.get(&file) {
            return Ok(*found);
        }
        let found = self.deeper(|this| this.find_counterpart(ours, file))?;
        let known = if ours {
            &mut self.in_ours
        } else {
            &mut self.in_theirs
        };
        known.insert(file, found);
        Ok(found)
    }

    fn find_counterpart(&mut self, ours: bool, file: Ino) -> Result<Option<Ino>, LandError> {
        let side = if ours {
            &mut self.ours
        } else {
            &mut self.theirs
        };
        if side.known(file)?.is_some() {
            return Ok(Some(file));
        }
        let Some(known) = self.base.known(file)? else {
            return Ok(None);
        };
        for place in &known.places {
            let Some(parent) = self.counterpart(ours, place.parent)? else {
                continue;
            };
            let side = if ours { &self.ours } else { &self.theirs };
            let Some(entry) = side.entry(parent, &place.name)? else {
                continue;
            };
            if entry.kind == known.file.row.attr.kind && self.base.known(entry.ino)?.is_none() {
                return Ok(Some(entry.ino));
            }
        }
        Ok(None)
    }

    /// The file that an inode of ours is.
    pub(super) fn id(&mut self, ino: Ino) -> Result<Id, LandError> {
        if let Some(id) = self.ids.get(&ino) {
            return Ok(*id);
        }
        let id = self.deeper(|this| this.find_id(ino))?;
        self.ids.insert(ino, id);
        Ok(id)
    }

    fn find_id(&mut self, ino: Ino) -> Result<Id, LandError> {
        if self.base.known(ino)?.is_some() {
            return Ok(Id::Base(ino));
        }
        if let Some(known) = self.ours.known(ino)? {
            for place in &known.places {
                if let Id::Base(parent) = self.id(place.parent)?
                    && let Some(entry) = self.base.entry(parent, &place.name)?
                    && self.counterpart(true, entry.ino)? == Some(ino)
                {
                    return Ok(Id::Base(entry.ino));
                }
            }
        }
        Ok(Id::New(ino))
    }

    /// The inode of ours that is a file.
    pub(super) fn of_ours(&mut self, id: Id) -> Result<Option<Ino>, LandError> {
        match id {
            Id::New(ino) => Ok(Some(ino)),
            Id::Base(file) => match self.counterpart(true, file)? {
                // One inode may have taken the places of several.
                Some(ino) if self.id(ino)? == id => Ok(Some(ino)),
                _ => Ok(None),
            },
        }
    }

    /// The inode of theirs that is a file.
    pub(super) fn of_theirs(&mut self, id: Id) -> Result<Option<Ino>, LandError> {
        if let Some(found) = self.targets.get(&id) {
            return Ok(*found);
        }
        let found = self.deeper(|this| this.find_target(id))?;
        let found = found.filter(|ino| *self.taken.entry(*ino).or_insert(id) == id);
        self.targets.insert(id, found);
        Ok(found)
    }

    fn find_target(&mut self, id: Id) -> Result<Option<Ino>, LandError> {
        let ino = match id {
            Id::Base(file) => return self.counterpart(false, file),
            Id::New(ino) => ino,
        };
        if self.theirs.known(ino)?.is_some() {
            return Ok(Some(ino));
        }
        let Some(known) = self.ours.known(ino)? else {
            return Ok(None);
        };
        for place in &known.places {
            let parent = self.id(place.parent)?;
            let Some(directory) = self.of_theirs(parent)? else {
                continue;
            };
            let Some(entry) = self.theirs.entry(directory, &place.name)? else {
                continue;
            };
            let same_kind = entry.kind == known.file.row.attr.kind;
            if !same_kind || self.base.known(entry.ino)?.is_some() {
                continue;
            }
            // What stands there for a file of the base is that file.
            let of_base = match parent {
                Id::Base(parent) => self.base.entry(parent, &place.name)?,
                Id::New(_) => None,
            };
            let stands_for = match of_base {
                Some(file) => self.counterpart(false, file.ino)? == Some(entry.ino),
                None => false,
            };
            if !stands_for {
                return Ok(Some(entry.ino));
            }
        }
        Ok(None)
    }
}
