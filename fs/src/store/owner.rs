//! The lock by which one process has a store.
//!
//! It is the kernel's, on an open file, and so ends with the process however that ends; the file says whose it is,
//! or that the last owner came to an orderly end.

use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::FlockOperation;
use tracing::warn;

use super::open::{OpenError, access};
use crate::core::CLEAN;
use crate::private::open_private;

/// Name of the lock file in a store; holds the owner's process id as text.
pub(super) const LOCK: &str = "lock";
/// How long a lock is waited for that nobody says to have.
const ORPHAN_WAIT: Duration = Duration::from_secs(1);
/// How long to rest before looking again.
const ORPHAN_REST: Duration = Duration::from_millis(2);

/// Keeps other processes out of the store while its file is open.
pub(super) struct Lock {
    pub(super) file: File,
    /// The last owner did not come to an orderly end.
    pub(super) crashed: bool,
}

impl Lock {
    /// Takes it, or says who has it.
    pub(super) fn take(dir: &Path) -> Result<Self, OpenError> {
        let path = dir.join(LOCK);
        let mut file = open_private(&path).map_err(access("write to", &path))?;
        let give_up = Instant::now() + ORPHAN_WAIT;
        loop {
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => break,
                Err(rustix::io::Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(access("lock", &path)(errno.into())),
            }
            let mut pid = String::new();
            file.read_to_string(&mut pid)
                .map_err(access("read", &path))?;
            file.rewind().map_err(access("read", &path))?;
            // Whoever had it gave it up in order. A process that it was starting at that moment has the
            // lock too, until it executes its program.
            let orphan = pid.is_empty() || pid == CLEAN;
            if !orphan || Instant::now() > give_up {
                return Err(OpenError::Locked {
                    dir: dir.to_owned(),
                    pid: pid.trim().parse().ok(),
                });
            }
            std::thread::sleep(ORPHAN_REST);
        }
        let mut last = String::new();
        let crashed = file.read_to_string(&mut last).is_err() || last != CLEAN;
        // In place, without cutting the file first: a full disk has room for that.
        let pid = format!("{}\n", std::process::id());
        match file
            .write_all_at(pid.as_bytes(), 0)
            .and_then(|()| file.set_len(pid.len() as u64))
        {
            // The lock holds without the number; another process's would be misleading.
            Err(error) if is_full(&error) => {
                warn!(%error, "the lock does not say which process holds it");
                file.set_len(0).map_err(access("write to", &path))?;
            }
            written => written.map_err(access("write to", &path))?,
        }
        if !crashed {
            // Or a power failure could bring the mark of an orderly end back.
            file.sync_all().map_err(access("sync", &path))?;
        }
        Ok(Self { file, crashed })
    }
}

/// Whether an error says that there is no room.
fn is_full(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
    )
}
