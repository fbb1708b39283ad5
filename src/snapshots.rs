//! Snapshots taken while something works in a workspace, each looked at when it is taken, and the proof
//! at the end that none of them has changed.
//!
//! Every look is through a read-only mount of the snapshot that is made for it.

use std::fmt;
use std::path::Path;

use crate::store::TestStore;
use crate::tree::{ScanOptions, Tree};

/// What a snapshot is known by: a hash of what the look found.
type Look<'a> = Box<dyn Fn(&Path, usize) -> blake3::Hash + 'a>;

/// Snapshots of one store.
pub struct Snapshots<'a> {
    store: &'a TestStore,
    look: Look<'a>,
    taken: Vec<(String, blake3::Hash)>,
}

impl fmt::Debug for Snapshots<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Snapshots")
            .field("taken", &self.taken)
            .finish_non_exhaustive()
    }
}

impl<'a> Snapshots<'a> {
    /// None yet; all of each will be looked at.
    #[must_use]
    pub fn of(store: &'a TestStore) -> Self {
        Self::looking(store, |frozen, _| {
            Tree::scan(frozen, ScanOptions::ALL).digest()
        })
    }

    /// None yet. `look` is told where a snapshot is mounted and how many were taken before it, and
    /// says by what it is to be known: for trees that are too large to be read a hundred times.
    #[must_use]
    pub fn looking(store: &'a TestStore, look: impl Fn(&Path, usize) -> blake3::Hash + 'a) -> Self {
        Self {
            store,
            look: Box::new(look),
            taken: Vec::new(),
        }
    }

    /// Takes one, looks at it, and returns its id.
    ///
    /// # Panics
    /// When it cannot be taken, mounted or read.
    #[track_caller]
    pub fn take(&mut self, workspace: &str) -> String {
        let id = self.store.snapshot(workspace);
        let found = self.look(&id, self.taken.len());
        self.taken.push((id.clone(), found));
        id
    }

    fn look(&self, id: &str, number: usize) -> blake3::Hash {
        let frozen = self.store.mount(id);
        let found = (self.look)(&frozen, number);
        self.store.umount(&frozen);
        found
    }

    /// Looks at each again.
    ///
    /// # Panics
    /// When one is not what it was when it was taken, or there is none.
    #[track_caller]
    pub fn assert_unchanged(&self) {
        assert!(!self.taken.is_empty(), "no snapshot was taken");
        for (number, (id, before)) in self.taken.iter().enumerate() {
            let now = self.look(id, number);
            assert_eq!(now, *before, "snapshot {id}, number {number}, has changed");
        }
    }
}
