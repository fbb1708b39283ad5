//! Monitors that are started before anybody needs one: to start a program takes several times what it takes to set a
//! machine to its image.
//!
//! Each waits for its first line and does nothing. Invariants: none has been told anything, and none is in a control
//! group of a sandbox's, until it is taken; it ends when its socket closes, so none outlives the daemon.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use parking_lot::Mutex;
use tracing::{debug, warn};

use super::super::VmError;
use super::link::Link;
use crate::daemon::sandboxes::process::Spawner;

/// How many wait.
const KEPT: usize = 2;

/// See the module.
pub(in crate::daemon::sandboxes) struct Pool {
    // What is started: this program, which is `floe`. Not known on a system without /proc.
    program: Option<PathBuf>,
    state: Mutex<State>,
}

impl Default for Pool {
    fn default() -> Self {
        Self {
            program: std::env::current_exe().ok(),
            state: Mutex::default(),
        }
    }
}

#[derive(Default)]
struct State {
    idle: Vec<Idle>,
    /// No more are started.
    ended: bool,
}

impl Pool {
    /// A monitor that waits; started now if there is none.
    pub(super) fn take(&self, spawner: &Spawner) -> Result<Idle, VmError> {
        loop {
            let Some(mut idle) = self.state.lock().idle.pop() else {
                return Idle::start(spawner, self.program.as_deref());
            };
            if idle.waits() {
                return Ok(idle);
            }
            debug!("a monitor ended that nobody had used");
        }
    }

    /// Starts as many as are missing, for whoever comes next.
    pub(in crate::daemon::sandboxes) fn fill(&self, spawner: &Spawner) {
        while self.state.lock().idle.len() < KEPT {
            let idle = match Idle::start(spawner, self.program.as_deref()) {
                Ok(idle) => idle,
                Err(error) => return warn!(%error, "no monitor is started before it is needed"),
            };
            let mut state = self.state.lock();
            // It is dropped behind the lock, as that takes a moment.
            if state.ended || state.idle.len() >= KEPT {
                drop(state);
                return drop(idle);
            }
            state.idle.push(idle);
        }
    }

    /// Ends all that wait.
    pub(in crate::daemon::sandboxes) fn end(&self) {
        let mut state = self.state.lock();
        state.ended = true;
        let idle = std::mem::take(&mut state.idle);
        drop(state);
        drop(idle);
    }
}

/// One that waits. Dropped, it is ended.
pub(super) struct Idle(Option<(Child, Link)>);

impl Idle {
    fn start(spawner: &Spawner, program: Option<&Path>) -> Result<Self, VmError> {
        let failed = |source| VmError::Spawn { source };
        let (ours, theirs) = UnixStream::pair().map_err(failed)?;
        let link = Link::new(ours).map_err(failed)?;
        let program = program.ok_or_else(|| failed(io::ErrorKind::NotFound.into()))?;
        let mut command = Command::new(program);
        command
            .args(["vm", "monitor"])
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            .current_dir("/")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .stdout(Stdio::null())
            // Until it is given a log of its own.
            .stderr(Stdio::inherit());
        let child = spawner.spawn(command).map_err(failed)?;
        Ok(Self(Some((child, link))))
    }

    fn waits(&mut self) -> bool {
        let child = self.0.as_mut().map(|(child, _)| child.try_wait());
        matches!(child, Some(Ok(None)))
    }

    /// Its process.
    pub(super) fn pid(&self) -> u32 {
        self.0.as_ref().map_or(0, |(child, _)| child.id())
    }

    /// What it is made of, for whoever has a use for it.
    pub(super) fn into_parts(mut self) -> Option<(Child, Link)> {
        self.0.take()
    }
}

impl Drop for Idle {
    fn drop(&mut self) {
        // It has nothing to put in order.
        if let Some((mut child, _)) = self.0.take()
            && let Err(error) = child.kill().and_then(|()| child.wait())
        {
            warn!(%error, "cannot end a monitor that nobody had used");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(pool: &Pool) -> usize {
        pool.state.lock().idle.len()
    }

    /// Not this program: it is the tests', and would start them, and so itself, again.
    #[test]
    fn so_many_wait_and_those_that_ended_are_not_handed_out() {
        let spawner = Spawner::start().unwrap();
        let pool = Pool {
            program: Some("/bin/true".into()),
            state: Mutex::default(),
        };
        pool.fill(&spawner);
        assert_eq!(waiting(&pool), KEPT);
        let before: Vec<u32> = pool.state.lock().idle.iter().map(Idle::pid).collect();
        for idle in &mut pool.state.lock().idle {
            let (child, _) = idle.0.as_mut().unwrap();
            child.wait().unwrap();
        }
        let taken = pool.take(&spawner).unwrap();
        assert!(!before.contains(&taken.pid()) && taken.pid() > 0);
        assert_eq!(waiting(&pool), 0);
        pool.end();
        pool.fill(&spawner);
        assert_eq!(waiting(&pool), 0, "none is started for nobody");
        let (mut child, _link) = taken.into_parts().unwrap();
        child.wait().unwrap();
    }
}
