//! Taking lookup references by number: what a guest holds that goes on where another one was saved.
//!
//! Nobody looks anything up here, so there may be no name: an inode that was open and unlinked when a layer
//! was frozen is in that layer still, and can be held in every fork of it.
//!
//! Invariants: references are counted before it is looked whether the inode exists, as everywhere
//! (`reap.rs`); a failure leaves none, and reclaims nothing.

use super::{Epoch, Mutation, View};
use crate::change::InodeRow;
use crate::dispatch::OpError;
use crate::id::Ino;

impl View {
    pub(super) fn do_reference(&self, inodes: &[(Ino, u64)]) -> Result<(), OpError> {
        // The layer stays the same meanwhile, and the view open.
        let mutation = match self.is_frozen() {
            true => None,
            false => Some(self.mutate()?),
        };
        let epoch = mutation
            .as_ref()
            .map_or_else(|| self.epoch(), |mutation| mutation.epoch.clone());
        for &(ino, count) in inodes {
            self.kernel.referenced(ino, count);
        }
        let found = self.unlinked_among(&epoch, inodes);
        let noted = found.and_then(|unlinked| match &mutation {
            Some(mutation) => mutation.note_unlinked(&unlinked),
            None => Ok(()),
        });
        if noted.is_err() {
            // Not by `do_forget`: whoever tries again finds what is unlinked still there.
            for &(ino, count) in inodes {
                self.kernel.forget(ino, count);
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
        let mut unlinked = Vec::new();
        for &(ino, _) in inodes {
            if epoch.nodes.get(ino).is_err() {
                // Those that have a name, mostly thousands, come into memory when they are used.
                let row = self.at_lineage(epoch, |at| self.core.catalog.inode(ino, at))?;
                let (_, Some(row)) = row.ok_or(OpError::Stale(ino))? else {
                    return Err(OpError::Stale(ino));
                };
                if row.attr.nlink > 0 {
                    continue;
                }
            }
            // An unlinked one stays there until its last reference is returned, and is found by that.
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
