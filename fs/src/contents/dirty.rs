//! Which objects were written since they were last synced. Pure: no I/O.
//!
//! A mark stays until a sync that began after it has ended: whoever syncs meanwhile has to do it
//! too, and whoever writes meanwhile leaves a newer mark, which stays.

use std::collections::{HashMap, HashSet};

use crate::id::{Ino, ObjectId};

/// An object with the mark it had.
pub(super) type Marked = (ObjectId, u64);

/// Objects written since they were last synced.
#[derive(Default)]
pub(super) struct Dirty {
    marks: u64,
    /// By the file they serve. Of any layer: a file written, snapshotted and then fsynced has its
    /// bytes in a frozen layer's object.
    files: HashMap<Ino, Vec<Marked>>,
    /// Those with bytes that were in another object or in the catalog before.
    inherited: HashMap<ObjectId, u64>,
    /// Those that could not be synced, which nobody was told of who asked for that file.
    failed: HashSet<ObjectId>,
}

impl Dirty {
    fn next(&mut self) -> u64 {
        self.marks += 1;
        self.marks
    }

    /// The newest mark.
    pub(super) fn now(&self) -> u64 {
        self.marks
    }

    /// An object of a file was or will be written.
    pub(super) fn mark(&mut self, ino: Ino, id: ObjectId) {
        let mark = self.next();
        let objects = self.files.entry(ino).or_default();
        match objects.iter_mut().find(|(known, _)| *known == id) {
            Some(known) => known.1 = mark,
            None => objects.push((id, mark)),
        }
    }

    /// An object got bytes older than itself.
    pub(super) fn inherit(&mut self, id: ObjectId) {
        let mark = self.next();
        self.inherited.insert(id, mark);
    }

    /// A file's objects to sync, and one that failed before; whoever asks tells of it.
    pub(super) fn of(&mut self, ino: Ino) -> (Vec<Marked>, Option<ObjectId>) {
        let objects = self.files.get(&ino).cloned().unwrap_or_default();
        let mut failed = None;
        for (id, _) in &objects {
            if self.failed.remove(id) {
                failed = Some(*id);
            }
        }
        (objects, failed)
    }

    /// An object could not be synced by somebody whom its file does not concern.
    pub(super) fn failed(&mut self, id: ObjectId) {
        self.failed.insert(id);
    }

    /// An object that failed before; whoever asks tells of it.
    pub(super) fn any_failed(&mut self) -> Option<ObjectId> {
        let failed = self.failed.iter().next().copied();
        failed.filter(|id| self.failed.remove(id))
    }

    /// The objects with bytes older than themselves.
    pub(super) fn inherited(&self) -> Vec<Marked> {
        self.inherited
            .iter()
            .map(|(&id, &mark)| (id, mark))
            .collect()
    }

    /// These marks of a file were synced.
    pub(super) fn synced(&mut self, ino: Ino, objects: &[Marked]) {
        self.keep(ino, |object| !objects.contains(object));
        self.inherited_synced(objects);
    }

    /// These marks of inherited bytes, or older ones, were synced.
    pub(super) fn inherited_synced(&mut self, objects: &[Marked]) {
        for (id, mark) in objects {
            if self.inherited.get(id).is_some_and(|newest| newest <= mark) {
                self.inherited.remove(id);
            }
        }
    }

    /// An object of a file is gone.
    pub(super) fn forget(&mut self, ino: Ino, gone: ObjectId) {
        self.keep(ino, |&(id, _)| id != gone);
        self.inherited.remove(&gone);
        self.failed.remove(&gone);
    }

    /// Everything up to a mark was synced.
    pub(super) fn clean(&mut self, marks: u64) {
        self.files.retain(|_, objects| {
            objects.retain(|&(_, mark)| mark > marks);
            !objects.is_empty()
        });
        self.inherited.retain(|_, mark| *mark > marks);
    }

    fn keep(&mut self, ino: Ino, condition: impl Fn(&Marked) -> bool) {
        if let Some(objects) = self.files.get_mut(&ino) {
            objects.retain(condition);
            if objects.is_empty() {
                self.files.remove(&ino);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INO: Ino = Ino(7);
    const ID: ObjectId = ObjectId(1);

    #[test]
    fn a_sync_takes_no_mark_away_that_was_made_meanwhile() {
        let mut dirty = Dirty::default();
        dirty.mark(INO, ID);
        dirty.mark(INO, ObjectId(2));
        let (taken, marks) = (dirty.of(INO).0, dirty.now());
        // A second fsync that comes now still finds both.
        assert_eq!(taken.len(), 2);
        dirty.mark(INO, ID);
        dirty.synced(INO, &taken);
        assert_eq!(dirty.of(INO).0, [(ID, 3)]);
        dirty.clean(marks);
        assert_eq!(dirty.of(INO).0, [(ID, 3)]);
        dirty.clean(dirty.now());
        assert!(dirty.files.is_empty());
    }

    #[test]
    fn inherited_bytes_are_synced_by_their_own_file_or_by_anybody() {
        let mut dirty = Dirty::default();
        dirty.inherit(ID);
        dirty.mark(INO, ID);
        let taken = dirty.of(INO).0;
        dirty.synced(INO, &taken);
        assert!(dirty.inherited().is_empty());
        dirty.inherit(ID);
        let taken = dirty.inherited();
        dirty.inherit(ID);
        dirty.inherited_synced(&taken);
        assert_eq!(dirty.inherited().len(), 1, "newer bytes are not synced yet");
        dirty.forget(INO, ID);
        assert!(dirty.inherited().is_empty());
    }

    #[test]
    fn a_sync_that_failed_in_passing_is_told_to_the_next_who_asks_and_once() {
        let mut dirty = Dirty::default();
        dirty.mark(INO, ID);
        dirty.failed(ID);
        assert_eq!(dirty.of(Ino(8)).1, None);
        assert_eq!(dirty.of(INO).1, Some(ID));
        assert_eq!((dirty.of(INO).1, dirty.any_failed()), (None, None));
        dirty.failed(ID);
        assert_eq!(dirty.any_failed(), Some(ID));
        assert_eq!(dirty.any_failed(), None);
    }
}
