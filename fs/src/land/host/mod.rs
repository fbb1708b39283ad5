//! Landing in directories of the host: a plan of changes below them is applied all or not at all,
//! whatever kills this process in the middle, and can be undone. docs/format.md, section 8, is the
//! specification.
//!
//! Invariants:
//! * Nothing visible changes before the whole plan is in the catalog, and durable there.
//! * What was changed by others since it was seen is a conflict and is not overwritten: guards are
//!   checked before anything is touched, and again when a thing was renamed into the staging
//!   directory, where nobody else reaches it.
//! * No path is followed through a symbolic link or a mount: each is resolved beneath an open root.
//! * Every step can be found to be done already, so that doing all of them again finishes a landing.

mod abandon;
mod apply;
mod back;
mod check;
mod from_diff;
mod guard;
mod keep;
mod meta;
mod root;
mod run;
mod stage;
mod steps;
mod twins;
mod undo;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub use from_diff::{HostLandOptions, HostLanded};
pub use guard::Guard;
pub use meta::Meta;
pub(crate) use run::{Order, forget_unknown, layers_known, recover};
pub(crate) use steps::Kind;

use crate::attr::FileKind;
use crate::catalog::CatalogError;
use crate::diff::DiffError;
use crate::dispatch::OpError;
use crate::id::LayerId;
use crate::store::{AdoptError, SnapshotError, Store, WorkspaceError};

/// What the names of staging directories begin with. They are there for a moment, and nobody's.
pub(crate) const STAGING: &str = ".floe-land-";

/// What is to change below directories of the host.
#[derive(Clone, Debug, Default)]
pub struct HostPlan {
    /// The directories, none inside another.
    pub parts: Vec<HostPart>,
}

/// What is to change below one directory.
#[derive(Clone, Debug)]
pub struct HostPart {
    /// The directory, absolute.
    pub root: PathBuf,
    /// The changes, in any order.
    pub changes: Vec<HostChange>,
}

/// One change. Paths are relative to the root; those of things that are there now are as they are
/// now, those of things to come as they will be.
#[derive(Clone, Debug)]
pub enum HostChange {
    /// Takes a thing away; a directory has to be empty after the plan.
    Remove {
        /// Where it is.
        path: Vec<u8>,
        /// What was seen there.
        was: Guard,
        /// Its metadata then, if that is to be what it was as well.
        seen: Option<Meta>,
    },
    /// Puts a new thing where there will be none.
    Put {
        /// Where it comes to be.
        path: Vec<u8>,
        /// What.
        new: NewThing,
    },
    /// Moves a thing, a directory with everything in it.
    Move {
        /// Where it is.
        from: Vec<u8>,
        /// Where it comes to be.
        to: Vec<u8>,
        /// What was seen there.
        was: Guard,
    },
    /// Changes the metadata of a thing that stays or is moved.
    SetMeta {
        /// Where it comes to be.
        path: Vec<u8>,
        /// What was seen there.
        was: Guard,
        /// Its metadata then, if that is to be what it was.
        seen: Option<Meta>,
        /// Its metadata from then on.
        meta: Meta,
    },
}

/// A new thing.
#[derive(Clone, Debug)]
pub struct NewThing {
    /// What it is.
    pub kind: NewKind,
    /// Its metadata; of a link, that of what it links to.
    pub meta: Meta,
}

/// What a new thing is.
#[derive(Clone, Debug)]
pub enum NewKind {
    /// A regular file.
    File {
        /// The number by which a [`Source`] knows its contents.
        contents: u64,
        /// Its size.
        size: u64,
    },
    /// Another name of a file that the same plan puts at this path.
    Link {
        /// The path.
        to: Vec<u8>,
    },
    /// A symbolic link.
    Symlink {
        /// Where it leads.
        target: Vec<u8>,
    },
    /// An empty directory.
    Directory,
    /// A device, FIFO or socket.
    Special {
        /// Which of them.
        kind: FileKind,
        /// Device number, as the kernel encodes it in 32 bits.
        rdev: u32,
    },
    /// What an earlier landing took away.
    Kept {
        /// Its kind.
        kind: FileKind,
        /// The earlier landing.
        landing: u64,
        /// What it is called there.
        name: String,
    },
}

impl NewKind {
    fn kind(&self) -> FileKind {
        match self {
            Self::File { .. } | Self::Link { .. } => FileKind::File,
            Self::Symlink { .. } => FileKind::Symlink,
            Self::Directory => FileKind::Directory,
            Self::Special { kind, .. } | Self::Kept { kind, .. } => *kind,
        }
    }
}

/// Where the contents of new files come from.
pub trait Source {
    /// Fills an empty buffer with `len` bytes at an offset; with fewer at the end of the file only.
    ///
    /// # Errors
    /// Whatever keeps them from being read.
    fn read(&self, contents: u64, offset: u64, len: usize, out: &mut Vec<u8>) -> io::Result<()>;

    /// The first range with data at or after an offset. Everything else reads as zeros.
    ///
    /// # Errors
    /// Whatever keeps it from being found.
    fn data(&self, contents: u64, from: u64) -> io::Result<Option<Range<u64>>>;
}

/// What the plan does at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ours {
    /// Adds something.
    Added,
    /// Gives it other contents, or replaces it.
    Modified,
    /// Removes it.
    Deleted,
    /// Moves it.
    Renamed,
    /// Changes its mode, owner, time or attributes.
    Metadata,
}

/// What was found at a path instead of what was expected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Theirs {
    /// Nothing is there any more, or no way leads to it.
    Absent,
    /// It was changed.
    Modified,
    /// Something is there that was not.
    Added,
    /// The directory has something in it that the plan knows nothing of.
    NotEmpty,
}

impl fmt::Display for Ours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Added => "added it",
            Self::Modified => "changed the contents",
            Self::Deleted => "removed it",
            Self::Renamed => "renamed it",
            Self::Metadata => "changed its attributes",
        })
    }
}

impl fmt::Display for Theirs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Absent => "removed it",
            Self::Modified => "changed it",
            Self::Added => "added it",
            Self::NotEmpty => "put something else in it",
        })
    }
}

/// A change that cannot be made because somebody else made one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostConflict {
    /// The directory.
    pub root: PathBuf,
    /// The path in it.
    pub path: Vec<u8>,
    /// What the plan does there.
    pub ours: Ours,
    /// What somebody else did there.
    pub theirs: Theirs,
    /// The path that what was there before has now: theirs has its own. Only after a landing that
    /// had begun and went back.
    pub saved: Option<Vec<u8>>,
}

impl fmt::Display for HostConflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = String::from_utf8_lossy(&self.path);
        write!(f, "{path}: ours {}; theirs {}", self.ours, self.theirs)?;
        match &self.saved {
            Some(saved) => {
                let saved = String::from_utf8_lossy(saved);
                write!(f, "; what was there before is '{saved}' now")
            }
            None => Ok(()),
        }
    }
}

/// What a landing did, or would do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct HostReport {
    /// Things put where there were none, or moved there.
    pub added: u64,
    /// Things replaced.
    pub modified: u64,
    /// Things taken away, or moved from there.
    pub deleted: u64,
    /// Things with other metadata.
    pub metadata: u64,
}

impl HostReport {
    /// Whether nothing was to be done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }
}

/// Why nothing was landed. The directories are as they were, but for [`HostLandError::Pending`].
#[derive(Debug, Error)]
pub enum HostLandError {
    /// Somebody else changed what the plan changes.
    #[error("{} paths were changed on both sides", .0.len())]
    Conflicts(Vec<HostConflict>),
    /// A directory cannot be used.
    #[error("cannot land in {root}")]
    Root {
        /// Which.
        root: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something could not be done.
    #[error("cannot {action} '{}' in {root}", String::from_utf8_lossy(path))]
    Step {
        /// What was to be done.
        action: &'static str,
        /// In which directory.
        root: PathBuf,
        /// Where in it.
        path: Vec<u8>,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The plan contradicts itself.
    #[error("the plan is not possible: {what}")]
    Plan {
        /// Why.
        what: String,
    },
    /// A landing that began earlier is neither finished nor undone, and cannot be now.
    #[error("the landing {id} in {root} is not finished")]
    Pending {
        /// Its number.
        id: u64,
        /// Its directory.
        root: PathBuf,
        /// What keeps it.
        #[source]
        source: Box<HostLandError>,
    },
    /// Somebody removed a staging directory while its landing was under way, and with it what had
    /// been taken away. The rest was taken back. Said once.
    #[error("the landing {id} in {root} cannot be finished: '{staging}' was removed from there")]
    Lost {
        /// Its number.
        id: u64,
        /// Its directory.
        root: PathBuf,
        /// The staging directory.
        staging: String,
    },
    /// Somebody deleted the snapshot that was taken for the landing before that began.
    #[error("what was to be landed of '{name}' was deleted meanwhile")]
    Overtaken {
        /// The workspace.
        name: String,
    },
    /// There is no landing to undo.
    #[error("there is no landing that could be undone")]
    NothingToUndo,
    /// What was taken away is not kept any more, or cannot be.
    #[error("cannot use what the landing {id} took away")]
    Kept {
        /// Its number.
        id: u64,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The row of a landing cannot be understood.
    #[error("the row of the landing {id} is damaged: {what}")]
    Damaged {
        /// Its number.
        id: u64,
        /// What is wrong.
        what: String,
    },
    /// The workspace cannot be used.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The workspace stands on no directory of the host, or what stands on one could not be taken
    /// into the store before it changes.
    #[error(transparent)]
    Adopt(#[from] AdoptError),
    /// What the workspace changed could not be found out.
    #[error(transparent)]
    Diff(#[from] DiffError),
    /// The workspace could not be frozen.
    #[error(transparent)]
    Snapshot(#[from] SnapshotError),
    /// The workspace does not stand on the directory that was named.
    #[error("the workspace does not stand on {dir}")]
    OtherDir {
        /// The directory.
        dir: PathBuf,
    },
    /// Something changed that is in none of the directories of the host.
    #[error("'{}' is in no directory of the host", String::from_utf8_lossy(path))]
    Outside {
        /// Its path in the workspace.
        path: Vec<u8>,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// The journal could not be made durable.
    #[error("the plan could not be made durable")]
    Sync(#[source] Box<OpError>),
}

impl HostLandError {
    fn root(root: &Path) -> impl FnOnce(io::Error) -> Self {
        let root = root.to_owned();
        move |source| Self::Root { root, source }
    }

    fn step<E: Into<io::Error>>(
        action: &'static str,
        root: &Path,
        path: &[u8],
    ) -> impl FnOnce(E) -> Self {
        let (root, path) = (root.to_owned(), path.to_owned());
        move |source| Self::Step {
            action,
            root,
            path,
            source: source.into(),
        }
    }
}

impl Store {
    /// Changes directories of the host as a workspace's landing, all or not at all, also if this
    /// process is killed meanwhile: opening the store finishes it then. A dry run says what would be
    /// done.
    ///
    /// # Errors
    /// [`HostLandError`]; with conflicts, nothing was touched.
    pub fn land_on_host(
        &self,
        workspace: &str,
        plan: &HostPlan,
        source: &dyn Source,
        dry_run: bool,
    ) -> Result<HostReport, HostLandError> {
        let order = Order {
            workspace: self.workspace(workspace)?.id,
            layer: None,
            from: None,
            kind: Kind::Part,
            undoes: None,
            message: None,
        };
        self.land_as(&order, plan, source, dry_run)
    }

    pub(crate) fn land_as(
        &self,
        order: &Order,
        plan: &HostPlan,
        source: &dyn Source,
        dry_run: bool,
    ) -> Result<HostReport, HostLandError> {
        let _one = self.core.landing.lock();
        let roots: Vec<PathBuf> = plan.parts.iter().map(|part| part.root.clone()).collect();
        for (at, root) in roots.iter().enumerate() {
            let overlaps = |other: &PathBuf| root.starts_with(other) || other.starts_with(root);
            if !root.is_absolute() || roots[..at].iter().any(overlaps) {
                let what = format!("'{}' is not a directory apart from others", root.display());
                return Err(HostLandError::Plan { what });
            }
        }
        run::settle(&self.core, &roots)?;
        if !dry_run {
            self.adopt_elsewhere(None, plan)?;
        }
        run::land(&self.core, order, plan, source, dry_run)
    }

    /// Takes the last landing of a workspace in directories of the host back.
    ///
    /// # Errors
    /// [`HostLandError::NothingToUndo`]; [`HostLandError::Conflicts`] if something is not as it was
    /// landed any more.
    pub fn undo_on_host(
        &self,
        workspace: &str,
        dry_run: bool,
    ) -> Result<HostReport, HostLandError> {
        let workspace = self.workspace(workspace)?.id;
        let _one = self.core.landing.lock();
        // One that waits in the same directories is in the way.
        let waits = undo::done(&self.core, workspace)?;
        let of_last = waits.iter().rev().find(|one| one.state == run::state::DONE);
        let roots = of_last.map_or(Vec::new(), |one| {
            let parts = one.plan.parts.iter();
            parts
                .map(|part| PathBuf::from(OsStr::from_bytes(&part.root.0)))
                .collect()
        });
        run::settle(&self.core, &roots)?;
        let all = undo::done(&self.core, workspace)?;
        let last = all.iter().rev().find(|one| one.state == run::state::DONE);
        let last = last.ok_or(HostLandError::NothingToUndo)?;
        let order = Order {
            workspace,
            layer: undo::layer_before(&all, last.id).map(LayerId),
            from: last.plan.from.map(LayerId),
            kind: Kind::Undo,
            undoes: Some(last.id),
            message: None,
        };
        let plan = undo::reversed(&self.core, last)?;
        if !dry_run {
            self.adopt_elsewhere(None, &plan)?;
        }
        run::land(&self.core, &order, &plan, &Nothing, dry_run)
    }
}

/// A source of no contents: an undo has what was kept.
struct Nothing;

impl Source for Nothing {
    fn read(&self, _: u64, _: u64, _: usize, _: &mut Vec<u8>) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn data(&self, _: u64, _: u64) -> io::Result<Option<Range<u64>>> {
        Ok(None)
    }
}
