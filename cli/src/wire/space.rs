//! Answers about deleting and giving space back, storing contents once, and settings of that.

use floe_fs::{CollectReport, HashReport, SettingInfo};
use serde::{Deserialize, Serialize};

use super::records::Snapshot;

/// What a delete removed, or would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotsDeleted {
    /// False for a dry run.
    pub deleted: bool,
    /// The snapshots.
    pub snapshots: Vec<DeletedSnapshot>,
    /// How many more were selected, and passed over because they are protected.
    #[serde(default)]
    pub protected: usize,
    /// In a dry run: bytes of contents that would be freed on the disk.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub frees: Option<u64>,
    /// What was given back, if that was waited for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub freed: Option<Collected>,
}

/// A snapshot that was deleted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeletedSnapshot {
    /// As it was.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Workspaces (by name) and snapshots (by id) that stand on it: what they show of it stays. At most
    /// 16 are named.
    pub held_by: Vec<String>,
    /// How many more there are.
    #[serde(default)]
    pub more_held_by: u64,
}

impl From<floe_fs::DeletedSnapshot> for DeletedSnapshot {
    fn from(deleted: floe_fs::DeletedSnapshot) -> Self {
        Self {
            snapshot: deleted.snapshot.into(),
            held_by: deleted.held_by,
            more_held_by: deleted.more_held_by,
        }
    }
}

/// How much a snapshot takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSize {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Allocated bytes of the files seen in it, shared or not.
    #[serde(default)]
    pub apparent: u64,
    /// Bytes of contents that only it shows: what deleting it would free on the disk.
    pub exclusive: u64,
    /// The rest of what is seen in it: others show that too.
    #[serde(default)]
    pub shared: u64,
    /// As `exclusive`.
    pub frees: u64,
    /// Workspaces (by name) and snapshots (by id) that stand on it.
    pub held_by: Vec<String>,
    /// What else would keep what it holds: `use` (it is mounted, or being compared or landed), `landing`
    /// (later landings begin from it).
    #[serde(default)]
    pub kept_by: Vec<String>,
}

/// How much a snapshot or a workspace takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Size {
    /// A snapshot.
    Snapshot(Box<SnapshotSize>),
    /// A workspace.
    Workspace(WorkspaceSize),
}

/// How much a workspace takes, with its snapshots. Bytes are those of blocks on the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkspaceSize {
    /// Its name.
    pub name: String,
    /// Whether only snapshots of it are left.
    pub deleted: bool,
    /// Snapshots of it.
    pub snapshot_count: u64,
    /// Allocated bytes of the files seen in it now, shared or not.
    pub apparent: u64,
    /// What only it and its snapshots show: what is freed with the last of them.
    pub exclusive: u64,
    /// What others show as well.
    pub shared: u64,
}

/// What a store takes of the disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StoreUsage {
    /// The workspaces by name.
    pub workspaces: Vec<WorkspaceSize>,
    /// What only one workspace and its snapshots show.
    pub exclusive: u64,
    /// What several show, counted once.
    pub shared: u64,
    /// What nobody shows: it waits for its removal, or for the end of an import.
    pub waiting: u64,
    /// The catalog and its log: names, attributes, and contents of small files.
    pub catalog: u64,
    /// Kept back for a full disk.
    pub reserve: u64,
    /// What landings in directories of the host took away, for undo.
    pub landings: u64,
    /// Memory of virtual machines, kept by their snapshots.
    #[serde(default)]
    pub images: u64,
    /// Everything else.
    pub other: u64,
    /// All of it.
    pub total: u64,
    /// Objects.
    pub objects: u64,
}

impl From<floe_fs::WorkspaceUsage> for WorkspaceSize {
    fn from(usage: floe_fs::WorkspaceUsage) -> Self {
        Self {
            name: usage.name,
            deleted: usage.deleted,
            snapshot_count: usage.snapshots,
            apparent: usage.apparent,
            exclusive: usage.exclusive,
            shared: usage.shared,
        }
    }
}

impl From<floe_fs::StoreUsage> for StoreUsage {
    fn from(usage: floe_fs::StoreUsage) -> Self {
        Self {
            workspaces: usage.workspaces.into_iter().map(Into::into).collect(),
            exclusive: usage.exclusive,
            shared: usage.shared,
            waiting: usage.waiting,
            catalog: usage.catalog,
            reserve: usage.reserve,
            landings: usage.landings,
            images: usage.images,
            other: usage.other,
            total: usage.total,
            objects: usage.objects,
        }
    }
}

/// What was given back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Collected {
    /// Snapshots that no rule kept or that had expired, deleted before.
    #[serde(default)]
    pub snapshots: u64,
    /// Layers removed that nothing could reach.
    pub layers: u64,
    /// Layers merged into the one that stood on them.
    pub merged: u64,
    /// Objects removed.
    pub objects: u64,
    /// Bytes of objects that were freed on the disk.
    pub bytes: u64,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

impl From<CollectReport> for Collected {
    fn from(report: CollectReport) -> Self {
        let CollectReport {
            layers,
            merged,
            objects,
            bytes,
            elapsed_us,
        } = report;
        Self {
            snapshots: 0,
            layers,
            merged,
            objects,
            bytes,
            elapsed_us,
        }
    }
}

/// What was hashed and stored once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hashed {
    /// Objects hashed.
    pub objects: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Objects that are stored together with an equal one now.
    pub shared: u64,
    /// Bytes on the disk that this saves; where the disk shares extents, at most.
    pub saved: u64,
    /// Objects that could not be read.
    pub failed: u64,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

impl From<HashReport> for Hashed {
    fn from(report: HashReport) -> Self {
        let HashReport {
            objects,
            bytes,
            shared,
            saved,
            failed,
            elapsed_us,
        } = report;
        Self {
            objects,
            bytes,
            shared,
            saved,
            failed,
            elapsed_us,
        }
    }
}

/// A setting of the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Its name.
    pub name: String,
    /// Its value as a number: bytes, bytes a second, or 1 for on and 0 for off.
    pub value: u64,
    /// Its value as it is typed.
    pub text: String,
    /// Nobody has set it.
    pub is_default: bool,
    /// What it is for.
    pub meaning: String,
}

impl From<SettingInfo> for Setting {
    fn from(info: SettingInfo) -> Self {
        Self {
            name: info.name.to_owned(),
            value: info.value,
            text: info.text,
            is_default: info.is_default,
            meaning: info.meaning.to_owned(),
        }
    }
}
