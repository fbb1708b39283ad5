//! Every mutation of a store as a value.
//!
//! The engine computes a [`Change`] from what it has in memory, the catalog applies it whole or
//! not at all ([`crate::catalog::Catalog::apply`]), and only then does memory follow. That seam is
//! where crash tests and model tests attach, and where a journal can stand later.

use std::sync::Arc;

use serde::Serialize;

use crate::attr::{Attr, Timestamp};
use crate::id::{Ino, LayerId, ObjectId, SnapshotId, WorkspaceId};
use crate::image::ImageState;
use crate::sandbox::SandboxRecord;

/// A file name or attribute name: bytes, shared between caches and changes.
pub type Name = Arc<[u8]>;

/// A version of a key and the layer that wrote it; no value says that the key is gone there.
pub(crate) type Version<T> = (LayerId, Option<T>);

/// End of an extent that reaches as far as a file can grow, in blocks.
pub const BLOCK_END: u64 = i64::MAX as u64;

/// Where a file's contents are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum ContentKind {
    /// Nothing was ever written: all zeros up to the size.
    Empty = 0,
    /// Bytes in the catalog (small files and symbolic links).
    Inline = 1,
    /// Extents over objects and holes.
    Extents = 2,
    /// Of a directory: its names are those of a directory of the host, as far as they were taken
    /// in, and of the layers above.
    Host = 3,
}

/// One version of an inode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InodeRow {
    /// Attributes.
    pub attr: Attr,
    /// Layer in which the inode was made: a version in that layer shadows none.
    pub born: LayerId,
    /// A directory's parent; [`Ino`] 0 for everything else.
    pub parent: Ino,
    /// Where the contents are.
    pub content: ContentKind,
    /// Whether the inode may have extended attributes; false saves a query.
    pub has_xattr: bool,
}

/// What a directory entry points to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EntryRow {
    /// Inode number.
    pub ino: Ino,
    /// Kind of file, for `d_type`.
    pub kind: crate::attr::FileKind,
    /// Position in the directory, unique in it and stable for the entry's life.
    pub cookie: u64,
    /// Whether an ancestor layer has a version of this name, so that removing it takes a row.
    pub shadows: bool,
}

/// A file or directory of the host that an inode of a base layer stands for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostRow {
    /// The directory it is in; [`Ino`] 0 for a directory that was named when the base was made.
    pub parent: Ino,
    /// Its name there; of one that was named, its absolute path.
    pub name: Name,
    /// What it was when it was seen.
    pub seen: Seen,
    /// How far it was taken in.
    pub state: HostState,
    /// Whether it was found to be another than was seen.
    pub changed: bool,
}

/// What tells whether a file of the host is still the one that was seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Device number, valid until the host is started again.
    pub dev: u64,
    /// Inode number on the host.
    pub inode: u64,
    /// Hard links.
    pub links: u64,
    /// Size in bytes.
    pub size: u64,
    /// Last change of contents.
    pub mtime: Timestamp,
    /// Last change of contents or attributes.
    pub ctime: Timestamp,
    /// Birth, where the file system tells: inode numbers are used again. Else the epoch.
    pub btime: Timestamp,
}

impl Seen {
    /// Of what could not be looked at.
    pub(crate) const NOTHING: Self = {
        let unknown = Timestamp { secs: 0, nanos: 0 };
        Self {
            dev: 0,
            inode: 0,
            links: 1,
            size: 0,
            mtime: unknown,
            ctime: unknown,
            btime: unknown,
        }
    };
}

/// How far a file or directory of the host was taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum HostState {
    /// A file whose contents are on the host only; a directory whose names were not read yet.
    InPlace = 0,
    /// A file whose contents are in the store; a directory whose names are in the catalog.
    Taken = 1,
}

/// How far directories of the host were taken in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[repr(u8)]
pub enum BaseState {
    /// As far as somebody looked; contents are on the host.
    InPlace = 0,
    /// Everything is in the store.
    Adopted = 1,
    /// Somebody asked for that, and it is not done yet.
    Adopting = 2,
}

impl BaseState {
    /// Reads the catalog's number.
    pub(crate) fn from_code(code: u64) -> Option<Self> {
        Some(match code {
            0 => Self::InPlace,
            1 => Self::Adopted,
            2 => Self::Adopting,
            _ => return None,
        })
    }
}

/// Something that happened to a workspace and that no other row tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EventRow {
    /// Whose.
    pub workspace: WorkspaceId,
    /// Nanoseconds since the epoch.
    pub at: i64,
    /// What: `rollback`, `land` (its changes were landed elsewhere), `landed` (it received some),
    /// `undo`, `adopt`.
    pub kind: &'static str,
    /// The snapshot it was about.
    pub snapshot: Option<SnapshotId>,
    /// The other workspace it was about.
    pub other: Option<WorkspaceId>,
    /// Of a landing: the layer that received it.
    pub layer: Option<LayerId>,
    /// Of a landing: the layer whose state landed.
    pub source: Option<LayerId>,
    /// Of a landing: everything was landed, not some paths.
    pub whole: bool,
    /// In words.
    pub message: Option<String>,
}

impl EventRow {
    /// An event that was about nothing else.
    #[must_use]
    pub fn new(workspace: WorkspaceId, at: i64, kind: &'static str) -> Self {
        Self {
            workspace,
            at,
            kind,
            snapshot: None,
            other: None,
            layer: None,
            source: None,
            whole: false,
            message: None,
        }
    }
}

/// A snapshot's row.
#[derive(Clone, Debug)]
pub struct SnapshotRow {
    /// Id.
    pub id: SnapshotId,
    /// The frozen layer.
    pub layer: LayerId,
    /// Workspace it was taken of.
    pub workspace: WorkspaceId,
    /// Name, if given.
    pub name: Option<String>,
    /// Message, if given.
    pub message: Option<String>,
    /// Why Floe took it by itself: `fork`, `rollback` or `land`.
    pub automatic: Option<&'static str>,
    /// Nanoseconds since the epoch.
    pub created_at: i64,
    /// Microseconds the snapshot took.
    pub elapsed_us: u64,
    /// Whether the caller asked to wait for the disk.
    pub durable: bool,
    /// When it is deleted, in nanoseconds since the epoch; none: never by itself.
    pub expires_at: Option<i64>,
    /// Nothing deletes it until that is taken back.
    pub protected: bool,
    /// How far the memory of a machine is that is to belong to it, if any is.
    pub image: Option<ImageState>,
    /// Labels.
    pub labels: Vec<(String, String)>,
}

/// One row operation.
#[derive(Clone, Debug)]
pub enum Row {
    /// Writes a version of an inode; `None` says it is gone at this layer.
    PutInode {
        ino: Ino,
        layer: LayerId,
        row: Option<InodeRow>,
    },
    /// Forgets the layer's version of an inode.
    DropInode { ino: Ino, layer: LayerId },
    /// Writes a version of a name; `None` says it is gone at this layer.
    PutEntry {
        parent: Ino,
        name: Name,
        layer: LayerId,
        entry: Option<EntryRow>,
    },
    /// Forgets the layer's version of a name.
    DropEntry {
        parent: Ino,
        name: Name,
        layer: LayerId,
    },
    /// Writes a version of an extended attribute; `None` says it is gone at this layer.
    PutXattr {
        ino: Ino,
        name: Name,
        layer: LayerId,
        value: Option<Arc<[u8]>>,
    },
    /// Forgets all the layer's versions of an inode's extended attributes.
    DropXattrs { ino: Ino, layer: LayerId },
    /// Writes inline contents.
    PutInline {
        ino: Ino,
        layer: LayerId,
        data: Arc<[u8]>,
    },
    /// Forgets the layer's inline contents.
    DropInline { ino: Ino, layer: LayerId },
    /// Writes an extent `[start, end)` in blocks; no object means a hole.
    PutExtent {
        ino: Ino,
        layer: LayerId,
        start: u64,
        end: u64,
        object: Option<ObjectId>,
    },
    /// Forgets the layer's extent that begins at `start`.
    DropExtent {
        ino: Ino,
        layer: LayerId,
        start: u64,
    },
    /// Forgets all the layer's extents of an inode.
    DropExtents { ino: Ino, layer: LayerId },
    /// Records an object that exists on disk and belongs to the layer's version of the inode.
    AddObject {
        id: ObjectId,
        ino: Ino,
        layer: LayerId,
    },
    /// Gives an object up: its file may be removed once this change is committed.
    DoomObject { id: ObjectId },
    /// A doomed object's file is gone.
    ForgetDoomed { id: ObjectId },
    /// Adds to a layer's totals: allocated bytes and inodes visible in it.
    AddUsage {
        layer: LayerId,
        bytes: i64,
        inodes: i64,
    },
    /// Raises the mark below which inode numbers and cookies may have been handed out.
    ReserveInos { below: u64 },
    /// Raises the mark below which object ids may have been handed out.
    ReserveObjects { below: u64 },
    /// Adds a live layer, with its parent's totals, to a workspace that may be added later.
    AddLayer {
        id: LayerId,
        parent: Option<LayerId>,
        workspace: WorkspaceId,
        created_at: i64,
    },
    /// Freezes a live layer.
    FreezeLayer { id: LayerId },
    /// A sandbox could write to what is in a layer, or what is in it comes from one that could.
    MarkSandboxed { id: LayerId },
    /// Gives up a layer that nothing can reach, and takes it off what it stands on.
    DoomLayer { id: LayerId },
    /// A frozen layer is no snapshot any more.
    LeaveLayer { id: LayerId },
    /// Forgets a layer that has no rows any more; what stands on it stands on its parent then.
    DropLayer { id: LayerId, child: Option<LayerId> },
    /// Hands everything that a layer itself has of an inode, but its names, to another layer.
    MoveInode {
        ino: Ino,
        from: LayerId,
        to: LayerId,
    },
    /// Hands a layer's version of a name to another layer.
    MoveEntry {
        parent: Ino,
        name: Name,
        from: LayerId,
        to: LayerId,
    },
    /// Forgets one of the layer's versions of an extended attribute.
    DropXattr {
        ino: Ino,
        name: Name,
        layer: LayerId,
    },
    /// Deletes a snapshot, with its labels and remembered mounts.
    DropSnapshot { id: SnapshotId },
    /// Says what image of a machine's memory belongs to a snapshot.
    SetImage {
        id: SnapshotId,
        state: ImageState,
        bytes: u64,
    },
    /// Adds a workspace on a layer that is its own already.
    AddWorkspace {
        id: WorkspaceId,
        name: String,
        layer: LayerId,
        created_at: i64,
        forked_from: Option<SnapshotId>,
        /// Whose that snapshot is.
        origin: Option<WorkspaceId>,
    },
    /// Moves a workspace to another live layer, which is its own already.
    MoveWorkspace { id: WorkspaceId, layer: LayerId },
    /// Renames a workspace.
    RenameWorkspace { id: WorkspaceId, name: String },
    /// Deletes a workspace, with its remembered mounts; its snapshots keep its name.
    DeleteWorkspace { id: WorkspaceId, deleted_at: i64 },
    /// Says how much a workspace may hold.
    SetQuota {
        workspace: WorkspaceId,
        bytes: Option<u64>,
        inodes: Option<u64>,
    },
    /// Adds a snapshot.
    AddSnapshot(Box<SnapshotRow>),
    /// Corrects how long a snapshot took, known only after its commit.
    SetElapsed { id: SnapshotId, elapsed_us: u64 },
    /// Remembers a mount, so that a new daemon can restore it.
    PutMount {
        dir: Vec<u8>,
        workspace: Option<WorkspaceId>,
        snapshot: Option<SnapshotId>,
        /// Of a workspace: whether only to look at.
        read_only: bool,
    },
    /// Forgets the mount of this there; one of something else stays.
    DropMount {
        dir: Vec<u8>,
        workspace: Option<WorkspaceId>,
        snapshot: Option<SnapshotId>,
    },
    /// Forgets every mount.
    DropMounts,
    /// Remembers where the store is.
    SetPlace { place: String },
    /// Makes a layer one over directories of the host.
    AddBase {
        layer: LayerId,
        boot: String,
        exclude: String,
        /// Only what everybody may read is taken in.
        public: bool,
    },
    /// Says how far directories of the host were taken in.
    SetBaseState { layer: LayerId, state: BaseState },
    /// Writes what an inode of a base layer stands for.
    PutHost {
        ino: Ino,
        layer: LayerId,
        host: HostRow,
    },
    /// Says how far a file or directory of the host was taken in.
    SetHostState {
        ino: Ino,
        layer: LayerId,
        state: HostState,
    },
    /// Remembers that a file or directory of the host is not what it was.
    SetHostChanged { ino: Ino, layer: LayerId },
    /// Forgets what an inode of a base layer stands for.
    DropHost { ino: Ino, layer: LayerId },
    /// Forgets every name of a directory that the layer wrote.
    DropEntries { parent: Ino, layer: LayerId },
    /// Remembers something that happened to a workspace.
    AddEvent(Box<EventRow>),
    /// Begins a landing in directories of the host.
    AddLanding {
        id: u64,
        workspace: WorkspaceId,
        at: i64,
        state: u8,
        plan: String,
    },
    /// A landing goes on; its plan stays if there is no other.
    SetLanding {
        id: u64,
        state: u8,
        plan: Option<String>,
    },
    /// Forgets a landing.
    DropLanding { id: u64 },
    /// Sets how long snapshots of a workspace are kept; of none: of each without such a row.
    SetRetention {
        workspace: Option<WorkspaceId>,
        automatic: bool,
        keep_last: Option<u64>,
        /// Nanoseconds.
        keep_within: Option<i64>,
    },
    /// Forgets that.
    DropRetention {
        workspace: Option<WorkspaceId>,
        automatic: bool,
    },
    /// Gives a snapshot another name, or none.
    RenameSnapshot {
        id: SnapshotId,
        name: Option<String>,
    },
    /// Gives a snapshot another message, or none.
    SetMessage {
        id: SnapshotId,
        message: Option<String>,
    },
    /// Says when a snapshot is deleted, or that it is not by itself.
    SetExpiry {
        id: SnapshotId,
        expires_at: Option<i64>,
    },
    /// Protects a snapshot, or takes that back.
    ProtectSnapshot { id: SnapshotId, protected: bool },
    /// Gives a snapshot a label.
    PutLabel {
        snapshot: SnapshotId,
        key: String,
        value: String,
    },
    /// Takes a label from a snapshot.
    DropLabel { snapshot: SnapshotId, key: String },
    /// Remembers what a frozen object holds, if it was not given up meanwhile.
    PutChecksum {
        object: ObjectId,
        digest: i64,
        blocks: Vec<u8>,
    },
    /// Sets a setting of the store; none takes it back.
    PutSetting {
        key: &'static str,
        value: Option<i64>,
    },
    /// A block of an object cannot be read any more; see [`crate::contents::WHOLE`].
    AddDamaged { object: ObjectId, block: u64 },
    /// It holds something new, or is what it was again.
    DropDamaged { object: ObjectId, block: u64 },
    /// Forgets what an object hashed to: it is to be hashed again.
    DropChecksum { object: ObjectId },
    /// Corrects a layer's totals.
    SetUsage {
        layer: LayerId,
        bytes: Option<i64>,
        inodes: Option<i64>,
    },
    /// Every version of a name says that there may be older ones.
    MarkShadows { parent: Ino, name: Name },
    /// Forgets labels, mounts, rules, sandboxes and templates of what does not exist.
    DropDangling,
    /// Writes all that is known of a sandbox.
    PutSandbox(Box<SandboxRecord>),
    /// Forgets a sandbox that was deleted.
    DropSandbox { id: String },
    /// Gives a snapshot the name of a template, which another may have had.
    PutTemplate {
        name: String,
        snapshot: SnapshotId,
        updated_at: i64,
        recipe: Option<String>,
    },
    /// Takes the name of a template from whatever has it.
    DropTemplate { name: String },
}

/// Row operations that take effect together.
#[derive(Clone, Debug, Default)]
pub struct Change {
    rows: Vec<Row>,
}

impl Change {
    /// An empty change.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one row operation.
    pub fn push(&mut self, row: Row) {
        self.rows.push(row);
    }

    /// Adds the row operations of another change behind its own.
    pub fn append(&mut self, other: Self) {
        self.rows.extend(other.rows);
    }

    /// The row operations in order.
    #[must_use]
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// Whether there is nothing to apply.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Number of row operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rows.len()
    }
}

impl From<Row> for Change {
    fn from(row: Row) -> Self {
        Self { rows: vec![row] }
    }
}
