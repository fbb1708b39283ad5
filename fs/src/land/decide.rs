//! What becomes of one file, by which of the three states have it.

use std::collections::BTreeSet;
use std::rc::Rc;
use std::sync::Arc;

use super::LandError;
use super::merge::{self, Conflict};
use super::plan::{Bytes, Key, Place, Planner, Step, keys_of, path, shown_path, step};
use super::trio::Id;
use crate::attr::FileKind;
use crate::diff::FileChange;
use crate::diff::entry::same_attributes;
use crate::diff::side::Known;
use crate::diff::text::{TEXT_MAX, is_text};

impl Planner<'_> {
    /// All three have it.
    pub(super) fn both(
        &mut self,
        b: &Rc<Known>,
        o: &Rc<Known>,
        t: &Rc<Known>,
    ) -> Result<(), LandError> {
        let mut step = step(t.file.ino, Some(t), Some(o));
        let shown = path(t);
        let moved = self.moved(b, o)?;
        let before = self.places(b, true)?;
        let before: BTreeSet<Key> = self.keys(&before)?.into_iter().flatten().collect();
        let now = keys_of(t);
        let gone: BTreeSet<Key> = self.keys(&moved.gone)?.into_iter().flatten().collect();
        let Some(come) = self.add(&moved.come, o, "moved it there")? else {
            return Ok(());
        };
        let gone_there: BTreeSet<Key> = before.difference(&now).cloned().collect();
        let come_there: BTreeSet<Key> = now.difference(&before).cloned().collect();
        let renamed_twice = !come.is_empty()
            && !come_there.is_empty()
            && come != come_there
            && (t.file.is_directory() || gone.intersection(&gone_there).next().is_some());
        let removed_twice =
            !moved.gone.is_empty() && now.difference(&gone).next().is_none() && come.is_empty();
        if renamed_twice || removed_twice {
            let verb = |known: &Known| format!("renamed it to {}", shown_path(&path(known)));
            self.conflict(path(b), &verb(o), &verb(t), Some(&t.file));
            return Ok(());
        }
        step.remove = gone.intersection(&now).cloned().collect();
        step.add = come.difference(&now).cloned().collect();
        let same = self.same_bytes([0, 1], (b, o))?;
        let mut merged = false;
        if !same {
            match self.bytes(b, o, t)? {
                Ok(bytes) => {
                    merged = matches!(bytes, Some(Bytes::Merged(_)));
                    step.bytes = bytes;
                }
                Err(Conflict) => {
                    let verb = "changed the contents";
                    self.conflict(shown, verb, verb, Some(&t.file));
                    return Ok(());
                }
            }
        }
        let attributes = self.attributes(b, o, t, &mut step, same)?;
        if attributes == Err(Conflict) {
            let verb = "changed attributes";
            self.conflict(shown, verb, verb, Some(&t.file));
            return Ok(());
        }
        let change = if step.bytes.is_some() {
            Some(FileChange::Modified)
        } else if step.attr.is_some() || !step.xattrs.is_empty() {
            Some(FileChange::Metadata)
        } else {
            None
        };
        if change.is_none() && step.add.is_empty() && step.remove.is_empty() {
            return Ok(());
        }
        let gone = t.places.iter();
        let gone = gone.filter(|at| step.remove.contains(&(at.parent, at.name.clone())));
        let mut gone: Vec<Vec<u8>> = gone.map(|at| at.path.clone()).collect();
        let mut come = match step.add.is_empty() {
            true => Vec::new(),
            false => self.came(o, &moved.come)?,
        };
        let both = gone.len().min(come.len());
        for (from, path) in gone.drain(..both).zip(come.drain(..both)) {
            self.entry(path, Some(from), FileChange::Renamed, merged);
        }
        for path in come {
            self.entry(path, None, FileChange::Added, false);
        }
        for path in gone {
            self.entry(path, None, FileChange::Deleted, false);
        }
        if let (Some(change), 0) = (change, both) {
            self.entry(shown, None, change, merged);
        }
        self.plan.steps.push(step);
        Ok(())
    }

    /// The paths of places that came.
    fn came(&mut self, ours: &Known, come: &BTreeSet<Place>) -> Result<Vec<Vec<u8>>, LandError> {
        let mut paths = Vec::new();
        for place in &ours.places {
            let parent = self.trio.id(place.parent)?;
            if come.contains(&(parent, place.name.clone())) {
                paths.push(place.path.clone());
            }
        }
        Ok(paths)
    }

    /// New contents of a file that ours changed.
    fn bytes(
        &self,
        b: &Rc<Known>,
        o: &Rc<Known>,
        t: &Rc<Known>,
    ) -> Result<Result<Option<Bytes>, Conflict>, LandError> {
        if self.same_bytes([0, 2], (b, t))? {
            return Ok(Ok(Some(Bytes::Ours(self.contents(1, &o.file)?))));
        }
        if self.same_bytes([1, 2], (o, t))? {
            return Ok(Ok(None));
        }
        if self.input.no_merge || o.file.row.attr.kind != FileKind::File {
            return Ok(Err(Conflict));
        }
        let mut texts = Vec::new();
        for (at, known) in [b, o, t].into_iter().enumerate() {
            if known.file.row.attr.size > TEXT_MAX {
                return Ok(Err(Conflict));
            }
            let text = self.contents(at, &known.file)?.read_all(self.objects())?;
            if !is_text(&text) {
                return Ok(Err(Conflict));
            }
            texts.push(text);
        }
        let merged = merge::text(&texts[0], &texts[1], &texts[2]);
        Ok(merged
            .map(|merged| Some(Bytes::Merged(Arc::from(merged))))
            .ok_or(Conflict))
    }

    fn attributes(
        &self,
        b: &Rc<Known>,
        o: &Rc<Known>,
        t: &Rc<Known>,
        step: &mut Step,
        same_bytes: bool,
    ) -> Result<Result<(), Conflict>, LandError> {
        let [before, ours, theirs] = [b, o, t].map(|known| known.file.row.attr);
        let Ok(mut merged) = merge::attributes(&before, &ours, &theirs) else {
            return Ok(Err(Conflict));
        };
        // The time of the last change is that of the contents; of a directory, that of the landing.
        let touched = ours.mtime != before.mtime && theirs.mtime == before.mtime;
        match &step.bytes {
            Some(Bytes::Ours(_)) => merged.mtime = ours.mtime,
            Some(Bytes::Merged(_)) => {}
            None if same_bytes && touched && ours.kind != FileKind::Directory => {
                merged.mtime = ours.mtime;
            }
            None => {}
        }
        let same = same_attributes(&merged, &theirs) && merged.mtime == theirs.mtime;
        step.attr = (!same).then_some(merged);
        if o.file.row.has_xattr || b.file.row.has_xattr {
            let [b, o, t] =
                [(0, b), (1, o), (2, t)].map(|(at, known)| self.xattrs(at, &known.file));
            match merge::xattrs(&b?, &o?, &t?) {
                Ok(changes) => step.xattrs = changes,
                Err(Conflict) => return Ok(Err(Conflict)),
            }
        }
        Ok(Ok(()))
    }

    /// Theirs removed it. It stays so, unless ours changed it.
    pub(super) fn gone_there(&mut self, b: &Rc<Known>, o: &Rc<Known>) -> Result<(), LandError> {
        let moved = self.moved(b, o)?;
        let verb = if !self.same_bytes([0, 1], (b, o))? {
            "changed the contents"
        } else if !moved.come.is_empty() {
            "renamed it"
        } else if !self.same_attributes([0, 1], (b, o))? {
            "changed attributes"
        } else {
            return Ok(());
        };
        self.conflict(path(b), verb, "removed it", None);
        Ok(())
    }

    /// Ours removed it. So does theirs, unless that changed it.
    pub(super) fn gone_here(&mut self, b: &Rc<Known>, t: &Rc<Known>) -> Result<(), LandError> {
        let before = self.places(b, true)?;
        let before: BTreeSet<Key> = self.keys(&before)?.into_iter().flatten().collect();
        let now = keys_of(t);
        let verb = if !self.same_bytes([0, 2], (b, t))? {
            "changed the contents"
        } else if now.difference(&before).next().is_some() {
            "renamed it"
        } else if !self.same_attributes([0, 2], (b, t))? {
            "changed attributes"
        } else {
            let mut step = step(t.file.ino, Some(t), None);
            step.remove = now;
            for place in &t.places {
                self.entry(place.path.clone(), None, FileChange::Deleted, false);
            }
            self.plan.steps.push(step);
            return Ok(());
        };
        self.conflict(path(b), "removed it", verb, Some(&t.file));
        Ok(())
    }

    pub(super) fn new_here(&mut self, id: Id, o: &Rc<Known>) -> Result<(), LandError> {
        let places = self.places(o, false)?;
        let Some(add) = self.add(&places, o, "added it there")? else {
            return Ok(());
        };
        let Some(ino) = self.target(id)? else {
            return Ok(());
        };
        let mut step = step(ino, None, Some(o));
        step.add = add;
        if o.file.has_bytes() {
            step.bytes = Some(Bytes::Ours(self.contents(1, &o.file)?));
        }
        let xattrs = self.xattrs(1, &o.file)?.into_iter();
        step.xattrs = xattrs.map(|(name, value)| (name, Some(value))).collect();
        for place in &o.places {
            self.entry(place.path.clone(), None, FileChange::Added, false);
        }
        self.plan.steps.push(step);
        Ok(())
    }

    /// Both made something at one place.
    pub(super) fn new_on_both(
        &mut self,
        id: Id,
        o: &Rc<Known>,
        t: &Rc<Known>,
    ) -> Result<(), LandError> {
        let equal =
            self.same_bytes([1, 2], (o, t))? && o.file.row.attr.rdev == t.file.row.attr.rdev;
        if !equal {
            self.conflict(path(o), "added it", "added another", Some(&t.file));
            return Ok(());
        }
        // Neither side's is more right. Directories are one however they came to be.
        if !o.file.is_directory()
            && (!same_attributes(&o.file.row.attr, &t.file.row.attr)
                || self.xattrs(1, &o.file)? != self.xattrs(2, &t.file)?)
        {
            let verb = "added it with other attributes";
            self.conflict(path(o), "added it", verb, Some(&t.file));
            return Ok(());
        }
        let places = self.places(o, false)?;
        let Some(add) = self.add(&places, o, "added it there")? else {
            return Ok(());
        };
        let now = keys_of(t);
        let add: BTreeSet<Key> = add.difference(&now).cloned().collect();
        if add.is_empty() {
            return Ok(());
        }
        if o.file.is_directory() {
            self.conflict(path(o), "added it", "added it elsewhere", Some(&t.file));
            return Ok(());
        }
        debug_assert!(matches!(id, Id::New(_)));
        let mut step = step(t.file.ino, Some(t), Some(o));
        step.add = add;
        self.entry(path(o), None, FileChange::Added, false);
        self.plan.steps.push(step);
        Ok(())
    }
}
