//! Differences as they travel and as `--json` prints them.

use floe_fs::attr::FileKind;
use floe_fs::{
    DiffEntry, FileChange, FileDiff, FileVersion, HostConflict, HostLanded, LandConflict,
    LandEntry, LandReport,
};
use serde::{Deserialize, Serialize};

use super::WirePath;

/// A file that differs between two states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Its path in the second state; of one that was deleted, in the first.
    pub path: WirePath,
    /// `added`, `deleted`, `modified`, `renamed`, `type_changed` or `metadata`.
    pub change: String,
    /// Its path in the first state, if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<WirePath>,
    /// Of a renamed file: its contents differ as well.
    #[serde(default, skip_serializing_if = "is_false")]
    pub modified: bool,
    /// Of a renamed or modified file: its attributes differ as well.
    #[serde(default, skip_serializing_if = "is_false")]
    pub metadata: bool,
    /// The file in the first state, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub old: Option<Version>,
    /// The file in the second state, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub new: Option<Version>,
    /// How its lines differ, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lines: Option<FileLines>,
}

fn is_false(value: &bool) -> bool {
    !value
}

/// A file in one of the states.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// Where its contents are to be found.
    pub file: FileAt,
    /// `file`, `directory`, `symlink`, `fifo`, `socket`, `char_device` or `block_device`.
    pub kind: String,
    /// Permission bits.
    pub mode: u16,
    /// Size in bytes.
    pub size: u64,
}

/// A file at a layer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileAt {
    /// Its inode.
    pub inode: u64,
    /// The layer.
    pub layer: u64,
}

/// How the contents of two files differ.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FileLines {
    /// By lines.
    Text {
        /// Hunks of a unified diff, if they were asked for.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        hunks: Option<WirePath>,
        /// Lines of the second only.
        added: u64,
        /// Lines of the first only.
        removed: u64,
    },
    /// One of them is no text.
    Binary,
    /// One of them is too large to be compared by lines.
    TooLarge,
    /// One of them was removed since the list was made.
    Gone,
}

impl Changed {
    /// An entry; with both versions of the file if they are asked for.
    #[must_use]
    pub fn new(entry: DiffEntry, versions: bool) -> Self {
        let version =
            |version: Option<FileVersion>| version.filter(|_| versions).map(Version::from);
        let renamed = entry.change == FileChange::Renamed;
        Self {
            path: WirePath::from_bytes(&entry.path),
            change: word(entry.change).to_owned(),
            from: entry.from.as_deref().map(WirePath::from_bytes),
            modified: renamed && entry.contents,
            metadata: entry.metadata && entry.change != FileChange::Metadata,
            old: version(entry.old),
            new: version(entry.new),
            lines: None,
        }
    }

    /// Whether this is what became of it.
    #[must_use]
    pub fn is(&self, change: &str) -> bool {
        self.change == change
    }

    /// Whether both states have it, with other contents.
    #[must_use]
    pub fn modified(&self) -> bool {
        self.modified || self.is("modified")
    }
}

impl Version {
    /// Whether it is a file whose contents a patch can hold.
    #[must_use]
    pub fn has_lines(&self) -> bool {
        matches!(self.kind.as_str(), "file" | "symlink")
    }
}

impl From<FileVersion> for Version {
    fn from(version: FileVersion) -> Self {
        let kind = match version.attr.kind {
            FileKind::File => "file",
            FileKind::Directory => "directory",
            FileKind::Symlink => "symlink",
            FileKind::Fifo => "fifo",
            FileKind::Socket => "socket",
            FileKind::CharDevice => "char_device",
            FileKind::BlockDevice => "block_device",
        };
        Self {
            file: FileAt {
                inode: version.ino.0,
                layer: version.layer.0,
            },
            kind: kind.to_owned(),
            mode: version.attr.perm,
            size: version.attr.size,
        }
    }
}

impl FileLines {
    /// A difference by lines; with its hunks if they are asked for.
    #[must_use]
    pub fn new(found: FileDiff, with_hunks: bool) -> Self {
        match found {
            FileDiff::Text {
                hunks,
                added,
                removed,
            } => Self::Text {
                hunks: with_hunks.then(|| WirePath::from_bytes(&hunks)),
                added,
                removed,
            },
            FileDiff::Binary => Self::Binary,
            FileDiff::TooLarge => Self::TooLarge,
            FileDiff::Gone => Self::Gone,
        }
    }
}

/// What a landing did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Landed {
    /// The workspace whose changes landed.
    pub workspace: String,
    /// Where: a workspace, or directories of the host.
    pub onto: String,
    /// The directories of the host, if it was there.
    #[serde(default)]
    pub dirs: Vec<WirePath>,
    /// Whether anything was changed.
    pub landed: bool,
    /// What landed, or would if there were no conflicts.
    pub files: Vec<LandedFile>,
    /// Why nothing did.
    pub conflicts: Vec<Conflicting>,
    /// The automatic snapshot that keeps the state before.
    pub kept: Option<String>,
    /// The state of the workspace that landed.
    pub source: Option<String>,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// A file that landed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LandedFile {
    /// Its path; of one that is deleted, the one it had.
    pub path: WirePath,
    /// `added`, `deleted`, `modified`, `renamed`, `type_changed` or `metadata`.
    pub change: String,
    /// The path it had, if it was renamed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<WirePath>,
    /// Whether its text is merged from both sides.
    #[serde(default, skip_serializing_if = "is_false")]
    pub merged: bool,
}

/// Something that cannot land.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Conflicting {
    /// Where.
    pub path: WirePath,
    /// What the workspace did.
    pub ours: String,
    /// What was done where it should land.
    pub theirs: String,
    /// The workspace that did that by landing there before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub by: Option<String>,
    /// On the host, where a landing had begun: the path of what was there before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved: Option<WirePath>,
}

impl From<LandReport> for Landed {
    fn from(report: LandReport) -> Self {
        let file = |entry: LandEntry| LandedFile {
            path: WirePath::from_bytes(&entry.path),
            change: word(entry.change).to_owned(),
            from: entry.from.as_deref().map(WirePath::from_bytes),
            merged: entry.merged,
        };
        let conflict = |conflict: LandConflict| Conflicting {
            path: WirePath::from_bytes(&conflict.path),
            ours: conflict.ours,
            theirs: conflict.theirs,
            by: conflict.by,
            saved: None,
        };
        Self {
            workspace: report.workspace,
            onto: report.onto,
            dirs: Vec::new(),
            landed: report.landed,
            files: report.entries.into_iter().map(file).collect(),
            conflicts: report.conflicts.into_iter().map(conflict).collect(),
            kept: report.kept.map(|id| id.to_string()),
            source: report.source.map(|id| id.to_string()),
            elapsed_us: report.elapsed_us,
        }
    }
}

impl Landed {
    /// A landing in directories of the host.
    #[must_use]
    pub fn on_host(workspace: &str, landed: HostLanded, elapsed_us: u64) -> Self {
        let file = |entry: DiffEntry| LandedFile {
            path: WirePath::from_bytes(&entry.path),
            change: word(entry.change).to_owned(),
            from: entry.from.as_deref().map(WirePath::from_bytes),
            merged: false,
        };
        let conflict = |conflict: HostConflict| Conflicting {
            path: WirePath::from_bytes(&conflict.path),
            ours: conflict.ours.to_string(),
            theirs: conflict.theirs.to_string(),
            by: None,
            saved: conflict.saved.as_deref().map(WirePath::from_bytes),
        };
        let dirs: Vec<_> = landed
            .dirs
            .iter()
            .map(|dir| WirePath::from(&**dir))
            .collect();
        let shown: Vec<_> = dirs.iter().map(ToString::to_string).collect();
        Self {
            workspace: workspace.to_owned(),
            onto: shown.join(", "),
            dirs,
            landed: landed.snapshot.is_some(),
            files: landed.entries.into_iter().map(file).collect(),
            conflicts: landed.conflicts.into_iter().map(conflict).collect(),
            kept: None,
            source: landed.snapshot.map(|id| id.to_string()),
            elapsed_us,
        }
    }
}

fn word(change: FileChange) -> &'static str {
    match change {
        FileChange::Added => "added",
        FileChange::Deleted => "deleted",
        FileChange::Modified => "modified",
        FileChange::Renamed => "renamed",
        FileChange::TypeChanged => "type_changed",
        FileChange::Metadata => "metadata",
    }
}
