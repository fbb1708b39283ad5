//! Taking lookup references by number: what a guest holds that goes on where another one was saved.
//!
//! Nobody looks anything up here, so there may be no name: an inode that was open and unlinked when a layer
//! was frozen is in that layer still, and can be held in every fork of it.
//!
//! Invariants: references are counted before it is looked whether the inode exists, as everywhere
//! (`reap.rs`); a failure leaves none, and reclaims nothing.

use super::kernel::Holder;
use super::{Epoch, Mutation, View};
use crate::change::InodeRow;
use crate::dispatch::OpError;
use crate::id::Ino;

/// Inodes that are looked for in the catalog at once.
const AT_ONCE: usize = 256;

impl View {
    pub(crate) fn do_reference(
        &self,
        holder: Holder,
        inodes: &[(Ino, u64)],
    ) -> Result<(), OpError> {
        // The layer stays the same meanwhile, and the view open.
        let mutation = match self.is_frozen() {
            true => None,
            false => Some(self.mutate()?),
        };
        let epoch = mutation
            .as_ref()
            .map_or_else(|| self.epoch(), |mutation| mutation.epoch.clone());
        for &(ino, count) in inodes {
            self.kernel.referenced(holder, ino, count);
        }
        let found = self.unlinked_among(&epoch, inodes);
        let noted = found.and_then(|unlinked| match &mutation {
            Some(mutation) => mutation.note_unlinked(&unlinked),
            None => Ok(()),
        });
        if noted.is_err() {
            // Not by `do_forget`: whoever tries again finds what is unlinked still there.
            for &(ino, count) in inodes {
                self.kernel.forget(holder, ino, count);
            }
        }
        noted
    }

    /// The inodes that have no name.
    ///
    /// # Errors
    /// [`OpError::Stale`] if one does not exist.
    fn unlinked_among(
        &self,
        epoch: &Epoch,
        inodes: &[(Ino, u64)],
    ) -> Result<Vec<(Ino, InodeRow)>, OpError> {
        let inos = inodes.iter().map(|&(ino, _)| ino);
        let (mut near, far): (Vec<Ino>, Vec<Ino>) =
            inos.partition(|&ino| epoch.nodes.get(ino).is_ok());
        // Those that have a name, mostly thousands, come into memory when they are used. An unlinked one stays
        // there until its last reference is returned, and is found by that.
        for some in far.chunks(AT_ONCE) {
            let links = self.at_lineage(epoch, |at| self.core.catalog.links(some, at))?;
            for (&ino, links) in some.iter().zip(links) {
                match links {
                    None => return Err(OpError::Stale(ino)),
                    Some(0) => near.push(ino),
                    Some(_) => {}
                }
            }
        }
        let mut unlinked = Vec::new();
        for ino in near {
            let node = self.node(epoch, ino)?;
            let state = node.state.read();
            if state.reclaimed {
                return Err(OpError::Stale(ino));
            }
            if state.row.attr.nlink == 0 {
                unlinked.push((ino, state.row));
            }
        }
        Ok(unlinked)
    }
}

impl Mutation<'_> {
    /// What was removed and is open counts, in this workspace as in the one that it was removed in.
    fn note_unlinked(&self, inodes: &[(Ino, InodeRow)]) -> Result<(), OpError> {
        let weighed = inodes.iter().map(|(ino, row)| {
            let began = self.began(*ino, row)?;
            Ok((*ino, Some(super::weight(row, began, self.is_of_host(row)))))
        });
        let weighed: Result<_, OpError> = weighed.collect();
        self.view.usage.note_unnamed(weighed?);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::attr::FileKind;
    use crate::dispatch::{Caller, Dispatch, NewNode};
    use crate::id::WorkspaceName;
    use crate::{SnapshotOptions, Store};

    const ROOT: Caller = Caller { uid: 0, gid: 0 };

    fn file(view: &View, name: &[u8]) -> Ino {
        let node = NewNode {
            kind: FileKind::File,
            perm: 0o644,
            umask: 0,
            rdev: 0,
            target: b"",
        };
        view.make(ROOT, Ino::ROOT, name, node).unwrap().ino
    }

    /// A store, a view with a file that is open and unlinked, that file, and one with a name.
    fn unlinked() -> (tempfile::TempDir, Arc<Store>, Arc<View>, (Ino, Ino)) {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("store");
        Store::init(&dir).unwrap();
        let store = Store::open(&dir).unwrap();
        let name = WorkspaceName::parse("w").unwrap();
        store.create_workspace(&name).unwrap();
        let view = store.open_live("w").unwrap();
        let inodes = (file(&view, b"gone"), file(&view, b"kept"));
        view.unlink(Ino::ROOT, b"gone").unwrap();
        (scratch, store, view, inodes)
    }

    fn is_there(view: &View, ino: Ino) -> bool {
        view.getattr(ino).is_ok()
    }

    #[test]
    fn each_reference_is_returned_before_an_unlinked_inode_goes() {
        let (_scratch, store, view, (gone, kept)) = unlinked();
        view.reference(&[(gone, 3), (kept, 1), (Ino::ROOT, 2)])
            .unwrap();
        view.forget(gone, 1);
        view.forget(gone, 2);
        store.settle().unwrap();
        assert!(is_there(&view, gone), "one is left");
        view.forget(gone, 1);
        store.settle().unwrap();
        assert!(!is_there(&view, gone) && is_there(&view, kept));
        let refused = view.reference(&[(kept, 1), (gone, 1)]);
        assert!(matches!(refused, Err(OpError::Stale(ino)) if ino == gone));
        view.forget(kept, 2);
        view.forget(Ino::ROOT, 2);
        assert_eq!(view.known(), [Ino::ROOT]);
        store.close_view(&view);
    }

    #[test]
    fn a_failure_reclaims_nothing_even_where_nobody_else_holds_it() {
        let (_scratch, store, view, (gone, _)) = unlinked();
        let snapshot = store.snapshot("w", &SnapshotOptions::default()).unwrap();
        let source = crate::ForkSource::Snapshot(snapshot.id.clone());
        let fork = WorkspaceName::parse("fork").unwrap();
        store.fork(&source, &[fork]).unwrap();
        let fork = store.open_live("fork").unwrap();
        for none in [Ino(gone.0 + 1000), Ino(0), Ino(u64::MAX)] {
            assert!(fork.reference(&[(gone, 1), (none, 1)]).is_err());
            store.settle().unwrap();
            assert!(is_there(&fork, gone));
            assert_eq!(fork.known(), [Ino::ROOT]);
        }
        fork.reference(&[(gone, 1)]).unwrap();
        view.forget(gone, 1);
        store.settle().unwrap();
        assert!(!is_there(&view, gone) && is_there(&fork, gone));
        // In a snapshot they are counted as well, and change nothing.
        let frozen = store.open_frozen(&snapshot.id).unwrap();
        frozen.reference(&[(gone, 2)]).unwrap();
        frozen.forget(gone, 2);
        assert!(is_there(&frozen, gone));
        fork.forget(gone, 1);
        store.settle().unwrap();
        assert!(!is_there(&fork, gone));
        assert!(store.check().unwrap().is_clean());
    }
}
