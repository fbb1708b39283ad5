//! Why the catalog could not be read or changed.

use std::path::PathBuf;

use thiserror::Error;

/// Failure of one catalog operation.
#[derive(Debug, Error)]
pub enum CatalogError {
    /// SQLite reported an error while doing what `during` says.
    #[error("the catalog failed while {during}")]
    Sqlite {
        /// What was being done.
        during: &'static str,
        /// SQLite's error.
        #[source]
        source: rusqlite::Error,
    },
    /// The disk is full, and what was kept back for removing files has been given away.
    #[error("no space left on device: only removing files is possible")]
    Full,
    /// Nobody else may use the store for now.
    #[error("the store is being repaired")]
    Repairing,
    /// A row holds a value that Floe never writes.
    #[error("the catalog is damaged: {what}")]
    Damaged {
        /// The row and value.
        what: String,
    },
    /// It was written by a newer Floe.
    #[error("the catalog has format {found}; this program knows formats up to {known}")]
    Newer {
        /// Format of the catalog.
        found: u32,
        /// Newest format known.
        known: u32,
    },
    /// The write-ahead log could not be made durable.
    #[error("cannot sync {path}")]
    Sync {
        /// File that could not be synced.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
}

impl CatalogError {
    /// Wraps an SQLite error with what was being done; for `map_err`.
    pub(crate) fn during(during: &'static str) -> impl FnOnce(rusqlite::Error) -> Self {
        move |source| Self::Sqlite { during, source }
    }

    /// Whether a unique name or id was taken.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Self::Sqlite { source, .. }
            if source.sqlite_error_code() == Some(rusqlite::ErrorCode::ConstraintViolation))
    }

    /// The column, as `TABLE.COLUMN`, of which another row has the same value.
    /// <https://sqlite.org/rescode.html#constraint_unique>
    pub(crate) fn taken(&self) -> Option<&str> {
        let Self::Sqlite { source, .. } = self else {
            return None;
        };
        match source {
            rusqlite::Error::SqliteFailure(_, Some(message)) if self.is_conflict() => {
                message.strip_prefix("UNIQUE constraint failed: ")
            }
            _ => None,
        }
    }

    /// Whether the layer that another was to stand on is no snapshot any more.
    pub(crate) fn is_left(&self) -> bool {
        matches!(
            self,
            Self::Sqlite {
                source: rusqlite::Error::StatementChangedRows(0),
                ..
            }
        )
    }

    /// Whether there was no room for it on the disk.
    pub(crate) fn is_full(&self) -> bool {
        self.errno() == libc::ENOSPC
    }

    /// Whether more room on the disk might help. A log's index that cannot grow is an I/O error.
    pub(super) fn may_be_for_room(&self) -> bool {
        use rusqlite::ErrorCode::{CannotOpen, DiskFull, SystemIoFailure};
        matches!(self, Self::Sqlite { source, .. } if matches!(
            source.sqlite_error_code(),
            Some(DiskFull | SystemIoFailure | CannotOpen)
        ))
    }

    /// The errno a file-system operation reports for it.
    pub(crate) fn errno(&self) -> i32 {
        match self {
            Self::Sqlite { source, .. } => match source.sqlite_error_code() {
                Some(rusqlite::ErrorCode::DiskFull) => libc::ENOSPC,
                Some(rusqlite::ErrorCode::ReadOnly) => libc::EROFS,
                Some(rusqlite::ErrorCode::OutOfMemory) => libc::ENOMEM,
                _ => libc::EIO,
            },
            Self::Full => libc::ENOSPC,
            Self::Sync { source, .. } => source.raw_os_error().unwrap_or(libc::EIO),
            Self::Repairing => libc::EBUSY,
            Self::Damaged { .. } | Self::Newer { .. } => libc::EIO,
        }
    }
}
