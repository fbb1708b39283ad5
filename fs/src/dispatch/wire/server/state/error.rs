//! Why a saved connection cannot be gone on with.

use thiserror::Error;

#[cfg(doc)]
use super::ServerState;
use crate::dispatch::wire::Caching;
use crate::dispatch::{OpError, OpenMode};
use crate::id::Ino;

/// Why bytes are no [`ServerState`].
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum StateError {
    /// They begin with something else.
    #[error("this is no saved state of a file system's connection")]
    Magic,
    /// Another Floe wrote them.
    #[error("a saved connection of version {found}; this Floe reads version {known}")]
    Version {
        /// What they say.
        found: u32,
        /// What is read here.
        known: u32,
    },
    /// They are not as many as they say themselves, or too few to say so.
    #[error("a saved connection of {found} bytes")]
    Length {
        /// How many there are.
        found: usize,
    },
    /// They are not those that were written.
    #[error("a saved connection is damaged: its checksum is another")]
    Checksum,
    /// They say what no connection can be.
    #[error("a saved connection makes no sense: {what}")]
    Value {
        /// What cannot be.
        what: &'static str,
    },
}

/// Why no server begins in a saved state. Nothing is held then, and nothing was reclaimed: it can be tried
/// again.
#[derive(Debug, Error)]
pub enum RestoreStateError {
    /// The guest holds more inodes than it may.
    #[error("the guest holds {held} inodes, and may hold {max}")]
    TooManyNodes {
        /// How many it holds.
        held: usize,
        /// `nodes_max` of the options.
        max: usize,
    },
    /// The guest has more files open than it may.
    #[error("the guest has {open} files open, and may have {max}")]
    TooManyOpens {
        /// How many it has open, each counted as often as it is.
        open: u64,
        /// `opens_max` of the options.
        max: usize,
    },
    /// The guest's kernel believes for longer, or something else, than it would have to.
    #[error("the guest's kernel believes what {saved:?} allows, and the server would be {asked:?}")]
    Caching {
        /// What was agreed on.
        saved: Caching,
        /// What the options say.
        asked: Caching,
    },
    /// The guest could change things and can not any more, or the other way round.
    #[error("a connection that was saved {}, and would be {}", writes(*.saved), writes(!.saved))]
    ReadOnly {
        /// Whether it was read-only.
        saved: bool,
    },
    /// The guest holds an inode that does not exist: the state belongs to another snapshot.
    #[error("the guest holds inode {ino}, which does not exist here")]
    NoInode {
        /// The inode.
        ino: Ino,
    },
    /// A file that the guest has open cannot be opened.
    #[error("the guest has inode {ino} open ({mode:?}), which cannot be opened here")]
    Open {
        /// The file.
        ino: Ino,
        /// How it is open.
        mode: OpenMode,
        /// Why.
        #[source]
        source: OpError,
    },
    /// The references that the guest holds cannot be taken.
    #[error("what the guest holds cannot be held")]
    Reference(#[source] OpError),
}

fn writes(read_only: bool) -> &'static str {
    if read_only { "read-only" } else { "writable" }
}
