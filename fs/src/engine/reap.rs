//! Reclaiming inodes that have no name and that nobody refers to any more.
//!
//! An unlinked inode stays a row with no links until its last lookup reference is returned; a
//! crash in between leaves such rows behind, which opening the store finds by an index.

use super::node::Node;
use super::{Mutation, View};
use crate::catalog::CatalogError;
use crate::change::{Change, ContentKind, InodeRow, Row};
use crate::core::{Chore, Core};
use crate::dispatch::OpError;
use crate::id::{Ino, LayerId, ObjectId};

impl View {
    pub(super) fn do_forget(&self, ino: Ino, count: u64) {
        if !self.kernel.forget(ino, count) || self.is_frozen() {
            return;
        }
        // Unlinked nodes are never dropped from the cache, so looking there is enough.
        if let Ok(node) = self.epoch().nodes.get(ino) {
            self.reap_later(&node);
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
        if node.state.read().row.attr.nlink == 0
            && let Some(me) = self.me.upgrade()
        {
            self.core.later(Chore::Reap(me, node.ino));
        }
    }

    /// Reclaims those of the inodes that are unlinked and unreferenced. Called by the background
    /// thread.
    pub(crate) fn reap(&self, inos: &[Ino]) -> Result<(), OpError> {
        let mutation = self.mutate()?;
        // An inode may be queued twice (forgotten, looked up again, forgotten again), and its lock
        // must not be taken twice.
        let inos: std::collections::BTreeSet<Ino> = inos.iter().copied().collect();
        let nodes: Vec<_> = inos
            .iter()
            .filter_map(|&ino| mutation.epoch.nodes.get(ino).ok())
            .collect();
        let mut change = Change::new();
        let mut locked = Vec::new();
        let mut objects = Vec::new();
        for node in &nodes {
            let state = node.state.write();
            // References are taken before the node is looked at, and counted here under its lock:
            // one of the two sides sees the other.
            if state.reclaimed || state.row.attr.nlink != 0 || self.kernel.is_referenced(node.ino) {
                continue;
            }
            objects.extend(reclaim(
                &self.core,
                node.ino,
                &state.row,
                mutation.layer,
                &mut change,
            )?);
            locked.push((node.ino, state));
        }
        mutation.apply(&change)?;
        for (ino, mut state) in locked {
            state.reclaimed = true;
            mutation.epoch.nodes.remove(ino);
        }
        drop(mutation);
        remove(&self.core, objects)
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
        ContentKind::Empty => {}
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

/// Removes the files of doomed objects. What fails is tried again when the store opens.
fn remove(core: &Core, objects: Vec<ObjectId>) -> Result<(), OpError> {
    let mut change = Change::new();
    for id in objects {
        core.objects.remove(id)?;
        change.push(Row::ForgetDoomed { id });
    }
    Ok(core.catalog.apply(&change)?)
}

/// When the store opens: reclaims what an interrupted session left unlinked in a live layer.
pub(crate) fn reap_unlinked(core: &Core, layer: LayerId) -> Result<(), OpError> {
    for ino in core.catalog.unlinked(layer)? {
        let mut change = Change::new();
        let Some(at) = core.layers.lineage(layer) else {
            continue;
        };
        if let Some((_, Some(row))) = core.catalog.inode(ino, at)? {
            let objects = reclaim(core, ino, &row, layer, &mut change)?;
            core.catalog.apply(&change)?;
            remove(core, objects)?;
        }
    }
    Ok(())
}

/// When the store opens: removes files of objects that were given up.
pub(crate) fn remove_doomed(core: &Core) -> Result<(), OpError> {
    remove(core, core.catalog.doomed_objects()?)
}
