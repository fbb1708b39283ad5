//! A process that was started for a sandbox: where it complains, and how it ends.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use tracing::warn;

/// How long to rest before looking again.
const REST: Duration = Duration::from_millis(1);

/// A file for what a process complains of, after what is in it.
///
/// # Errors
/// When it cannot be opened.
pub(in crate::daemon::sandboxes) fn open_log(path: &Path) -> io::Result<File> {
    OpenOptions::new()
        .create(true)
        .append(true)
        .mode(0o600)
        .open(path)
}

/// How a process ended, if it does within the time.
pub(in crate::daemon::sandboxes) fn wait_ended(
    child: &mut Child,
    wait: Duration,
) -> Option<ExitStatus> {
    let give_up = Instant::now() + wait;
    loop {
        match child.try_wait() {
            Ok(None) if Instant::now() < give_up => std::thread::sleep(REST),
            Ok(ended) => return ended,
            Err(error) => {
                warn!(%error, "cannot tell whether a process has ended");
                return None;
            }
        }
    }
}
