//! Answers about deleting and giving space back.

use floe_fs::CollectReport;
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
    /// Workspaces (by name) and snapshots (by id) that stand on it: what they show of it stays.
    pub held_by: Vec<String>,
}

impl From<floe_fs::DeletedSnapshot> for DeletedSnapshot {
    fn from(deleted: floe_fs::DeletedSnapshot) -> Self {
        Self {
            snapshot: deleted.snapshot.into(),
            held_by: deleted.held_by,
        }
    }
}

/// How much a snapshot takes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SnapshotSize {
    /// The snapshot.
    #[serde(flatten)]
    pub snapshot: Snapshot,
    /// Bytes of contents that deleting it would free on the disk: what nothing else shows.
    pub frees: u64,
    /// Workspaces (by name) and snapshots (by id) that stand on it.
    pub held_by: Vec<String>,
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
