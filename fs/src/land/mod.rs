//! Landing: what a workspace changed goes onto another, by a three-way merge of inodes.
//!
//! The three states are the *base*, which both come from, *ours*, the workspace whose changes land,
//! and *theirs*, the workspace they land on. Inode numbers mean the same file in every layer, so a
//! file is followed through renames; [`trio`] says which inodes of the three states are one file.
//! [`plan`] and [`decide`] say for each file that ours changed, names, contents and attributes each by
//! themselves, [`place`] sees to it that the names fit together, and [`apply`] makes the rows of a
//! new layer of theirs. What theirs alone changed is not looked at, but for names that meet.
//!
//! `store/land.rs` takes it through: which layers, the locks, the one transaction.
//!
//! [`host`] is the other kind of landing: back into directories of the host.

pub(crate) mod apply;
mod decide;
pub(crate) mod host;
mod merge;
mod place;
pub(crate) mod plan;
pub(crate) mod trio;

use thiserror::Error;

use crate::catalog::CatalogError;
use crate::contents::ContentsError;
use crate::diff::FileChange;
use crate::dispatch::OpError;
use crate::engine::FreezeError;
use crate::id::SnapshotId;
use crate::store::{FindError, SnapshotError, WorkspaceError};

/// How to land.
#[derive(Clone, Debug, Default)]
pub struct LandOptions {
    /// Only what is at these paths of the workspace, and under them; everything if there is none.
    pub only: Vec<Vec<u8>>,
    /// Text that both sides changed is a conflict, too.
    pub no_merge: bool,
    /// Only say what would be done.
    pub dry_run: bool,
}

/// A file that was landed, or would be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LandEntry {
    /// Its path; of one that is deleted, the one it had.
    pub path: Vec<u8>,
    /// The path it had, if it is renamed.
    pub from: Option<Vec<u8>>,
    /// What becomes of it.
    pub change: FileChange,
    /// Whether its text is merged from both sides.
    pub merged: bool,
}

/// Something that cannot be landed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LandConflict {
    /// Where.
    pub path: Vec<u8>,
    /// What the workspace did.
    pub ours: String,
    /// What was done where it should land.
    pub theirs: String,
    /// The workspace that did that by landing there before.
    pub by: Option<String>,
}

/// What a landing did, or would do.
#[derive(Clone, Debug, Default)]
pub struct LandReport {
    /// The workspace whose changes were landed.
    pub workspace: String,
    /// The workspace they were landed on.
    pub onto: String,
    /// Whether anything was changed.
    pub landed: bool,
    /// What was landed, or would be if there were no conflicts, by path.
    pub entries: Vec<LandEntry>,
    /// Why nothing was.
    pub conflicts: Vec<LandConflict>,
    /// The state that the other workspace had before; rolling back to it undoes the landing.
    pub kept: Option<SnapshotId>,
    /// The state of the workspace that was landed.
    pub source: Option<SnapshotId>,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
}

/// Why nothing was landed. Nothing was changed then.
#[derive(Debug, Error)]
pub enum LandError {
    /// A workspace cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// What it was forked from is not there.
    #[error(transparent)]
    Find(#[from] FindError),
    /// The state of the workspace could not be kept.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// It was not forked, so there is nowhere to land by default.
    #[error("'{workspace}' was not forked from a workspace")]
    NoTarget {
        /// The workspace.
        workspace: String,
    },
    /// A workspace cannot land on itself.
    #[error("'{workspace}' cannot land on itself")]
    Itself {
        /// The workspace.
        workspace: String,
    },
    /// The two do not come from one workspace.
    #[error("'{workspace}' and '{onto}' have nothing in common")]
    NothingInCommon {
        /// The workspace to land.
        workspace: String,
        /// Where it should land.
        onto: String,
    },
    /// Directories lie in each other deeper than can be followed.
    #[error("directories that were made or removed lie too deep in each other")]
    TooDeep,
    /// The layers could not be changed.
    #[error("cannot land on the workspace '{onto}'")]
    Freeze {
        /// Where it should land.
        onto: String,
        /// Why.
        #[source]
        source: FreezeError,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// Contents could not be read or written.
    #[error(transparent)]
    Contents(#[from] ContentsError),
    /// Something could not be synced or removed.
    #[error(transparent)]
    Operation(#[from] OpError),
}
