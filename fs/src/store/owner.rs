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
use rustix::io::Errno;
use rustix::process::{Pid, getpid, test_kill_process};
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

/// Whether no other process has this number: its owner was killed, or it is this one's.
fn is_no_others(pid: &str) -> bool {
    let pid = pid.trim().parse().ok().and_then(Pid::from_raw);
    pid.is_some_and(|pid| pid == getpid() || test_kill_process(pid) == Err(Errno::SRCH))
}

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
                Err(Errno::WOULDBLOCK) => {}
                Err(errno) => return Err(access("lock", &path)(errno.into())),
            }
            let mut pid = String::new();
            file.read_to_string(&mut pid)
                .map_err(access("read", &path))?;
            file.rewind().map_err(access("read", &path))?;
            // Whoever had it gave it up, or was killed. A process that it was starting at that moment has the
            // lock too, until it executes its program.
            let orphan = pid.is_empty() || pid == CLEAN || is_no_others(&pid);
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

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use super::*;

    /// The lock, held by what a process that has ended was about to start: the same open file.
    fn orphaned(dir: &Path, pid: u32) -> File {
        let lock = Lock::take(dir).unwrap();
        let inherited = lock.file.try_clone().unwrap();
        drop(lock);
        // The number before may have had more digits.
        inherited.set_len(0).unwrap();
        inherited
            .write_all_at(format!("{pid}\n").as_bytes(), 0)
            .unwrap();
        inherited
    }

    #[test]
    fn what_a_killed_owner_was_starting_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let mut ended = Command::new("true").spawn().unwrap();
        ended.wait().unwrap();
        for pid in [ended.id(), std::process::id()] {
            let inherited = orphaned(dir.path(), pid);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    std::thread::sleep(ORPHAN_WAIT / 10);
                    drop(inherited);
                });
                Lock::take(dir.path()).unwrap();
            });
        }
    }

    #[test]
    fn a_store_that_another_process_has_is_refused_with_its_number() {
        let dir = tempfile::tempdir().unwrap();
        let mut other = Command::new("cat").stdin(Stdio::piped()).spawn().unwrap();
        let inherited = orphaned(dir.path(), other.id());
        let refused = Lock::take(dir.path()).map(drop).unwrap_err();
        let OpenError::Locked { pid, .. } = refused else {
            panic!("{refused}");
        };
        assert_eq!(pid, Some(other.id()));
        drop((other.stdin.take(), inherited));
        other.wait().unwrap();
    }
}
