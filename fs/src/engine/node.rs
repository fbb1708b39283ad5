//! One inode in memory, and the cache of them.
//!
//! The cache is write-through: a node can be dropped at any time when nobody holds it, because
//! the catalog has everything it says. The exception is an unlinked inode that the kernel still
//! refers to: it stays, so that the last `forget` finds it and reclaims it.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::directory::Directory;
use crate::change::{InodeRow, Name};
use crate::contents::ExtentMap;
use crate::id::{Ino, LayerId};
use crate::lock::{RwLock, rank};

/// Where a node's bytes are, once that has been looked up.
#[derive(Clone, Debug)]
pub(super) enum Contents {
    /// Nothing written yet.
    Empty,
    /// Bytes in the catalog. Kept only while somebody writes.
    Inline(Arc<[u8]>),
    /// Extents over objects.
    Extents(ExtentMap),
}

/// What is known of an inode; guarded by the node's lock.
pub(super) struct NodeState {
    /// The visible version.
    pub(super) row: InodeRow,
    /// Layer that wrote it.
    pub(super) layer: LayerId,
    /// Contents, when loaded.
    pub(super) contents: Option<Contents>,
    /// Names in a directory, as far as known.
    pub(super) directory: Option<Box<Directory>>,
    /// Extended attributes, when loaded.
    pub(super) xattrs: Option<BTreeMap<Name, Arc<[u8]>>>,
    /// The inode has been reclaimed; whoever still holds the node sees it as stale.
    pub(super) reclaimed: bool,
}

/// An inode.
pub(super) struct Node {
    pub(super) ino: Ino,
    pub(super) state: RwLock<{ rank::NODE }, NodeState>,
    used: AtomicBool,
}

impl Node {
    pub(super) fn new(ino: Ino, row: InodeRow, layer: LayerId) -> Self {
        let state = NodeState {
            row,
            layer,
            contents: None,
            directory: None,
            xattrs: None,
            reclaimed: false,
        };
        Self {
            ino,
            state: RwLock::new(state),
            used: AtomicBool::new(true),
        }
    }
}

const SHARDS: usize = 64;
/// Nodes in one shard before those not used lately are dropped: 256 Ki nodes in all.
const SHARD_MAX: usize = 4096;

/// Nodes by inode number.
pub(super) struct NodeCache {
    shards: Vec<RwLock<{ rank::LEAF }, Shard>>,
}

#[derive(Default)]
struct Shard {
    nodes: HashMap<Ino, Arc<Node>>,
    /// How often nodes have left the shard.
    departures: u64,
}

/// What [`NodeCache::get`] found missing, for [`NodeCache::insert_loaded`].
pub(super) struct Missing {
    departures: u64,
}

impl NodeCache {
    pub(super) fn new() -> Self {
        Self {
            shards: (0..SHARDS).map(|_| RwLock::default()).collect(),
        }
    }

    fn shard(&self, ino: Ino) -> &RwLock<{ rank::LEAF }, Shard> {
        &self.shards[usize::try_from(ino.0 % SHARDS as u64).unwrap_or(0)]
    }

    pub(super) fn get(&self, ino: Ino) -> Result<Arc<Node>, Missing> {
        let shard = self.shard(ino).read();
        match shard.nodes.get(&ino) {
            Some(node) => {
                node.used.store(true, Ordering::Relaxed);
                Ok(node.clone())
            }
            None => Err(Missing {
                departures: shard.departures,
            }),
        }
    }

    /// Adds a node read from the catalog after it was found missing; another thread's comes
    /// first. `None` if nodes have left meanwhile: one of them may have been this inode's,
    /// changed after the row was read, so it has to be read again.
    pub(super) fn insert_loaded(&self, node: Node, missing: &Missing) -> Option<Arc<Node>> {
        let mut shard = self.shard(node.ino).write();
        (shard.departures == missing.departures).then(|| shard.insert(node))
    }

    /// Adds a node just made.
    pub(super) fn insert_new(&self, node: Node) {
        self.shard(node.ino).write().insert(node);
    }

    pub(super) fn remove(&self, ino: Ino) {
        let mut shard = self.shard(ino).write();
        shard.nodes.remove(&ino);
        shard.departures += 1;
    }
}

impl Shard {
    fn insert(&mut self, node: Node) -> Arc<Node> {
        if self.nodes.len() >= SHARD_MAX {
            self.sweep();
        }
        let node = self.nodes.entry(node.ino).or_insert_with(|| Arc::new(node));
        node.clone()
    }

    /// Drops the nodes not used since the last sweep, or half of all when every one was.
    ///
    /// Two nodes for one inode would be two locks for one thing, so only nodes that nobody else
    /// holds may go; with the shard locked for writing nobody can take hold of one meanwhile.
    fn sweep(&mut self) {
        self.departures += 1;
        for force in [false, true] {
            let mut excess = self.nodes.len().saturating_sub(SHARD_MAX / 2);
            self.nodes.retain(|_, node| {
                if excess == 0 || Arc::strong_count(node) > 1 {
                    return true;
                }
                let used = node.used.swap(false, Ordering::Relaxed);
                let state = node.state.try_read();
                let unlinked = state.is_none_or(|state| state.row.attr.nlink == 0);
                if unlinked || (used && !force) {
                    return true;
                }
                excess -= 1;
                false
            });
            if self.nodes.len() < SHARD_MAX {
                return;
            }
        }
    }
}
