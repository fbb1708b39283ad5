//! The connections to a catalog, and how each is set up.

use std::fs::File;
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, OpenFlags};

use super::{CatalogError, FORMAT, wal_path};

/// Connections for reading, so that a slow query on one thread does not stop the others.
const READERS: usize = 4;

/// What the one process that may write a catalog has open of it.
pub(super) struct Connections {
    pub(super) writer: Connection,
    pub(super) readers: Vec<Connection>,
    /// The write-ahead log.
    pub(super) wal: File,
}

impl Connections {
    /// Opens a catalog of a format that this program knows. Changes nothing in it.
    pub(super) fn open(path: &Path) -> Result<Self, CatalogError> {
        let during = "opening the catalog";
        let writer = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        format(&writer)?;
        writer
            .pragma_update(None, "journal_mode", "WAL")
            .and_then(|()| writer.pragma_update(None, "synchronous", "NORMAL"))
            .and_then(|()| writer.pragma_update(None, "wal_autocheckpoint", 0))
            .and_then(|()| writer.pragma_update(None, "cache_size", -64 * 1024))
            // What it reads is mostly what it wrote, and so in the log: a mapping of the main file
            // would only be asked in vain. Nobody else makes its cache stale.
            .and_then(|()| writer.pragma_update(None, "mmap_size", 0))
            .and_then(|()| writer.pragma_update(None, "foreign_keys", true))
            // The log exists only after the first access in WAL mode.
            .and_then(|()| writer.execute_batch("BEGIN IMMEDIATE; COMMIT"))
            .map_err(CatalogError::during(during))?;
        let readers = (0..READERS)
            .map(|_| connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY))
            .collect::<Result<Vec<_>, _>>()?;
        for reader in &readers {
            // Reading once now maps the log; later look-ups find everything in place.
            reader
                .query_row("SELECT count(*) FROM meta", [], |_| Ok(()))
                .map_err(CatalogError::during(during))?;
        }
        let path = wal_path(path);
        let wal = File::open(&path).map_err(|source| CatalogError::Sync { path, source })?;
        Ok(Self {
            writer,
            readers,
            wal,
        })
    }
}

/// Opens a connection, set up as every connection to a catalog is.
pub(super) fn connect(path: &Path, access: OpenFlags) -> Result<Connection, CatalogError> {
    let during = "opening the catalog";
    let connection = Connection::open_with_flags(path, access | OpenFlags::SQLITE_OPEN_NO_MUTEX)
        .map_err(CatalogError::during(during))?;
    connection.set_prepared_statement_cache_capacity(64);
    // Closing must not write: a catalog that turns out to be damaged stays as it was found.
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        .map_err(CatalogError::during(during))?;
    // Or a statement that could use a partial index is planned anew for each value bound to it.
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .map_err(CatalogError::during(during))?;
    connection
        .busy_timeout(Duration::from_secs(10))
        .and_then(|()| connection.pragma_update(None, "mmap_size", 1_i64 << 36))
        .and_then(|()| connection.pragma_update(None, "temp_store", "MEMORY"))
        .map_err(CatalogError::during(during))?;
    Ok(connection)
}

/// The format of a catalog, which this program must know. Asked through SQLite, because the number
/// in the main file is old as long as a migration stands only in the log.
pub(super) fn format(connection: &Connection) -> Result<u32, CatalogError> {
    let during = "reading the format of the catalog";
    let found = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(CatalogError::during(during))?;
    if found > FORMAT {
        return Err(CatalogError::Newer {
            found,
            known: FORMAT,
        });
    }
    Ok(found)
}
