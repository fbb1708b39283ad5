//! Why a file-system operation failed, with the thing it failed on.

use thiserror::Error;

use crate::catalog::CatalogError;
use crate::contents::ContentsError;
use crate::id::Ino;

/// Failure of one file-system operation. [`super::Errno`] says what a program sees.
#[derive(Debug, Error)]
pub enum OpError {
    /// The name does not exist.
    #[error("no such name in directory {parent}")]
    NoEntry {
        /// Directory that was searched.
        parent: Ino,
    },
    /// The inode does not exist in this layer (any more), for example after a rollback.
    #[error("inode {0} is gone")]
    Stale(Ino),
    /// The name exists.
    #[error("the name exists in directory {parent}")]
    Exists {
        /// Directory that holds it.
        parent: Ino,
    },
    /// A directory was needed.
    #[error("inode {0} is not a directory")]
    NotDirectory(Ino),
    /// Anything but a directory was needed.
    #[error("inode {0} is a directory")]
    IsDirectory(Ino),
    /// The directory still has entries.
    #[error("directory {0} is not empty")]
    NotEmpty(Ino),
    /// The name is longer than 255 bytes.
    #[error("a name of {len} bytes is too long")]
    NameTooLong {
        /// Length in bytes.
        len: usize,
    },
    /// An argument makes no sense.
    #[error("invalid argument: {what}")]
    Invalid {
        /// Which one.
        what: &'static str,
    },
    /// Not permitted on this inode whoever asks.
    #[error("operation not permitted on inode {0}")]
    NotPermitted(Ino),
    /// The inode has as many links as a link count can say.
    #[error("inode {0} has too many links")]
    TooManyLinks(Ino),
    /// A size or offset beyond what a file can have.
    #[error("file too big: {size} bytes")]
    TooBig {
        /// Size asked for.
        size: u64,
    },
    /// No data or hole at or after the offset.
    #[error("no data or hole at or after offset {offset}")]
    SeekPastEnd {
        /// Offset asked for.
        offset: u64,
    },
    /// No such extended attribute.
    #[error("inode {0} has no such extended attribute")]
    NoXattr(Ino),
    /// The extended attribute exists.
    #[error("the extended attribute of inode {0} exists")]
    XattrExists(Ino),
    /// Extended attributes are too large together.
    #[error("extended attributes of inode {0} are too large")]
    XattrNoSpace(Ino),
    /// The workspace may not hold that much.
    #[error("the quota of the workspace is used up: {used} of {limit} {what}")]
    Quota {
        /// What is limited: `bytes` or `inodes`.
        what: &'static str,
        /// What it holds.
        used: u64,
        /// What it may.
        limit: u64,
    },
    /// The disk has less free space than has to stay free.
    #[error("the disk is full: {free} bytes are free, of which {min_free} have to stay free")]
    NoSpace {
        /// Bytes free.
        free: u64,
        /// Bytes that have to stay free.
        min_free: u64,
    },
    /// The view is a frozen snapshot.
    #[error("read-only: this is a snapshot")]
    ReadOnly,
    /// The view was given up: its workspace may be open elsewhere, or deleted.
    #[error("the workspace was closed")]
    Closed,
    /// Not supported here.
    #[error("not supported: {what}")]
    Unsupported {
        /// What was asked.
        what: &'static str,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
    /// Contents in `objects/` failed.
    #[error(transparent)]
    Contents(#[from] ContentsError),
}
