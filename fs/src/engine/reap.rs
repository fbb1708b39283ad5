//! Reclaiming inodes that have no name and that nobody refers to any more.
//!
//! An unlinked inode stays a row with no links until its last lookup reference is returned; a
//! crash in between leaves such rows behind, which opening the store finds by an index.
//!
//! A layer that is frozen meanwhile keeps the row for good, and a fork of it sees the inode, by its number
//! alone: a machine that goes on there holds it again ([`Dispatch::reference`](crate::dispatch::Dispatch)).
//! So opening a view reclaims nothing. Nobody holds anything when one is closed: then whatever is
//! unlinked and visible goes, in whichever layer it was unlinked.

use std::collections::BTreeSet;
use std::sync::atomic::Ordering;
use std::time::Duration;

#[cfg(debug_assertions)]
use super::ViewTarget;
use super::kernel::Holder;
use super::node::Node;
use super::{Mutation, View};
use crate::catalog::CatalogError;
use crate::change::{Change, ContentKind, InodeRow, Row};
use crate::core::{Chore, Core};
use crate::dispatch::OpError;
use crate::id::{Ino, LayerId, ObjectId};

/// How long reclaiming waits for somebody who is at a removed inode, before it is put off.
const PATIENCE: Duration = Duration::from_millis(1);

/// Inodes reclaimed in one transaction when a view is closed.
const AT_ONCE: usize = 32;

impl View {
    pub(crate) fn do_forget(&self, holder: Holder, ino: Ino, count: u64) {
        if !self.kernel.forget(holder, ino, count) || self.is_frozen() {
            return;
        }
        // Unlinked nodes are never dropped from the cache, but a landing begins another.
        if let Ok(node) = self.epoch().nodes.get(ino) {
            self.reap_later(&node);
        } else if self.usage.is_unnamed(ino) {
            self.usage.forget(ino);
            self.reap_again(ino);
        }
    }

    pub(super) fn do_forget_all(&self) {
        for ino in self.kernel.clear() {
            if !self.is_frozen()
                && let Ok(node) = self.epoch().nodes.get(ino)
            {
                self.reap_later(&node);
            }
        }
    }

    fn reap_later(&self, node: &Node) {
        if node.state.read().row.attr.nlink == 0 {
            self.usage.forget(node.ino);
            self.reap_again(node.ino);
        }
    }

    fn reap_again(&self, ino: Ino) {
        if let Some(me) = self.me.upgrade() {
            self.core.later(Chore::Reap(me, ino));
        }
    }

    /// Ends the view for good: changes that are under way are waited for, later ones fail, and what
    /// is unlinked is reclaimed, what it has inherited as well. The caller holds the workspace's control mutex and sees to it that
    /// nobody opens another view of the workspace, or freezes its layer, before this returns.
    pub(crate) fn close(&self) -> Result<(), OpError> {
        let layer = {
            let _gate = self.gate.write();
            self.closed.store(true, Ordering::Release);
            self.layer()
        };
        self.kernel.clear_all();
        #[cfg(debug_assertions)]
        if let ViewTarget::Live(_) = &self.target {
            let (counted, totals) = (self.usage.totals(), self.core.catalog.totals(layer)?);
            assert_eq!(counted, totals, "what {layer} holds was counted wrongly");
        }
        let inos = self.core.catalog.unlinked_up_to(layer)?;
        let lineage = self.core.layers.known(layer)?;
        let visible = inos.into_iter().filter(|(of, _)| lineage.contains(*of));
        reap_all(&self.core, layer, visible.map(|(_, ino)| ino).collect())
    }

    /// Reclaims those of the inodes that are unlinked and unreferenced. Called by the background
    /// thread, which then [`remove`]s the objects that are returned.
    pub(crate) fn reap(&self, inos: &[Ino]) -> Result<Vec<(Ino, ObjectId)>, OpError> {
        let mutation = match self.mutate() {
            // Closing has seen to it.
            Err(OpError::Closed) => return Ok(Vec::new()),
            other => other?,
        };
        // Asked for twice, an inode would be locked twice.
        let inos: BTreeSet<Ino> = inos.iter().copied().collect();
        let nodes: Vec<_> = inos
            .iter()
            .filter_map(|&ino| mutation.node(ino).ok())
            .collect();
        let mut change = Change::new();
        let mut locked = Vec::new();
        let mut objects = Vec::new();
        for node in &nodes {
            // Several nodes are locked here in no order that others keep: waiting without end could
            // be for a rename between two removed directories that waits for this.
            let Some(state) = node.state.try_write_for(PATIENCE) else {
                self.reap_again(node.ino);
                continue;
            };
            let Some(state) = self.locked(&mutation.epoch, node, state) else {
                continue;
            };
            // References are taken before the node is looked at, and counted here under its lock:
            // one of the two sides sees the other.
            if state.row.attr.nlink != 0 || self.kernel.is_referenced(node.ino) {
                continue;
            }
            let (ino, layer) = (node.ino, mutation.layer);
            let of = reclaim(&self.core, ino, &state.row, layer, &mut change)?;
            objects.extend(of.into_iter().map(|id| (ino, id)));
            locked.push((node.ino, state));
        }
        mutation.apply(&change)?;
        for (ino, mut state) in locked {
            state.reclaimed = true;
            drop(state);
            mutation.epoch.nodes.remove(ino);
        }
        drop(mutation);
        Ok(objects)
    }
}

impl Mutation<'_> {
    /// After a name was removed through a transport that holds no reference.
    pub(super) fn reap_if_unreferenced(&self, node: &Node) {
        if !self.view.kernel.is_referenced(node.ino) {
            self.view.reap_later(node);
        }
    }
}

/// Adds the rows that make an unlinked inode disappear from a live layer; returns its objects.
fn reclaim(
    core: &Core,
    ino: Ino,
    row: &InodeRow,
    layer: LayerId,
    change: &mut Change,
) -> Result<Vec<ObjectId>, CatalogError> {
    change.push(if row.born == layer {
        Row::DropInode { ino, layer }
    } else {
        Row::PutInode {
            ino,
            layer,
            row: None,
        }
    });
    let mut objects = Vec::new();
    match row.content {
        ContentKind::Empty | ContentKind::Host => {}
        ContentKind::Inline => change.push(Row::DropInline { ino, layer }),
        ContentKind::Extents => {
            objects = core.catalog.objects_of(ino, layer)?;
            change.push(Row::DropExtents { ino, layer });
            for &id in &objects {
                change.push(Row::DoomObject { id });
            }
        }
    }
    if row.has_xattr {
        change.push(Row::DropXattrs { ino, layer });
    }
    Ok(objects)
}

/// Removes the files of doomed objects, once it is durable that nothing refers to them: a power
/// failure that took that back would leave a name without its bytes. What fails is tried again when
/// the store opens.
pub(crate) fn remove(core: &Core, objects: Vec<(Ino, ObjectId)>) -> Result<(), OpError> {
    if objects.is_empty() {
        return Ok(());
    }
    core.sync_catalog()?;
    let mut change = Change::new();
    for (ino, id) in objects {
        core.objects.forget(ino, id);
        core.objects.remove(id)?;
        change.push(Row::ForgetDoomed { id });
    }
    Ok(core.catalog.apply(&change)?)
}

/// Reclaims what a live layer that nobody has open says itself to be unlinked. What it has inherited stays: it
/// may be a fork that a machine is still to go on in.
pub(crate) fn reap_unlinked(core: &Core, layer: LayerId) -> Result<(), OpError> {
    let inos = core.catalog.unlinked(layer)?;
    reap_all(core, layer, inos.into_iter().collect())
}

/// Reclaims those of some inodes that are unlinked in a live layer that nobody has open.
fn reap_all(core: &Core, layer: LayerId, inos: BTreeSet<Ino>) -> Result<(), OpError> {
    let Some(at) = core.layers.lineage(layer) else {
        return Ok(());
    };
    let inos: Vec<Ino> = inos.into_iter().collect();
    let mut given_up = Vec::new();
    for some in inos.chunks(AT_ONCE) {
        let mut change = Change::new();
        for &ino in some {
            let Some((_, Some(row))) = core.catalog.inode(ino, at)? else {
                continue;
            };
            if row.attr.nlink == 0 {
                let objects = reclaim(core, ino, &row, layer, &mut change)?;
                given_up.extend(objects.into_iter().map(|id| (ino, id)));
            }
        }
        if !change.is_empty() {
            core.catalog.apply(&change)?;
        }
    }
    remove(core, given_up)
}

/// When the store opens: removes files of objects that were given up.
pub(crate) fn remove_doomed(core: &Core) -> Result<(), OpError> {
    let doomed = core.catalog.doomed_objects()?;
    remove(core, doomed.into_iter().map(|id| (Ino(0), id)).collect())
}
