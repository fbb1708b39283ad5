//! A process that outlives a killed daemon by a moment, to end the connections of its mounts.
//!
//! The daemon uses its own mounts: it has programs' dirty pages written back before a snapshot. A
//! thread that is killed while it waits for an answer there waits on, for the answer of a process
//! that is dead; and as it keeps the process's descriptors open, the kernel does not notice that the
//! server is gone. Every program on the mount would wait with it. So somebody else has to tell the
//! kernel.

use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tracing::{debug, warn};

use crate::error::{ApiError, ErrorKind};

/// The guard of a running daemon.
pub(super) struct Guard(Child);

impl Guard {
    /// Starts one. To be called by the daemon's main thread: the kernel tells the guard of the end
    /// of the thread that started it.
    ///
    /// # Errors
    /// When no process can be started.
    pub(super) fn start(store_id: &str) -> Result<Self, ApiError> {
        let failed = |error: std::io::Error| {
            ApiError::new(ErrorKind::Failed, "cannot start the daemon's guard").caused_by(&error)
        };
        Command::new(std::env::current_exe().map_err(failed)?)
            .args(["daemon", "guard", "--store-id", store_id, "--parent"])
            .arg(std::process::id().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()
            .map(Self)
            .map_err(failed)
    }

    /// Ends it: the daemon has unmounted everything.
    pub(super) fn end(mut self) {
        if let Err(error) = self.0.kill().and_then(|()| self.0.wait().map(drop)) {
            warn!(%error, "the daemon's guard did not end");
        }
    }
}

/// Waits for the end of the daemon, then ends the connections of its mounts.
///
/// # Errors
/// When signals cannot be waited for, or the connections cannot be ended.
pub fn guard(store_id: &str, parent: u32) -> Result<(), ApiError> {
    let failed = |what: &str, error: &dyn std::error::Error| {
        ApiError::new(ErrorKind::Failed, what).caused_by(error)
    };
    // Those that a terminal or a service manager sends to everybody are for the daemon to obey.
    let mut signals = Signals::new([SIGUSR1, SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| failed("cannot watch for signals", &error))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::USR1))
        .map_err(|error| failed("cannot watch the daemon", &error))?;
    let parent = i32::try_from(parent).ok().and_then(Pid::from_raw);
    // It may have ended before it could be watched.
    if rustix::process::getppid() == parent && parent.is_some() {
        signals.forever().find(|&signal| signal == SIGUSR1);
    }
    let mounts = floe_fs::dispatch::fuser::floe_mounts(store_id)
        .map_err(|error| failed("cannot look for the daemon's mounts", &error))?;
    let devices: Vec<_> = mounts.iter().map(|mount| mount.device).collect();
    debug!(mounts = devices.len(), "the daemon has ended");
    if devices.is_empty() {
        return Ok(());
    }
    floe_fs::dispatch::fuser::abort(&devices)
        .map_err(|error| failed("cannot end the connections of the daemon's mounts", &error))
}
