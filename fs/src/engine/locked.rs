//! A node that is locked for writing, and what becomes of it if its holder panics.
//!
//! A mutation prepares memory before it has the catalog apply the change, and has memory follow
//! after it. A panic anywhere in between would leave a node that says something else than the
//! catalog: blocks that count as owned and have no row, say, so that what is written into them is
//! lost at the next start. So the holder of a node that panics puts it back to what the catalog says
//! before it lets go: whoever waits for the lock finds a node that is right.

use std::ops::{Deref, DerefMut};

use super::node::{Node, NodeState};
use super::{Epoch, Mutation, View};
use crate::dispatch::OpError;
use crate::id::{Ino, ObjectId};
use crate::lock::WriteGuard;

/// A node locked for writing.
pub(super) struct Locked<'a> {
    view: &'a View,
    epoch: &'a Epoch,
    ino: Ino,
    state: WriteGuard<'a, NodeState>,
}

impl Deref for Locked<'_> {
    type Target = NodeState;

    fn deref(&self) -> &NodeState {
        &self.state
    }
}

impl DerefMut for Locked<'_> {
    fn deref_mut(&mut self) -> &mut NodeState {
        &mut self.state
    }
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() && !self.state.reclaimed {
            self.view.read_again(self.epoch, self.ino, &mut self.state);
        }
    }
}

impl View {
    /// Write-locks a node that has not been reclaimed.
    pub(super) fn lock<'a>(
        &'a self,
        epoch: &'a Epoch,
        node: &'a Node,
    ) -> Result<Locked<'a>, OpError> {
        self.locked(epoch, node, node.state.write())
            .ok_or(OpError::Stale(node.ino))
    }

    /// A node that was locked in some other way; none if it has been reclaimed.
    pub(super) fn locked<'a>(
        &'a self,
        epoch: &'a Epoch,
        node: &Node,
        state: WriteGuard<'a, NodeState>,
    ) -> Option<Locked<'a>> {
        let ino = node.ino;
        (!state.reclaimed).then_some(Locked {
            view: self,
            epoch,
            ino,
            state,
        })
    }

    /// Makes a node what the catalog says, or gone where that cannot be read.
    fn read_again(&self, epoch: &Epoch, ino: Ino, state: &mut NodeState) {
        state.contents = None;
        state.directory = None;
        state.xattrs = None;
        match self.at_lineage(epoch, |at| self.core.catalog.inode(ino, at)) {
            Ok(Some((layer, Some(row)))) => {
                state.row = row;
                state.layer = layer;
            }
            Ok(_) => state.reclaimed = true,
            Err(error) => {
                tracing::error!(%error, %ino, "unusable until the store is opened again");
                state.reclaimed = true;
            }
        }
    }
}

impl Mutation<'_> {
    /// Write-locks a node that has not been reclaimed.
    pub(super) fn lock<'a>(&'a self, node: &'a Node) -> Result<Locked<'a>, OpError> {
        self.view.lock(&self.epoch, node)
    }

    /// A number for a new object of a file.
    pub(super) fn new_object(&self, ino: Ino) -> Result<ObjectId, crate::catalog::CatalogError> {
        let id = self.view.core.numbers.object()?;
        self.created.borrow_mut().push((ino, id));
        Ok(id)
    }
}

impl Drop for Mutation<'_> {
    fn drop(&mut self) {
        self.view.usage.release(self.reserved.get());
        if !std::thread::panicking() {
            return;
        }
        // What was made for a change that never came would be an orphan.
        let core = &self.view.core;
        for (ino, id) in self.created.take() {
            match core.catalog.has_object(id) {
                Ok(true) => {}
                Ok(false) => {
                    core.objects.forget(ino, id);
                    if let Err(error) = core.objects.remove(id) {
                        tracing::warn!(%error, %ino, "an unused object stays on disk");
                    }
                }
                Err(error) => tracing::warn!(%error, %ino, "an object may be unused"),
            }
        }
    }
}
