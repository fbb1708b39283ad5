//! What the store tells about itself. Serialised as the JSON of the command line and the API:
//! fields are only ever added.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::SnapshotCursor;
use super::base::BaseDir;
use crate::catalog::{SnapshotRecord, WorkspaceRecord};
pub use crate::change::BaseState;
use crate::engine::Quota;
use crate::id::{LayerId, SnapshotId, SnapshotName, WorkspaceId};
use crate::image::ImageState;

/// Identity and counts of a store.
#[derive(Clone, Debug, Serialize)]
pub struct StoreInfo {
    /// Random id, 16 hexadecimal digits.
    pub id: String,
    /// Where it is. Serialised as text; what is not Unicode in it is replaced.
    #[serde(serialize_with = "as_text")]
    pub dir: PathBuf,
    /// Format of the catalog.
    pub format: u32,
    /// When it was made, RFC 3339.
    pub created_at: String,
    /// Workspaces.
    pub workspaces: u64,
    /// Snapshots.
    pub snapshots: u64,
    /// Layers, live and frozen.
    pub layers: u64,
    /// Files in `objects/`.
    pub objects: u64,
    /// Objects whose contents were hashed: those of layers that are not live, in time.
    pub hashed: u64,
    /// Size of the catalog and its log.
    pub catalog_bytes: u64,
    /// Whether the disk can share extents between files (FICLONE); unknown without writing to it.
    pub reflink: Option<bool>,
}

fn as_text<S: serde::Serializer>(dir: &Path, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(&dir.display())
}

/// A workspace.
#[derive(Clone, Debug, Serialize)]
pub struct WorkspaceInfo {
    /// Its id, stable across renames.
    #[serde(skip)]
    pub id: WorkspaceId,
    /// Name.
    pub name: String,
    /// Its live layer.
    pub layer: LayerId,
    /// Snapshots taken of it.
    pub snapshot_count: u64,
    /// Allocated bytes of the files visible in it, shared or not.
    pub bytes: u64,
    /// Files of any kind visible in it.
    pub inodes: u64,
    /// How much of both it may hold.
    #[serde(skip)]
    pub quota: Quota,
    /// When it was made, RFC 3339.
    pub created_at: String,
    /// The snapshot it was forked from.
    pub forked_from: Option<SnapshotId>,
    /// The snapshot that its present state was made from: the last one taken of it, or what it was
    /// rolled back to or forked from since.
    pub parent: Option<SnapshotId>,
    /// Whether a sandbox could write to it, or to what it was made from or had landed on it: set-id
    /// bits and device nodes in it are not to be honoured. A directory on any FUSE mount with `nosuid`
    /// that it was imported from counts as one that a sandbox could write to, whosever mount it is.
    pub sandboxed: bool,
    /// The directories of the host that it was made from.
    #[serde(skip)]
    pub base: Option<BaseInfo>,
}

/// The directories of the host that a workspace was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseInfo {
    /// The directories.
    pub dirs: Vec<BaseDir>,
    /// What is left out: lines as in a `.gitignore`.
    pub exclude: String,
    /// How far they were taken in.
    pub state: BaseState,
    /// Files and directories that were found to be others than they were, or could not be looked at:
    /// reading them fails.
    pub changed: Vec<PathBuf>,
    /// Whether there are more of them.
    pub more_changed: bool,
}

/// What a snapshot can bring back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Fidelity {
    /// Files.
    #[serde(rename = "filesystem")]
    Filesystem,
    /// Files and the memory of a virtual machine.
    #[serde(rename = "filesystem+memory")]
    FilesystemMemory,
}

/// A snapshot.
#[derive(Clone, Debug, Serialize)]
pub struct SnapshotInfo {
    /// Id.
    pub id: SnapshotId,
    /// Workspace it was taken of.
    pub workspace: String,
    /// That one's number: names are used again.
    pub workspace_id: WorkspaceId,
    /// Name, if it was given one.
    pub name: Option<String>,
    /// Message, if it was given one.
    pub message: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// The snapshot below it.
    pub parent: Option<SnapshotId>,
    /// When it was taken, RFC 3339.
    pub created_at: String,
    /// The place right behind it in a list.
    pub cursor: SnapshotCursor,
    /// How long it took, in microseconds: from the request to the moment it is in force (with
    /// `durable`: on disk).
    pub elapsed_us: u64,
    /// Whether the caller waited for the disk.
    pub durable: bool,
    /// What it can bring back.
    pub fidelity: Fidelity,
    /// Its image, if it is of a machine whose memory was asked for.
    pub image: Option<SnapshotImage>,
    /// Why Floe took it by itself: `fork`, `rollback` or `land`.
    pub automatic: Option<String>,
    /// When it is deleted, RFC 3339; none: not by itself.
    pub expires_at: Option<String>,
    /// Whether nothing deletes it until that is taken back.
    pub protected: bool,
    /// As [`WorkspaceInfo::sandboxed`].
    pub sandboxed: bool,
    /// Its frozen layer.
    pub layer: LayerId,
}

impl SnapshotInfo {
    /// Whether it is to have memory that is still being written down: it goes again if that fails.
    #[must_use]
    pub fn is_capturing(&self) -> bool {
        self.image
            .is_some_and(|image| image.state == ImageState::Capturing)
    }
}

/// The image of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct SnapshotImage {
    /// How far it has come.
    pub state: ImageState,
    /// What deleting it gave back, in bytes, when it was finished.
    pub bytes: u64,
}

/// How to take a snapshot.
#[derive(Clone, Debug, Default)]
pub struct SnapshotOptions {
    /// How long other operations on the workspace are waited for; as long as they last if there is none.
    pub patience: Option<Duration>,
    /// Its id, drawn before by [`SnapshotId::random`]; one is drawn if there is none.
    pub id: Option<SnapshotId>,
    /// Name, unique in the workspace.
    pub name: Option<SnapshotName>,
    /// Message.
    pub message: Option<String>,
    /// Labels.
    pub labels: BTreeMap<String, String>,
    /// Wait until it would survive power loss.
    pub durable: bool,
    /// Delete it then, in nanoseconds since the epoch.
    pub expires_at: Option<i64>,
    /// Let nothing delete it.
    pub protected: bool,
    /// The memory of a machine is to belong to it. Whoever says so notes how far that has come, by
    /// [`super::Store::set_image`], or deletes it.
    pub memory: bool,
}

/// Which snapshots to list. Conditions are joined by "and".
#[derive(Clone, Debug, Default)]
pub struct SnapshotFilter {
    /// Of this workspace.
    pub workspace: Option<String>,
    /// With this name.
    pub name: Option<String>,
    /// Of workspaces only that a sandbox has, or had before it was deleted.
    pub of_sandboxes: bool,
    /// Of this sandbox, by its id, deleted or not. Of one that there never was there are none.
    pub sandbox: Option<String>,
    /// With the name of this template, as [`crate::id::TemplateName::as_str`].
    pub template: Option<String>,
    /// With all of these labels.
    pub labels: BTreeMap<String, String>,
    /// Protected, or not.
    pub protected: Option<bool>,
    /// Taken by Floe by itself, or by hand.
    pub automatic: Option<bool>,
    /// That bring this back.
    pub fidelity: Option<Fidelity>,
    /// Taken before this time, in nanoseconds since the epoch.
    pub before: Option<i64>,
    /// Taken at this time or later.
    pub since: Option<i64>,
    /// Oldest first.
    pub oldest_first: bool,
    /// Only what comes behind this place.
    pub after: Option<SnapshotCursor>,
    /// At most so many.
    pub limit: Option<usize>,
}

/// What was deleted.
#[derive(Clone, Debug)]
pub struct DeletedSnapshot {
    /// The snapshot, as it was.
    pub snapshot: SnapshotInfo,
    /// What stands on it, by name: that needs what it shows of the snapshot still. Not all, if it is
    /// much.
    pub held_by: Vec<String>,
    /// How much more stands on it.
    pub more_held_by: u64,
}

/// What a deletion did.
#[derive(Clone, Debug, Default)]
pub struct DeletedSnapshots {
    /// What was deleted.
    pub deleted: Vec<DeletedSnapshot>,
    /// How many more would have been, were they not protected.
    pub protected: usize,
}

/// What to fork.
#[derive(Clone, Debug)]
pub enum ForkSource {
    /// A workspace as it is now; takes an automatic snapshot of it.
    Workspace(String),
    /// A snapshot.
    Snapshot(SnapshotId),
}

/// What a rollback did.
#[derive(Clone, Debug, Serialize)]
pub struct RollbackReport {
    /// The workspace afterwards.
    pub workspace: WorkspaceInfo,
    /// The snapshot it shows now.
    pub to: SnapshotId,
    /// The automatic snapshot that keeps the state before.
    pub kept: SnapshotId,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// How far an import is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportProgress {
    /// Files of any kind taken in.
    pub files: u64,
    /// Bytes of contents taken in.
    pub bytes: u64,
}

/// What an import took in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImportReport {
    /// Regular files.
    pub files: u64,
    /// Directories, the root included.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Further names of files counted already.
    pub hard_links: u64,
    /// Devices, FIFOs and sockets.
    pub special: u64,
    /// Bytes of contents.
    pub bytes: u64,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// How far an adoption is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptProgress {
    /// Directories whose names were taken in.
    pub directories: u64,
    /// Files whose contents were.
    pub files: u64,
    /// Bytes of contents.
    pub bytes: u64,
}

/// What an adoption took in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AdoptReport {
    /// Directories whose names were taken in.
    pub directories: u64,
    /// Files whose contents were.
    pub files: u64,
    /// Bytes of contents.
    pub bytes: u64,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// What is mounted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountTarget {
    /// A workspace.
    Workspace(WorkspaceId),
    /// A snapshot, read-only.
    Snapshot(SnapshotId),
}

/// A mount that a new daemon should restore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountRecord {
    /// What.
    pub target: MountTarget,
    /// Where.
    pub dir: PathBuf,
    /// A workspace only to look at. (A snapshot never is to change, and is not marked.)
    pub read_only: bool,
}

/// Nanoseconds since the epoch as RFC 3339 in UTC with microseconds.
pub(crate) fn rfc3339(ns: i64) -> String {
    match jiff::Timestamp::from_nanosecond(i128::from(ns)) {
        Ok(time) => format!("{time:.6}"),
        Err(_) => format!("@{ns}ns"),
    }
}

impl WorkspaceInfo {
    pub(super) fn new(
        record: WorkspaceRecord,
        snapshot_count: u64,
        base: Option<BaseInfo>,
    ) -> Self {
        Self {
            id: record.id,
            name: record.name,
            layer: record.layer,
            snapshot_count,
            bytes: record.bytes,
            inodes: record.inodes,
            quota: record.quota,
            created_at: rfc3339(record.created_at),
            forked_from: record.forked_from,
            parent: record.parent,
            sandboxed: record.sandboxed,
            base,
        }
    }
}

impl From<SnapshotRecord> for SnapshotInfo {
    fn from(record: SnapshotRecord) -> Self {
        Self {
            id: record.id,
            workspace: record.workspace,
            workspace_id: record.workspace_id,
            name: record.name,
            message: record.message,
            labels: record.labels,
            parent: record.parent,
            created_at: rfc3339(record.created_at),
            cursor: SnapshotCursor {
                at: record.created_at,
                layer: record.layer,
            },
            elapsed_us: record.elapsed_us,
            durable: record.durable,
            fidelity: match record.image {
                Some((ImageState::Failed, _)) | None => Fidelity::Filesystem,
                Some(_) => Fidelity::FilesystemMemory,
            },
            image: record
                .image
                .map(|(state, bytes)| SnapshotImage { state, bytes }),
            automatic: record.automatic,
            expires_at: record.expires_at.map(rfc3339),
            protected: record.protected,
            sandboxed: record.sandboxed,
            layer: record.layer,
        }
    }
}
