//! Copies the write-ahead log back into the database from a thread of its own.
//!
//! A checkpoint syncs two files; done inside a commit (SQLite's default) it would put
//! milliseconds into whatever request happens to be the thousandth.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, bounded};
use rusqlite::{Connection, OpenFlags};

use super::{BeforeCheckpoint, CatalogError, connect};

/// The log is copied back when it is larger than this, or when a store has been quiet.
pub(super) const LOG_BYTES: u64 = 16 << 20;
/// Past this the log is emptied even if writers must wait for it: without a pause between
/// writers a passive checkpoint never finds the log fully copied and it would grow for ever. The
/// bulk is copied passively first, so that they wait for the rest only.
const LOG_BYTES_MAX: u64 = 64 << 20;
/// Commits between two looks at the log's size.
const COMMITS: u32 = 512;
/// Time between two looks when nothing happens.
const TICK: Duration = Duration::from_secs(1);
/// Quiet time after which a log with anything in it is copied back.
const QUIET: Duration = Duration::from_secs(5);

pub(super) struct Checkpointer {
    commits: AtomicU32,
    wake: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    pub(super) fn start(
        path: &Path,
        wal: &Path,
        before: BeforeCheckpoint,
    ) -> Result<Self, CatalogError> {
        let connection = connect(path, OpenFlags::SQLITE_OPEN_READ_WRITE)?;
        let (wake, woken) = bounded(1);
        let wal = wal.to_owned();
        let thread = std::thread::Builder::new()
            .name("floe-checkpoint".to_owned())
            .spawn(move || {
                // Without it the log would grow for ever.
                let run = || run(&connection, &wal, &woken, &before);
                while catch_unwind(AssertUnwindSafe(run)).is_err() {
                    tracing::error!("panic in the checkpoint thread");
                    std::thread::sleep(TICK);
                }
            })
            .map_err(|source| CatalogError::Sync {
                path: path.to_owned(),
                source,
            })?;
        Ok(Self {
            commits: AtomicU32::new(0),
            wake: Some(wake),
            thread: Some(thread),
        })
    }

    /// Called after each commit; costs one atomic increment.
    pub(super) fn committed(&self) {
        if self.commits.fetch_add(1, Ordering::Relaxed) % COMMITS == COMMITS - 1
            && let Some(wake) = &self.wake
            && wake.try_send(()).is_err()
        {
            tracing::trace!("the checkpoint thread has been woken already");
        }
    }
}

impl Drop for Checkpointer {
    fn drop(&mut self) {
        self.wake = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the checkpoint thread panicked");
        }
    }
}

fn run(connection: &Connection, wal: &PathBuf, woken: &Receiver<()>, before: &BeforeCheckpoint) {
    let size = || std::fs::metadata(wal).map_or(0, |meta| meta.len());
    let (mut checkpointed, mut quiet) = (0, Duration::ZERO);
    loop {
        let woken = woken.recv_timeout(TICK);
        quiet = if woken.is_ok() {
            Duration::ZERO
        } else {
            quiet + TICK
        };
        let modes: &[&str] = match woken {
            Ok(()) if size() > LOG_BYTES_MAX => &["PASSIVE", "TRUNCATE"],
            Ok(()) if size() > LOG_BYTES => &["PASSIVE"],
            Ok(()) => &[],
            Err(RecvTimeoutError::Timeout) if quiet >= QUIET && size() != checkpointed => {
                &["PASSIVE"]
            }
            Err(RecvTimeoutError::Timeout) => &[],
            Err(RecvTimeoutError::Disconnected) => return,
        };
        // The kernel writes the log back in its own time as well: what has to be on the disk first
        // does not stay behind for long.
        if let Err(error) = before() {
            tracing::warn!(%error, "syncing objects before the log");
            continue;
        }
        for mode in modes {
            let sql = format!("PRAGMA wal_checkpoint({mode})");
            match connection.query_row(&sql, [], |_| Ok(())) {
                Ok(()) => checkpointed = size(),
                Err(error) => tracing::warn!(%error, "checkpoint failed; the log keeps growing"),
            }
        }
    }
}
