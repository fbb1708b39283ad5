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
