//! The names of one directory, as far as they have been looked up. Pure: no I/O.
//!
//! A directory on disk is never loaded for a look-up; only listing it makes the picture
//! *complete*. A directory made in this view is complete from the start.

use std::collections::{BTreeMap, HashMap};

use crate::change::{EntryRow, Name, Version};
use crate::id::LayerId;

/// Names known not to exist are forgotten past this number: the kernel remembers them as well.
const ABSENT_MAX: usize = 4096;

/// What is known about a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Slot {
    /// It exists; written by `layer`.
    Present { entry: EntryRow, layer: LayerId },
    /// It does not exist. `shadows`: an ancestor has a version, so a new entry will shadow one.
    Absent { shadows: bool },
}

impl Slot {
    /// What the catalog's answer means.
    pub(super) fn from_version(version: Option<Version<EntryRow>>) -> Self {
        match version {
            Some((layer, Some(entry))) => Self::Present { entry, layer },
            Some((_, None)) => Self::Absent { shadows: true },
            None => Self::Absent { shadows: false },
        }
    }

    /// Whether an entry that `live` writes here shadows a version in an ancestor layer.
    pub(super) fn shadowed_by_new(self, live: LayerId) -> bool {
        match self {
            Self::Present { entry, layer } => layer != live || entry.shadows,
            Self::Absent { shadows } => shadows,
        }
    }
}

/// Names of a directory.
#[derive(Default)]
pub(super) struct Directory {
    slots: HashMap<Name, Slot>,
    /// Names by cookie, kept only when complete.
    order: BTreeMap<u64, Name>,
    complete: bool,
    /// Of one that stands for a directory of the host: its names are in the catalog.
    taken: bool,
    absent: usize,
}

impl Directory {
    /// A directory just made: known to have no name at all.
    pub(super) fn empty() -> Self {
        Self {
            complete: true,
            ..Self::default()
        }
    }

    /// Whether the catalog is known to have the names that the directory has on the host.
    pub(super) fn is_taken(&self) -> bool {
        self.taken
    }

    /// The catalog has the names that the directory has on the host.
    pub(super) fn set_taken(&mut self) {
        self.taken = true;
    }

    /// Whether every name is known.
    pub(super) fn is_complete(&self) -> bool {
        self.complete
    }

    /// What is known about a name; `None` means that the catalog has to be asked.
    pub(super) fn slot(&self, name: &[u8]) -> Option<Slot> {
        match self.slots.get(name) {
            Some(slot) => Some(*slot),
            None => self.complete.then_some(Slot::Absent { shadows: false }),
        }
    }

    /// Sets what is known about a name.
    pub(super) fn set(&mut self, name: &Name, slot: Slot) {
        if self.absent >= ABSENT_MAX && !self.complete {
            self.slots
                .retain(|_, slot| matches!(slot, Slot::Present { .. }));
            self.absent = 0;
        }
        let old = self.slots.insert(name.clone(), slot);
        self.absent -= usize::from(matches!(old, Some(Slot::Absent { .. })));
        self.absent += usize::from(matches!(slot, Slot::Absent { .. }));
        if self.complete {
            if let Some(Slot::Present { entry, .. }) = old {
                self.order.remove(&entry.cookie);
            }
            if let Slot::Present { entry, .. } = slot {
                self.order.insert(entry.cookie, name.clone());
            }
        }
        if self.complete && slot == (Slot::Absent { shadows: false }) {
            // Complete: not knowing it says the same.
            self.slots.remove(&name[..]);
            self.absent -= 1;
        }
    }

    /// Takes the whole listing in and is complete from now on. What is known already is newer.
    pub(super) fn complete(&mut self, listing: Vec<(Name, Version<EntryRow>)>) {
        for (name, version) in listing {
            let slot = Slot::from_version(Some(version));
            self.slots.entry(name).or_insert_with(|| {
                self.absent += usize::from(matches!(slot, Slot::Absent { .. }));
                slot
            });
        }
        self.complete = true;
        self.order = self
            .slots
            .iter()
            .filter_map(|(name, slot)| match slot {
                Slot::Present { entry, .. } => Some((entry.cookie, name.clone())),
                Slot::Absent { .. } => None,
            })
            .collect();
    }

    /// Whether a complete directory has no names.
    pub(super) fn is_empty(&self) -> bool {
        self.order.is_empty()
    }

    /// Up to `max` entries of a complete directory whose cookie is larger.
    pub(super) fn after(&self, cookie: u64, max: usize) -> Vec<(Name, EntryRow)> {
        let Some(from) = cookie.checked_add(1) else {
            return Vec::new();
        };
        self.order
            .range(from..)
            .take(max)
            .filter_map(|(_, name)| match self.slots.get(name) {
                Some(Slot::Present { entry, .. }) => Some((name.clone(), *entry)),
                _ => None,
            })
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::FileKind;
    use crate::id::Ino;

    fn entry(ino: u64, cookie: u64) -> EntryRow {
        EntryRow {
            ino: Ino(ino),
            kind: FileKind::File,
            cookie,
            shadows: false,
        }
    }

    fn present(ino: u64, cookie: u64) -> Slot {
        Slot::Present {
            entry: entry(ino, cookie),
            layer: LayerId(1),
        }
    }

    #[test]
    fn a_listing_does_not_overwrite_what_changed_since() {
        let mut directory = Directory::default();
        let (a, b): (Name, Name) = (Name::from(&b"a"[..]), Name::from(&b"b"[..]));
        directory.set(&a, Slot::Absent { shadows: true });
        directory.set(&b, present(20, 200));
        directory.complete(vec![
            (a.clone(), (LayerId(1), Some(entry(10, 100)))),
            (b.clone(), (LayerId(1), Some(entry(11, 101)))),
        ]);
        assert_eq!(directory.slot(&a), Some(Slot::Absent { shadows: true }));
        assert_eq!(directory.after(0, 10), vec![(b, entry(20, 200))]);
    }

    #[test]
    fn cookies_continue_where_a_listing_stopped_whatever_changes() {
        let mut directory = Directory::empty();
        for n in 1..=10_u64 {
            directory.set(&Name::from(format!("{n}").as_bytes()), present(n, n * 10));
        }
        let first = directory.after(0, 4);
        assert_eq!(first.last().unwrap().1.cookie, 40);
        for gone in ["2", "4", "6"] {
            directory.set(
                &Name::from(gone.as_bytes()),
                Slot::Absent { shadows: false },
            );
        }
        directory.set(&Name::from(&b"new"[..]), present(99, 990));
        let rest: Vec<_> = directory
            .after(40, 100)
            .iter()
            .map(|(_, e)| e.ino.0)
            .collect();
        assert_eq!(rest, [5, 7, 8, 9, 10, 99]);
        assert_eq!(directory.after(u64::MAX, 5), vec![]);
    }

    #[test]
    fn names_that_do_not_exist_are_not_remembered_without_bound() {
        let mut directory = Directory::default();
        directory.set(&Name::from(&b"kept"[..]), present(1, 16));
        for n in 0..3 * ABSENT_MAX {
            directory.set(
                &Name::from(format!("{n}").as_bytes()),
                Slot::Absent { shadows: false },
            );
        }
        assert!(directory.slots.len() <= ABSENT_MAX + 1);
        assert_eq!(directory.slot(b"kept"), Some(present(1, 16)));
    }
}
