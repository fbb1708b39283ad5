//! The layer engine: one [`View`] is a live workspace or a frozen snapshot as a file system.
//!
//! Locks, outermost first (docs/locks.md has the reasons): the gate (every mutation holds it for
//! reading, freeze and rollback for writing), the namespace mutex (every change of names), node
//! locks (directories before what they contain; only holders of the namespace mutex take two),
//! the catalog's writer.
//!
//! Invariants:
//! * A mutation computes a [`Change`], has the catalog apply it, and only then changes memory. If
//!   applying fails, memory still says what the catalog says.
//! * A node is *owned* if the live layer wrote its version. Only then do new versions replace old
//!   ones; otherwise they are written beside them. A frozen layer's rows are never touched.

mod acl;
mod attributes;
mod copy;
mod directory;
mod dispatch;
mod files;
mod freeze;
mod kernel;
mod land;
mod left;
mod listing;
mod locked;
mod names;
mod node;
mod quota;
mod reap;
mod reference;
mod rename;
mod xattrs;

use std::cell::{Cell, RefCell};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};

pub use self::freeze::FreezeError;
pub(crate) use self::freeze::{SnapshotSpec, finish, freeze_closed, now_ns};
pub use self::kernel::Attachment;
pub(crate) use self::kernel::Holder;
use self::kernel::{KernelRefs, Transports};
pub(crate) use self::land::{Swapped, land_closed};
use self::left::Left;
use self::locked::Locked;
use self::node::{Node, NodeCache, NodeState};
pub use self::quota::Quota;
use self::quota::{Reserved, Unnamed, Usage};
pub(crate) use self::reap::{reap_unlinked, remove, remove_doomed};
use crate::attr::Timestamp;
use crate::base::Held;
use crate::change::{Change, InodeRow, Name, Row};
use crate::core::Core;
use crate::dispatch::OpError;
use crate::fault;
use crate::id::{Ino, LayerId, ObjectId, SnapshotId, WorkspaceId};
use crate::layers::Lineage;
use crate::lock::{Mutex, ReadGuard, RwLock, rank};
use crate::space::Use;

/// Longest name of a file in bytes.
pub(crate) const FILE_NAME_MAX: usize = 255;

/// A workspace or snapshot as a file system. See [`crate::dispatch::Dispatch`] for what it does.
pub struct View {
    me: Weak<View>,
    core: Arc<Core>,
    target: ViewTarget,
    gate: RwLock<{ rank::GATE }, ()>,
    /// Set with the gate held: no mutation begins any more.
    closed: AtomicBool,
    namespace: Mutex<{ rank::NAMESPACE }, ()>,
    /// Replaced as a whole by a rollback, so that a look-up begun before it cannot put what it
    /// found into the picture after it.
    epoch: RwLock<{ rank::LEAF }, Arc<Epoch>>,
    kernel: KernelRefs,
    transports: Transports,
    left: Left,
    /// The directories of the host that it stands on stay open.
    held: Mutex<{ rank::LEAF }, Option<Arc<Held>>>,
    /// Mutations begun so far.
    begun: AtomicU64,
    /// Of the live layer.
    usage: Usage,
    /// The layer of a snapshot stays as it is, whatever becomes of the snapshot.
    _used: Option<Use>,
}

/// What a view shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ViewTarget {
    /// The live layer of a workspace.
    Live(WorkspaceId),
    /// A snapshot's frozen layer.
    Frozen(SnapshotId),
}

/// The layer a view shows and what is cached of it.
struct Epoch {
    layer: AtomicU64,
    /// The base over directories of the host that all of it stands on, if it does.
    host_base: Option<LayerId>,
    nodes: NodeCache,
}

impl Epoch {
    fn new(core: &Core, layer: LayerId) -> Arc<Self> {
        Arc::new(Self {
            layer: AtomicU64::new(layer.0),
            host_base: core.host_base(layer),
            nodes: NodeCache::new(),
        })
    }

    fn layer(&self) -> LayerId {
        LayerId(self.layer.load(Ordering::Acquire))
    }
}

impl View {
    pub(crate) fn new(core: Arc<Core>, target: ViewTarget, layer: LayerId) -> Arc<Self> {
        let used = match &target {
            ViewTarget::Live(_) => None,
            ViewTarget::Frozen(_) => Some(core.use_layer(layer)),
        };
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            epoch: RwLock::new(Epoch::new(&core, layer)),
            core,
            target,
            gate: RwLock::new(()),
            closed: AtomicBool::new(false),
            namespace: Mutex::new(()),
            kernel: KernelRefs::default(),
            transports: Transports::default(),
            left: Left::default(),
            held: Mutex::default(),
            begun: AtomicU64::new(0),
            usage: Usage::default(),
            _used: used,
        })
    }

    /// Keeps the directories of the host open that it stands on, instead of those before.
    pub(crate) fn hold(&self, held: Option<Arc<Held>>) {
        let before = std::mem::replace(&mut *self.held.lock(), held);
        drop(before);
    }

    /// Says what a workspace holds, before anything is done to it, and what it may.
    pub(crate) fn limit(&self, totals: (i64, i64), quota: Quota) {
        self.usage.start(totals);
        self.usage.set_quota(quota);
    }

    /// The workspace may hold that much from now on.
    pub(crate) fn set_quota(&self, quota: Quota) {
        self.usage.set_quota(quota);
    }

    /// What the view shows.
    #[must_use]
    pub fn target(&self) -> &ViewTarget {
        &self.target
    }

    /// Whether the view is a snapshot: nothing in it can be changed.
    #[must_use]
    pub fn is_frozen(&self) -> bool {
        matches!(self.target, ViewTarget::Frozen(_))
    }

    /// The layer the view shows now.
    #[must_use]
    pub fn layer(&self) -> LayerId {
        self.epoch().layer()
    }

    /// Whether a sandbox could write to what it shows now: set-id bits and device nodes in it are not to
    /// be honoured then.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn is_sandboxed(&self) -> Result<bool, crate::CatalogError> {
        self.core.catalog.is_sandboxed(self.layer())
    }

    fn epoch(&self) -> Arc<Epoch> {
        self.epoch.read().clone()
    }

    /// Enters a mutation: the live layer cannot change before it is dropped.
    fn mutate(&self) -> Result<Mutation<'_>, OpError> {
        if self.is_frozen() {
            return Err(OpError::ReadOnly);
        }
        let gate = self.gate.read();
        if self.closed.load(Ordering::Acquire) {
            return Err(OpError::Closed);
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        let epoch = self.epoch();
        Ok(Mutation {
            view: self,
            layer: epoch.layer(),
            epoch,
            now: Timestamp::now(),
            moving: RefCell::default(),
            created: RefCell::default(),
            reserved: Cell::default(),
            unnamed: RefCell::default(),
            _gate: gate,
        })
    }

    /// Returns when every mutation that has begun has ended.
    pub(crate) fn wait_for_mutations(&self) {
        drop(self.gate.write());
    }

    /// Runs a query at the lineage of the epoch's layer.
    fn at_lineage<T>(
        &self,
        epoch: &Epoch,
        query: impl FnOnce(Lineage<'_>) -> Result<T, crate::catalog::CatalogError>,
    ) -> Result<T, OpError> {
        let layer = epoch.layer();
        let lineage = self.core.layers.known(layer)?;
        Ok(query(lineage)?)
    }

    /// The node of an inode that exists in this view.
    fn node(&self, epoch: &Epoch, ino: Ino) -> Result<Arc<Node>, OpError> {
        loop {
            let missing = match epoch.nodes.get(ino) {
                Ok(node) => return Ok(node),
                Err(missing) => missing,
            };
            let version = self.at_lineage(epoch, |at| self.core.catalog.inode(ino, at))?;
            let Some((layer, Some(row))) = version else {
                return Err(OpError::Stale(ino));
            };
            if let Some(node) = epoch
                .nodes
                .insert_loaded(Node::new(ino, row, layer), &missing)
            {
                return Ok(node);
            }
        }
    }
}

/// A mutation under way.
struct Mutation<'a> {
    view: &'a View,
    epoch: Arc<Epoch>,
    /// The live layer.
    layer: LayerId,
    /// One time for everything the mutation stamps.
    now: Timestamp,
    /// Held once bytes were moved, until the change that says so is committed.
    moving: RefCell<Option<ReadGuard<'a, u64>>>,
    /// Objects made for the change.
    created: RefCell<Vec<(Ino, ObjectId)>>,
    /// What it may add to what the workspace holds.
    reserved: Cell<Reserved>,
    /// What counts though it has no name, or no more, once it is committed.
    unnamed: RefCell<Unnamed>,
    _gate: ReadGuard<'a, ()>,
}

impl Mutation<'_> {
    fn node(&self, ino: Ino) -> Result<Arc<Node>, OpError> {
        self.view.node(&self.epoch, ino)
    }

    fn apply(&self, change: &Change) -> Result<(), OpError> {
        fault::point("apply");
        self.view.core.catalog.apply(change)?;
        self.view.usage.follow(change, self.layer);
        // It counts now, and once.
        self.view.usage.release(self.reserved.take());
        self.view.usage.note_unnamed(self.unnamed.take());
        fault::point("done");
        Ok(())
    }

    /// An object got bytes that were elsewhere before. Called after they were written and before
    /// the change is committed.
    fn inherited(&self, object: ObjectId) {
        let mut moving = self.moving.borrow_mut();
        if moving.is_none() {
            *moving = Some(self.view.core.moving.read());
        }
        self.view.core.objects.mark_inherited(object);
    }

    /// The row that writes a version of an inode in the live layer.
    fn put(&self, ino: Ino, row: InodeRow) -> Row {
        Row::PutInode {
            ino,
            layer: self.layer,
            row: Some(row),
        }
    }

    /// Adds the row for what a new version of an inode does to the layer's totals. They count what
    /// has a name: a removed file that is still open here is not in a fork either. Of what began on the
    /// host only what it has grown by counts.
    fn count(
        &self,
        ino: Ino,
        change: &mut Change,
        old: Option<&InodeRow>,
        new: &InodeRow,
    ) -> Result<(), OpError> {
        let named = |row: &InodeRow| row.attr.nlink > 0;
        let same = |old: &InodeRow| {
            (old.attr.blocks, named(old)) == (new.attr.blocks, named(new)) && named(new)
        };
        if old.is_some_and(same) {
            return Ok(());
        }
        let began = self.began(ino, new)?;
        let weight = |row: &InodeRow| weight(row, began, self.is_of_host(row));
        let usage = |row: Option<&InodeRow>| row.filter(|row| named(row)).map_or((0, 0), weight);
        if !named(new) || old.is_some_and(|old| !named(old)) {
            let unnamed = (!named(new)).then(|| weight(new));
            self.unnamed.borrow_mut().push((ino, unnamed));
        }
        let (old, new) = (usage(old), usage(Some(new)));
        if old != new {
            change.push(Row::AddUsage {
                layer: self.layer,
                bytes: new.0.saturating_sub(old.0),
                inodes: new.1 - old.1,
            });
        }
        Ok(())
    }

    /// Whether an inode began in a directory of the host.
    fn is_of_host(&self, row: &InodeRow) -> bool {
        self.epoch.host_base == Some(row.born)
    }

    /// Blocks that an inode had when it began, if that was on the host.
    fn began(&self, ino: Ino, row: &InodeRow) -> Result<u64, OpError> {
        if !self.is_of_host(row) {
            return Ok(0);
        }
        let began = self.view.core.catalog.inode_at(ino, row.born)?;
        Ok(began.map_or(0, |row| row.attr.blocks))
    }

    /// After a commit: the node's version is the live layer's.
    fn wrote(&self, state: &mut NodeState, row: InodeRow) {
        state.row = row;
        state.layer = self.layer;
    }
}

/// What an inode counts for: bytes and inodes. `began`: blocks that it had on the host.
pub(crate) fn weight(row: &InodeRow, began: u64, of_host: bool) -> (i64, i64) {
    let blocks = i64::try_from(row.attr.blocks.saturating_sub(began)).unwrap_or(i64::MAX);
    (blocks.saturating_mul(512), i64::from(!of_host))
}

/// Checks a name that a client or guest sent.
fn checked_name(name: &[u8]) -> Result<Name, OpError> {
    if name.len() > FILE_NAME_MAX {
        return Err(OpError::NameTooLong { len: name.len() });
    }
    let bad = name.is_empty()
        || name == b"."
        || name == b".."
        || name.iter().any(|&byte| byte == b'/' || byte == 0);
    if bad {
        Err(OpError::Invalid { what: "file name" })
    } else {
        Ok(Name::from(name))
    }
}
