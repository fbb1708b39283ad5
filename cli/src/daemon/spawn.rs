//! Starting a daemon from a command, and telling the command how that went.
//!
//! The new process gets the log as its stderr and a pipe as its stdout. On the pipe it writes one
//! line, an [`Outcome`], once it serves or knows that it cannot; then it lets go of the pipe. So
//! the command neither polls nor guesses, and shows the daemon's own error.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};

use crate::error::{ApiError, ErrorKind};
use crate::store_dir::StoreDir;
use crate::wire::records::Unrestored;

/// The line a starting daemon writes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// It serves.
    Ready {
        /// Its process.
        pid: u32,
        /// Mounts of a killed daemon that it could not make again.
        unrestored: Vec<Unrestored>,
    },
    /// It cannot.
    Refused(ApiError),
}

/// How starting a daemon went.
#[derive(Debug)]
pub enum Started {
    /// The new daemon serves, but could not make these mounts again.
    Ready(Vec<Unrestored>),
    /// It said why it cannot. A conflict means that another process has the store.
    Refused(ApiError),
}

/// Longest outcome line that is read.
const OUTCOME_BYTES_MAX: u64 = 1 << 20;

/// Starts a daemon for the store, which must exist, and waits until it serves or gives up.
///
/// # Errors
/// When no process could be started, or it ended without a word.
pub fn start(store: &StoreDir) -> Result<Started, ApiError> {
    store.make_run_dir()?;
    let failed = |what: &str, error: &dyn std::error::Error| {
        ApiError::new(ErrorKind::DaemonUnreachable, what).caused_by(error)
    };
    let program = std::env::current_exe()
        .map_err(|error| failed("cannot find this program to start the daemon", &error))?;
    // Descriptors that this command merely inherited (a lock of the calling script, the write end
    // of a pipe whose reader waits for its end) must not live on in the daemon.
    close_fds::set_fds_cloexec(3, &[]);
    let mut child = Command::new(program)
        .args(["daemon", "run", "--detached", "--store"])
        .arg(store.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(store.open_log()?)
        .spawn()
        .map_err(|error| failed("cannot start the daemon", &error))?;
    let mut line = String::new();
    if let Some(stdout) = child.stdout.take() {
        BufReader::new(stdout.take(OUTCOME_BYTES_MAX))
            .read_line(&mut line)
            .map_err(|error| failed("cannot hear from the new daemon", &error))?;
    }
    match serde_json::from_str(&line) {
        Ok(Outcome::Ready { unrestored, .. }) => Ok(Started::Ready(unrestored)),
        Ok(Outcome::Refused(error)) => {
            child
                .wait()
                .map_err(|error| failed("cannot wait for the daemon", &error))?;
            Ok(Started::Refused(error))
        }
        Err(_) => {
            let status = child
                .wait()
                .map_err(|error| failed("cannot wait for the daemon", &error))?;
            let mut error = ApiError::new(
                ErrorKind::DaemonUnreachable,
                format!("the daemon ended while starting ({status})"),
            );
            error.causes.extend(last_log_line(store));
            Err(error.hint(format!(
                "read its log: `tail {}`",
                store.log_path().display()
            )))
        }
    }
}

/// The last line of the daemon's log, if it can be read.
fn last_log_line(store: &StoreDir) -> Option<String> {
    let text = std::fs::read(store.log_path()).ok()?;
    let text = String::from_utf8_lossy(&text);
    text.lines()
        .rev()
        .find(|line| !line.trim().is_empty())
        .map(str::to_owned)
}
