//! What files contain: inline bytes in the catalog, objects on disk, and extents over them.
//!
//! An object is one file in `objects/`. Offsets in it are offsets in the file it serves
//! (*identity offsets*), so an extent needs no offset of its own and copying a block up is a
//! write at the same place in another object. Each layer that writes to a file has at most one
//! object for it. Invariant: only the object of the live layer is ever written, and only inside
//! the blocks the live layer has claimed or is about to claim.

mod checksum;
mod copy;
mod damaged;
mod dirty;
mod extents;
mod file;
mod objects;
pub(crate) mod raw;
mod shaping;
mod source;

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

pub(crate) use checksum::{Checksum, hash_block};
pub(crate) use copy::{CopyError, FileCopy, copy_file};
pub(crate) use damaged::WHOLE;
pub(crate) use extents::ExtentMap;
pub(crate) use file::{FileIo, FileIoError};
pub(crate) use objects::{FAN_OUT, Guarded, HostObjects, Objects, StillTheSame};
pub(crate) use shaping::{FileId, Joined, Punched, allocated, file_id};
pub(crate) use source::Source;

use crate::catalog::CatalogError;
use crate::id::ObjectId;

/// Copy-up unit in bytes.
pub(crate) const BLOCK: u64 = 64 << 10;
/// A length or offset inside a slice that exists.
pub(crate) fn as_len(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// Files up to this size live in the catalog.
pub(crate) const INLINE_MAX: u64 = 8 << 10;
/// Files up to this size are copied up whole: fewer rows for less than a millisecond of copying.
pub(crate) const WHOLE_COPY_MAX: u64 = 256 << 10;
/// Largest size of a file: what `off_t` can say.
pub(crate) const FILE_MAX: u64 = i64::MAX as u64;

/// Failure of object I/O.
#[derive(Debug, Error)]
pub enum ContentsError {
    /// An object could not be used.
    #[error("cannot {action} object {object}")]
    Object {
        /// What was being done.
        action: &'static str,
        /// Which object.
        object: ObjectId,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Bytes are not what they were, and that is known (`floe check --repair`).
    #[error("block {block} of object {object} is damaged")]
    Damaged {
        /// Which object.
        object: ObjectId,
        /// Which block of it.
        block: u64,
    },
    /// The objects directory could not be used.
    #[error("cannot {action} the objects directory")]
    Directory {
        /// What was being done.
        action: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file of the host could not be used.
    #[error("cannot {action} {path}, which the workspace was made from")]
    Host {
        /// What was being done.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file of the host is not what it was.
    #[error("{path} was changed after the workspace was made from it")]
    HostChanged {
        /// Which file.
        path: PathBuf,
    },
    /// A directory of the host is not there, or another is in its place.
    #[error("{dir} is not there, or not the directory that the workspace was made from")]
    HostMissing {
        /// Which directory.
        dir: PathBuf,
    },
    /// What is known of a file of the host could not be read.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl ContentsError {
    pub(crate) fn host<E: Into<io::Error>>(
        action: &'static str,
        path: &Path,
    ) -> impl FnOnce(E) -> Self {
        let path = path.to_owned();
        move |source| Self::Host {
            action,
            path,
            source: source.into(),
        }
    }

    pub(crate) fn object<E: Into<io::Error>>(
        action: &'static str,
        object: ObjectId,
    ) -> impl FnOnce(E) -> Self {
        move |source| Self::Object {
            action,
            object,
            source: source.into(),
        }
    }

    /// Whether it is about a file of the host, which is not ours to keep in order.
    pub(crate) fn is_of_host(&self) -> bool {
        matches!(
            self,
            Self::Host { .. } | Self::HostChanged { .. } | Self::HostMissing { .. }
        )
    }

    /// Whether the file of an object is not there.
    pub(crate) fn is_missing(&self) -> bool {
        matches!(self, Self::Object { source, .. } if source.kind() == io::ErrorKind::NotFound)
    }

    /// The errno a file-system operation reports: out of space is passed on, the rest is EIO (an
    /// `ENOENT` from inside the store must not look like a missing file).
    pub(crate) fn errno(&self) -> i32 {
        let source = match self {
            Self::Object { source, .. } | Self::Directory { source, .. } => source,
            Self::Host { source, .. } => match source.raw_os_error() {
                Some(code @ (libc::EACCES | libc::EPERM)) => return code,
                _ => source,
            },
            Self::HostChanged { .. } | Self::HostMissing { .. } => return libc::ESTALE,
            Self::Damaged { .. } => return libc::EIO,
            Self::Catalog(error) => return error.errno(),
        };
        match source.raw_os_error() {
            Some(
                code @ (libc::ENOSPC | libc::EDQUOT | libc::EFBIG | libc::EROFS | libc::ENOMEM),
            ) => code,
            _ => libc::EIO,
        }
    }
}
