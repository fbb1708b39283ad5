//! The catalog: one SQLite database with every version of every name, inode and extent, and the
//! layers, workspaces and snapshots they belong to. docs/format.md is its specification.
//!
//! Invariants:
//! * All writes go through [`Catalog::apply`], one transaction a [`Change`], on one connection.
//! * A committed change survives the death of the process (it is in the page cache of the WAL
//!   file); it survives power loss after [`Catalog::sync`]. SQLite's `synchronous=NORMAL` keeps the
//!   database consistent in both cases.
//! * Readers run on connections of their own and see the last commit. A caller that needs a value
//!   not to change between reading and applying holds the engine lock of that key.

mod apply;
mod bases;
pub(crate) mod check;
mod checkpoint;
mod connect;
mod error;
mod hashing;
mod history;
mod landed;
mod lists;
mod pinned;
mod query;
mod read;
mod repair;
mod reserve;
mod retention;
mod sandboxes;
mod schema;
mod snapshots;
mod space;
mod templates;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};

use rusqlite::{Connection, OpenFlags};

use self::connect::{Connections, connect, format};
pub use self::error::CatalogError;
pub(crate) use self::hashing::{ObjectRecord, union};
use self::reserve::Reserve;
pub(crate) use history::{EventRecord, ForkRecord, HostLandingRecord, LifeRecord};
pub(crate) use landed::LandedRecord;
pub(crate) use lists::WorkspaceRecord;
pub(crate) use pinned::Pinned;
pub(crate) use query::{ExtentRow, Queries};
pub(crate) use repair::{HashOf, ServedObject};
pub(crate) use retention::KeptRecord;
pub(crate) use sandboxes::SandboxQuery;
pub(crate) use schema::{APPLICATION_ID, FORMAT};
pub(crate) use snapshots::{SnapshotQuery, SnapshotRecord};
pub(crate) use space::{FamilyRecord, LayerRow};

use crate::change::Change;
use crate::contents::ContentsError;
use crate::fault;
use crate::lock::{Mutex, MutexGuard, rank};

/// Copies the whole log back and cuts it.
const EMPTY_LOG: &str = "PRAGMA wal_checkpoint(TRUNCATE)";

/// The open catalog of a store.
pub(crate) struct Catalog {
    path: PathBuf,
    writer: Mutex<{ rank::WRITER }, Connection>,
    readers: Vec<Mutex<{ rank::READER }, Connection>>,
    next_reader: AtomicUsize,
    /// The write-ahead log, for making commits durable without another transaction.
    wal: File,
    before_checkpoint: OnceLock<BeforeCheckpoint>,
    checkpointer: OnceLock<checkpoint::Checkpointer>,
    reserve: Reserve,
    /// Changes committed so far, counted with the writer held.
    commits: AtomicU64,
}

/// What must be durable before the log is: a checkpoint syncs it.
type BeforeCheckpoint = Arc<dyn Fn() -> Result<(), ContentsError> + Send + Sync>;

impl Catalog {
    /// Makes a new catalog file, complete or not at all.
    pub(crate) fn create(path: &Path, store_id: &str, created_at: i64) -> Result<(), CatalogError> {
        let during = "creating the catalog";
        let aside = path.with_extension("new");
        for leftover in [aside.clone(), wal_path(&aside), shm_path(&aside)] {
            match std::fs::remove_file(&leftover) {
                Err(source) if source.kind() != std::io::ErrorKind::NotFound => {
                    return Err(CatalogError::Sync {
                        path: leftover,
                        source,
                    });
                }
                _ => {}
            }
        }
        let mut connection = Connection::open(&aside).map_err(CatalogError::during(during))?;
        connection
            .pragma_update(None, "application_id", APPLICATION_ID)
            .map_err(CatalogError::during(during))?;
        schema::migrate(&mut connection, 0)?;
        let insert = "INSERT INTO meta VALUES (?1,?2)";
        connection
            .execute(insert, ("store_id", store_id))
            .and_then(|_| connection.execute(insert, ("created_at", created_at)))
            .map_err(CatalogError::during(during))?;
        connection
            .close()
            .map_err(|(_, source)| CatalogError::Sqlite { during, source })?;
        std::fs::rename(&aside, path).map_err(|source| CatalogError::Sync {
            path: path.to_owned(),
            source,
        })
    }

    /// Opens an existing catalog for the one process that may write it. Nothing in it is changed;
    /// what is to be written needs [`Catalog::migrate`] first.
    pub(crate) fn open(path: &Path) -> Result<Self, CatalogError> {
        let opened = match Connections::open(path) {
            // A store that cannot be opened cannot be emptied.
            Err(error) if error.may_be_for_room() && Reserve::make_room(path) => {
                Connections::open(path)
            }
            opened => opened,
        }?;
        Ok(Self {
            path: path.to_owned(),
            writer: Mutex::new(opened.writer),
            readers: opened.readers.into_iter().map(Mutex::new).collect(),
            next_reader: AtomicUsize::new(0),
            wal: opened.wal,
            before_checkpoint: OnceLock::new(),
            checkpointer: OnceLock::new(),
            // Now that it is known that this program may change the store.
            reserve: Reserve::open(path),
            commits: AtomicU64::new(0),
        })
    }

    /// Brings a catalog of an older format to this program's; says whether there was anything to
    /// do. The number in the main file is the old one until the log is emptied.
    ///
    /// # Errors
    /// [`CatalogError`]; nothing was changed then.
    pub(crate) fn migrate(&self) -> Result<bool, CatalogError> {
        let mut writer = self.writer.lock();
        let from = format(&writer)?;
        if from == FORMAT {
            return Ok(false);
        }
        match schema::migrate(&mut writer, from) {
            // A store that cannot be opened cannot be emptied.
            Err(error) if error.is_full() && self.reserve.release() => {
                schema::migrate(&mut writer, from)?;
            }
            migrated => migrated?,
        }
        Ok(true)
    }

    /// Begins to copy the log back from time to time. `before` is done before each time, and every
    /// second in between.
    ///
    /// # Errors
    /// [`CatalogError`]; the log grows then.
    pub(crate) fn start_checkpoints(&self, before: BeforeCheckpoint) -> Result<(), CatalogError> {
        let before = self.before_checkpoint.get_or_init(|| before);
        let path = &self.path;
        let started = checkpoint::Checkpointer::start(path, &wal_path(path), before.clone())?;
        if self.checkpointer.set(started).is_err() {
            tracing::error!("two threads copy the log of the catalog back");
        }
        Ok(())
    }

    /// Opens a catalog to look at, while another process may be writing it.
    pub(crate) fn peek(path: &Path) -> Result<Peek, CatalogError> {
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        let format = format(&connection)?;
        Ok(Peek { connection, format })
    }

    /// Applies every row of the change, or none.
    ///
    /// # Errors
    /// [`CatalogError`]; nothing was changed then.
    pub(crate) fn apply(&self, change: &Change) -> Result<(), CatalogError> {
        if change.is_empty() {
            return Ok(());
        }
        self.commit(self.writer.lock(), change)
    }

    /// How many changes were committed so far.
    pub(crate) fn commits(&self) -> u64 {
        self.commits.load(Ordering::Acquire)
    }

    /// As [`Catalog::apply`], unless something was committed since there were `commits`; says whether
    /// it was done.
    ///
    /// # Errors
    /// [`CatalogError`]; nothing was changed then.
    pub(crate) fn apply_unless_changed(
        &self,
        change: &Change,
        commits: u64,
    ) -> Result<bool, CatalogError> {
        let writer = self.writer.lock();
        if self.commits() != commits {
            return Ok(false);
        }
        self.commit(writer, change).map(|()| true)
    }

    fn commit(
        &self,
        mut writer: MutexGuard<'_, Connection>,
        change: &Change,
    ) -> Result<(), CatalogError> {
        let removes = reserve::only_removes(change);
        if !removes && !self.reserve.may_add() {
            return Err(CatalogError::Full);
        }
        let applied = fault::write()
            .map_err(|_| CatalogError::Full)
            .and_then(|()| apply::apply(&mut writer, change));
        match applied {
            Err(error) if removes && error.is_full() && self.reserve.release() => {
                // The log takes up space as well, until it is copied back. That syncs it.
                if let Some(Err(error)) = self.before_checkpoint.get().map(|before| before()) {
                    tracing::warn!(%error, "syncing objects before the log");
                }
                let emptied = writer.query_row(EMPTY_LOG, [], |_| Ok(()));
                if let Err(error) = emptied {
                    tracing::warn!(%error, "cannot empty the log of the catalog");
                }
                apply::apply(&mut writer, change)?;
            }
            applied => applied?,
        }
        self.commits.fetch_add(1, Ordering::AcqRel);
        drop(writer);
        if let Some(checkpointer) = self.checkpointer.get() {
            checkpointer.committed();
        }
        Ok(())
    }

    /// Makes every change applied so far survive power loss.
    ///
    /// Syncing the log suffices: a commit is a run of checksummed frames in it, and before the log
    /// is ever restarted SQLite has synced the database file the frames were copied to.
    pub(crate) fn sync(&self) -> Result<(), CatalogError> {
        self.wal.sync_data().map_err(|source| CatalogError::Sync {
            path: wal_path(&self.path),
            source,
        })
    }

    /// Empties the log if the last process left a long one, or in any case. Opening reads all of it,
    /// and processes that are killed before they would have copied it back make it longer and longer.
    /// Everything that must be durable before the log has to be so already.
    pub(crate) fn shorten_log(&self, in_any_case: bool) -> Result<(), CatalogError> {
        let len = std::fs::metadata(wal_path(&self.path)).map_or(0, |meta| meta.len());
        if in_any_case || len > checkpoint::LOG_BYTES {
            self.empty_log()
        } else {
            Ok(())
        }
    }

    /// Copies the log back into the database and empties it, so that whoever opens the catalog
    /// next sees that it was left in order. The log stays if a reader is still at it.
    pub(crate) fn empty_log(&self) -> Result<(), CatalogError> {
        let busy: bool = self
            .writer
            .lock()
            .query_row(EMPTY_LOG, [], |row| row.get(0))
            .map_err(CatalogError::during("emptying the log of the catalog"))?;
        if busy {
            tracing::debug!("the log of the catalog is in use and stays");
        }
        Ok(())
    }

    /// Size of the database and its log in bytes.
    pub(crate) fn bytes_on_disk(&self) -> u64 {
        size_on_disk(&self.path)
    }

    /// The writer if nobody is using it, otherwise a reader.
    fn quickest(&self) -> MutexGuard<'_, Connection> {
        self.writer.try_lock().unwrap_or_else(|| self.reader())
    }

    fn reader(&self) -> MutexGuard<'_, Connection> {
        for reader in &self.readers {
            if let Some(reader) = reader.try_lock() {
                return reader;
            }
        }
        let next = self.next_reader.fetch_add(1, Ordering::Relaxed) % self.readers.len();
        self.readers[next].lock()
    }
}

/// A catalog opened read-only, without the store's lock.
pub(crate) struct Peek {
    connection: Connection,
    /// Its format.
    pub(crate) format: u32,
}

impl Peek {
    /// Counts and identity for `floe store info`.
    pub(crate) fn summary(&self) -> Result<lists::Summary, CatalogError> {
        lists::summary(&self.connection)
    }
}

/// Size of a catalog and its log in bytes; what cannot be read counts as nothing.
pub(crate) fn size_on_disk(path: &Path) -> u64 {
    let size = |path: &Path| std::fs::metadata(path).map_or(0, |meta| meta.len());
    size(path) + size(&wal_path(path))
}

fn wal_path(path: &Path) -> PathBuf {
    suffixed(path, "-wal")
}

fn shm_path(path: &Path) -> PathBuf {
    suffixed(path, "-shm")
}

fn suffixed(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// The catalog shared by everything in a store.
pub(crate) type SharedCatalog = Arc<Catalog>;

#[cfg(test)]
mod tests {
    use rusqlite::StatementStatus;

    use super::*;

    #[test]
    fn a_statement_is_planned_once_whatever_is_bound_to_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("catalog.db");
        Catalog::create(&path, "0", 0).unwrap();
        let catalog = Catalog::open(&path).unwrap();
        for name in ["a", "b", "c"] {
            assert!(catalog.workspaces(Some(name)).unwrap().is_empty());
        }
        let writer = catalog.writer.lock();
        let statement = writer.prepare_cached(lists::WORKSPACE_BY_NAME).unwrap();
        assert!(statement.get_status(StatementStatus::Run) >= 3);
        assert_eq!(statement.get_status(StatementStatus::RePrepare), 0);
    }
}
