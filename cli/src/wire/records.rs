//! The answers. Their fields are the JSON that `--json` prints: fields may be added, never changed.
//! Sizes are bytes, times RFC 3339.

use std::collections::BTreeMap;

use floe_fs::{AdoptReport, BaseInfo, BaseState, ImportReport, SnapshotInfo, WorkspaceInfo};
use serde::{Deserialize, Serialize};

use super::WirePath;
pub use super::changes::{Changed, Conflicting, FileAt, FileLines, Landed, LandedFile, Version};

/// A workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Workspace {
    /// Its name.
    pub name: String,
    /// Its live layer.
    pub layer: u64,
    /// Snapshots taken of it, automatic ones included.
    pub snapshot_count: u64,
    /// Directories it is mounted on.
    pub mounts: Vec<WirePath>,
    /// Bytes its files take up as seen in it, shared or not.
    pub bytes: u64,
    /// Files of any kind seen in it.
    #[serde(default)]
    pub inodes: u64,
    /// How many bytes it may hold.
    #[serde(default)]
    pub quota_bytes: Option<u64>,
    /// How many inodes it may hold.
    #[serde(default)]
    pub quota_inodes: Option<u64>,
    /// When it was made.
    pub created_at: String,
    /// The snapshot it was forked from.
    pub forked_from: Option<String>,
    /// The snapshot that its present state was made from: the last one taken of it, or what it was
    /// rolled back to or forked from since.
    pub parent: Option<String>,
    /// The directories of the host that it was made from in place.
    #[serde(default)]
    pub base: Option<Base>,
}

/// Directories of the host that a workspace was made from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Base {
    /// The directories.
    pub dirs: Vec<BaseDir>,
    /// What is left out: lines as in a `.gitignore`.
    pub exclude: Vec<String>,
    /// `in_place`, `adopting` or `adopted`.
    pub state: String,
    /// Files and directories of the host that were found to be others than they were, or could not be
    /// looked at: reading them fails.
    pub changed: Vec<WirePath>,
    /// Whether there are more of them.
    #[serde(default)]
    pub more_changed: bool,
}

/// A directory of the host and where in a workspace it is shown.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BaseDir {
    /// The directory.
    pub dir: WirePath,
    /// Where.
    pub at: WirePath,
}

impl From<BaseInfo> for Base {
    fn from(info: BaseInfo) -> Self {
        let state = match info.state {
            BaseState::InPlace => "in_place",
            BaseState::Adopting => "adopting",
            BaseState::Adopted => "adopted",
        };
        let dirs = info.dirs.iter().map(|dir| BaseDir {
            dir: WirePath::from(&*dir.dir),
            at: WirePath::from(&*dir.at),
        });
        Self {
            dirs: dirs.collect(),
            exclude: info.exclude.lines().map(str::to_owned).collect(),
            state: state.to_owned(),
            changed: info
                .changed
                .iter()
                .map(|path| WirePath::from(&**path))
                .collect(),
            more_changed: info.more_changed,
        }
    }
}

/// What an adoption took in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Adopted {
    /// The workspace.
    #[serde(flatten)]
    pub workspace: Workspace,
    /// What was taken in; absent if nobody waited for the end.
    pub adopted: Option<AdoptReport>,
}

impl Workspace {
    /// A workspace with the directories it is mounted on.
    #[must_use]
    pub fn new(info: WorkspaceInfo, mounts: Vec<WirePath>) -> Self {
        Self {
            name: info.name,
            layer: info.layer.0,
            snapshot_count: info.snapshot_count,
            mounts,
            bytes: info.bytes,
            inodes: info.inodes,
            quota_bytes: info.quota.bytes,
            quota_inodes: info.quota.inodes,
            created_at: info.created_at,
            forked_from: info.forked_from.map(|id| id.to_string()),
            parent: info.parent.map(|id| id.to_string()),
            base: info.base.map(Base::from),
        }
    }
}

/// A snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct Snapshot {
    /// Its id, for ever.
    pub id: String,
    /// The workspace it was taken of.
    pub workspace: String,
    /// Its name.
    pub name: Option<String>,
    /// The snapshot before it.
    pub parent: Option<String>,
    /// When it was taken.
    pub created_at: String,
    /// The place right behind it in a list of snapshots.
    #[serde(default)]
    pub cursor: String,
    /// How long taking it took, in microseconds.
    pub elapsed_us: u64,
    /// Whether it was known to survive a power failure when it was acknowledged.
    pub durable: bool,
    /// What it can bring back: `filesystem` or `filesystem+memory`.
    pub fidelity: String,
    /// The image of a machine's memory: `capturing`, `captured` (machines can start from it), `sealed` (durable)
    /// or `failed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<SnapshotImage>,
    /// The message kept with it.
    pub message: Option<String>,
    /// The labels kept with it.
    pub labels: BTreeMap<String, String>,
    /// Why Floe took it by itself: `fork`, `rollback` or `land`; absent if somebody asked for it.
    pub automatic: Option<String>,
    /// When it is deleted; absent if it is not by itself.
    #[serde(default)]
    pub expires_at: Option<String>,
    /// Whether nothing deletes it until that is taken back.
    #[serde(default)]
    pub protected: bool,
    /// Its frozen layer.
    pub layer: u64,
}

/// The image of a machine's memory that belongs to a snapshot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct SnapshotImage {
    /// `captured`, `sealed` or `failed`.
    pub state: String,
    /// Bytes on disk that no other image has.
    pub bytes: u64,
    /// The snapshot whose image it was made over; told by `show` only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parent: Option<String>,
}

impl From<SnapshotInfo> for Snapshot {
    fn from(info: SnapshotInfo) -> Self {
        Self {
            id: info.id.to_string(),
            workspace: info.workspace,
            name: info.name,
            parent: info.parent.map(|id| id.to_string()),
            created_at: info.created_at,
            cursor: info.cursor.to_string(),
            elapsed_us: info.elapsed_us,
            durable: info.durable,
            fidelity: fidelity(info.fidelity).to_owned(),
            image: info.image.map(|image| SnapshotImage {
                state: image.state.word().to_owned(),
                bytes: image.bytes,
                parent: None,
            }),
            message: info.message,
            labels: info.labels,
            automatic: info.automatic,
            expires_at: info.expires_at,
            protected: info.protected,
            layer: info.layer.0,
        }
    }
}

fn fidelity(fidelity: floe_fs::Fidelity) -> &'static str {
    match fidelity {
        floe_fs::Fidelity::Filesystem => "filesystem",
        floe_fs::Fidelity::FilesystemMemory => "filesystem+memory",
    }
}

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mounted {
    /// The workspace mounted there, if it is one.
    pub workspace: Option<String>,
    /// The snapshot mounted there, if it is one.
    pub snapshot: Option<String>,
    /// The directory.
    pub dir: WirePath,
    /// Whether writing is refused.
    pub read_only: bool,
}

/// What an unmount did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unmounted {
    /// The directories that are free again.
    pub unmounted: Vec<WirePath>,
}

/// The daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DaemonStatus {
    /// Its process.
    pub pid: u32,
    /// The store it serves.
    pub store: WirePath,
    /// The store's id.
    pub store_id: String,
    /// Its version.
    pub version: String,
    /// When it started.
    pub started_at: String,
    /// Where its HTTP API is, if it serves one.
    #[serde(default)]
    pub api: Option<String>,
    /// Everything it has mounted.
    pub mounts: Vec<Mounted>,
    /// What a killed daemon had mounted and this one could not mount again. It is tried again when
    /// the next one starts, until it is unmounted.
    #[serde(default)]
    pub unrestored: Vec<Unrestored>,
}

/// A mount that could not be restored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unrestored {
    /// The directory.
    pub dir: WirePath,
    /// Why it is not mounted, in one line.
    pub error: String,
}

/// The daemon is about to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stopping {
    /// Its process.
    pub pid: u32,
}

/// What an import made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Imported {
    /// The new workspace.
    #[serde(flatten)]
    pub workspace: Workspace,
    /// What was taken in.
    pub import: Import,
}

/// What an import took in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Import {
    /// Regular files.
    pub files: u64,
    /// Directories.
    pub directories: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Second and further names of a file.
    pub hard_links: u64,
    /// Devices, FIFOs and sockets.
    pub special: u64,
    /// Bytes of contents.
    pub bytes: u64,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

impl From<ImportReport> for Import {
    fn from(report: ImportReport) -> Self {
        Self {
            files: report.files,
            directories: report.directories,
            symlinks: report.symlinks,
            hard_links: report.hard_links,
            special: report.special,
            bytes: report.bytes,
            elapsed_us: report.elapsed_us,
        }
    }
}

/// What a delete removed, or would.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Deleted {
    /// The workspace as it was.
    #[serde(flatten)]
    pub workspace: Workspace,
    /// False for a dry run.
    pub deleted: bool,
}

/// What a fork made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Forked {
    /// The new workspaces.
    pub workspaces: Vec<Workspace>,
    /// How long it took, mounting included, in microseconds.
    pub elapsed_us: u64,
}

/// What a rollback did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RolledBack {
    /// The workspace.
    pub workspace: Workspace,
    /// The snapshot it stands on now.
    pub to: String,
    /// The automatic snapshot that keeps the state it had before.
    pub kept: String,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// What taking a landing back did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Undone {
    /// The workspace.
    pub workspace: String,
    /// Whether it was done.
    pub undone: bool,
    /// What was done on the host.
    #[serde(flatten)]
    pub done: OnHost,
}

/// Numbers of things on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OnHost {
    /// Put where nothing was, or moved there.
    pub added: u64,
    /// Replaced.
    pub modified: u64,
    /// Taken away, or moved from there.
    pub deleted: u64,
    /// Given other metadata.
    pub metadata: u64,
}

impl From<floe_fs::HostReport> for OnHost {
    fn from(report: floe_fs::HostReport) -> Self {
        Self {
            added: report.added,
            modified: report.modified,
            deleted: report.deleted,
            metadata: report.metadata,
        }
    }
}

/// Something that happened to a workspace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogEntry {
    /// When.
    pub at: String,
    /// What: `created`, `snapshot`, `fork`, `rollback`, `land` (its changes went elsewhere), `landed`
    /// (it received some), `undo`, `adopt`, `deleted`. There may be more.
    pub kind: String,
    /// The snapshot it is about: the one taken, forked from, or gone back to.
    pub snapshot: Option<String>,
    /// That snapshot's name.
    pub name: Option<String>,
    /// The other workspace it is about: the fork, or the one forked from, landed on or landed.
    pub workspace: Option<String>,
    /// Whether that other workspace was deleted since.
    pub workspace_deleted: bool,
    /// What was said about it.
    pub message: Option<String>,
    /// Why Floe took a snapshot by itself; absent if somebody asked for it.
    pub automatic: Option<String>,
}

impl From<floe_fs::LogEntry> for LogEntry {
    fn from(entry: floe_fs::LogEntry) -> Self {
        Self {
            at: entry.at,
            kind: entry.kind.word().to_owned(),
            snapshot: entry.snapshot.map(|id| id.to_string()),
            name: entry.name,
            workspace: entry.workspace,
            workspace_deleted: entry.workspace_deleted,
            message: entry.message,
            automatic: entry.automatic,
        }
    }
}
