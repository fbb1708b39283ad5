//! The daemon's side of a monitor: one process, and one socket with a line of JSON for each thing said.
//!
//! Nothing the monitor says is trusted further than to be shown: a guest may have taken it over.

mod link;
mod pool;
mod said;
mod snapshot;

use std::fs::{self, File};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use floe_vmm::monitor::{Command, MonitorConfig};
use floe_vmm::snapshot::Stats;
use tracing::{debug, warn};

use super::VmError;
use crate::daemon::sandboxes::process::{Cgroup, Host, open_log, wait_ended};
use crate::error::ApiError;
use link::{Link, silent};
pub(in crate::daemon::sandboxes) use pool::Pool;
use said::Ended;
pub(super) use snapshot::Wanted;

/// How long the monitor may take for anything that it is told.
const WAIT: Duration = Duration::from_secs(30);
/// How long it may take to end by itself.
const END_WAIT: Duration = Duration::from_secs(2);
/// How long to rest before looking again.
const REST: Duration = Duration::from_millis(1);

/// One monitor.
pub(super) struct Monitor {
    child: Child,
    link: Link,
    paused: AtomicBool,
}

impl Monitor {
    /// Takes one from the pool, into control groups, and says what the machine is. It complains in `log` from then on.
    pub(super) fn start(
        host: &Host,
        pool: &Pool,
        cgroup: &Cgroup,
        log: &Path,
        config: &MonitorConfig,
    ) -> Result<Self, VmError> {
        let log = open_log(log).map_err(VmError::file(log))?;
        let idle = pool.take(&host.spawner)?;
        // Before it has anything that counts.
        for way in cgroup.ways_in() {
            fs::write(&way, idle.pid().to_string()).map_err(VmError::file(&way))?;
        }
        let gone = || VmError::Spawn {
            source: io::ErrorKind::NotFound.into(),
        };
        let (child, link) = idle.into_parts().ok_or_else(gone)?;
        let monitor = Self {
            child,
            link,
            paused: AtomicBool::new(false),
        };
        monitor.link.say_with(config, &[&log])?;
        Ok(monitor)
    }

    /// A connection of the monitor's to one of its servers.
    pub(super) fn connection(&self, listener: &UnixListener) -> Result<UnixStream, VmError> {
        let failed = |source| VmError::Monitor { source };
        listener.set_nonblocking(true).map_err(failed)?;
        let give_up = Instant::now() + WAIT;
        loop {
            match listener.accept() {
                Ok((socket, _)) => {
                    socket.set_nonblocking(false).map_err(failed)?;
                    return Ok(socket);
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(failed(error)),
            }
            self.link.refuse_if_over()?;
            if Instant::now() >= give_up {
                return Err(silent(WAIT));
            }
            std::thread::sleep(REST);
        }
    }

    /// Waits until the guest runs.
    pub(super) fn wait_until_running(&self) -> Result<(), VmError> {
        self.link.wait(WAIT, |said| said.running.then_some(()))
    }

    /// Has the machine held. The monitor waits for what its file systems were asked first, but not for
    /// ever: a request that is left is one that nobody in the machine has an answer to.
    pub(super) fn pause(&self) -> Result<(), VmError> {
        self.paused.store(true, Ordering::Relaxed);
        let held = self.link.command(Command::Pause);
        if held.is_err() {
            // Perhaps it was not held, and perhaps it was.
            self.resume()?;
        }
        held.map(drop)
    }

    /// Has a snapshot taken into files: `held` is called while the machine stands still.
    ///
    /// # Errors
    /// What `held` says, or why the monitor took none. The machine runs on.
    pub(super) fn snapshot(
        &self,
        wanted: Wanted<'_>,
        held: &mut dyn FnMut() -> Result<(), ApiError>,
    ) -> Result<Stats, ApiError> {
        self.link.snapshot(wanted, held)
    }

    /// Has it written into a file which pages were touched since the machine was started from an image.
    pub(super) fn touched(&self, to: &File) -> Result<(), VmError> {
        // Whoever ends the machine waits as long.
        let wait = Duration::from_secs(2);
        let done = self.link.command_within(Command::Touched, &[to], wait);
        done.map(drop)
    }

    /// Lets it run on.
    pub(super) fn resume(&self) -> Result<(), VmError> {
        self.link.command(Command::Resume)?;
        self.paused.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Whether the machine is held.
    pub(super) fn is_paused(&self) -> bool {
        self.paused.load(Ordering::Relaxed)
    }

    /// How the machine ended, if it has.
    pub(super) fn ended(&self) -> Option<Ended> {
        self.link.shared.said.lock().over()
    }

    /// How the machine ended, if it does within the time.
    pub(super) fn wait_ended(&self, wait: Duration) -> Option<Ended> {
        let give_up = Instant::now() + wait;
        let mut said = self.link.shared.said.lock();
        while said.over().is_none() {
            let changed = &self.link.shared.changed;
            if changed.wait_until(&mut said, give_up).timed_out() {
                break;
            }
        }
        said.over()
    }

    /// Ends it, however it is.
    pub(super) fn end(self) {
        drop(self);
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        // Told by the end of the socket, if not so.
        if let Err(error) = self.link.say(&Command::Stop) {
            debug!(%error, "a monitor is gone already");
        }
        if wait_ended(&mut self.child, END_WAIT).is_some() {
            return;
        }
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            warn!(%error, "cannot end a monitor");
        }
    }
}
