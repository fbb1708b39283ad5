//! Pause, resume, kill, and the time that a sandbox has.

use std::time::{Duration, SystemTime};

use floe_fs::{SandboxRecord, SandboxState};
use tracing::info;

use super::entry::{Entry, Inner};
use super::spec::Spec;
use super::start::not_running;
use super::{Answer, Sandboxes, is_up, not_found};
use crate::agent::Agent;
use crate::error::{ApiError, ErrorKind};
use crate::wire::sandbox::{Attached, AttachedSandbox, Sandbox};

/// How long the processes of a sandbox may take to come to rest.
pub(super) const FREEZE_WAIT: Duration = Duration::from_secs(10);

/// The longest time that may be asked for.
pub(super) const TIMEOUT_MAX: Duration = Duration::from_secs(crate::config::values::SECONDS_MAX);

/// Nanoseconds since the epoch.
pub(super) fn now() -> i64 {
    let since = SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    i64::try_from(since.as_nanos()).unwrap_or(i64::MAX)
}

/// When a time that begins now is over.
pub(super) fn ends_at(timeout: Option<Duration>) -> Option<i64> {
    timeout
        .map(|timeout| now().saturating_add(i64::try_from(timeout.as_nanos()).unwrap_or(i64::MAX)))
}

impl Sandboxes {
    /// Freezes a sandbox's processes. The second value: whether it had none that ran already.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Unavailable`] when they do not come to rest: they go on then.
    pub fn pause(&self, id: &str) -> Answer<(Sandbox, bool)> {
        let entry = self.entry(id)?;
        let mut inner = self.locked(&entry)?;
        if !is_up(inner.record.state) {
            return match inner.record.state {
                SandboxState::Paused | SandboxState::Stopped => {
                    Ok((self.shown(&inner.record)?, true))
                }
                other => Err(not_running(id, other)),
            };
        }
        self.freeze_for_pause(&entry, &mut inner)?;
        Ok((self.shown(&inner.record)?, false))
    }

    /// Freezes the processes of one that runs, and has no end from then on.
    pub(super) fn freeze_for_pause(
        &self,
        entry: &Entry,
        inner: &mut Inner,
    ) -> Result<(), Unpaused> {
        inner.set(&self.store, SandboxState::Pausing, None)?;
        let running = inner.running.as_ref().ok_or_else(|| lost(&entry.id))?;
        // It may be forked while it stands still, and could not do it then.
        self.write_back(&entry.id, &running.engine);
        if let Err(error) = running.engine.freeze(FREEZE_WAIT) {
            inner.set(&self.store, SandboxState::Running, None)?;
            return Err(Unpaused::Restless(error));
        }
        inner.restless = 0;
        let written = inner.write(&self.store, |record| {
            record.state = SandboxState::Paused;
            record.ends_at = None;
        });
        if let Err(error) = written {
            // It is as if nobody had asked.
            let running = inner.running.as_ref().ok_or_else(|| lost(&entry.id))?;
            running.engine.thaw()?;
            inner.put(&self.store, SandboxState::Running, None);
            return Err(error.into());
        }
        *entry.agent.write() = None;
        self.expiry.set(&entry.id, None);
        self.logs.note(&entry.id, "info", "paused");
        Ok(())
    }

    /// Has a sandbox run, whatever state it is in. `timeout` is its time from now; that of one that runs is
    /// only made longer. `cold`: those of one that is paused are ended, and started anew.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; or when it cannot be started: it is `failed` then, with its workspace.
    pub fn resume(
        &self,
        id: &str,
        timeout: Option<Duration>,
        cold: bool,
    ) -> Answer<AttachedSandbox> {
        self.refuse_when_ending()?;
        self.check_timeout(timeout)?;
        let entry = self.entry(id)?;
        let _extends = entry.to_be_extended();
        let mut inner = self.locked(&entry)?;
        let up = is_up(inner.record.state);
        // One that runs is not started anew: whoever asks a second time would end what runs in it.
        if up {
            self.extend(&entry, &mut inner, timeout, true)?;
        } else {
            self.go_on(&entry, &mut inner, timeout, cold)?;
        }
        Ok(AttachedSandbox {
            sandbox: self.shown(&inner.record)?,
            attached: if up {
                Attached::Running
            } else {
                Attached::Resumed
            },
        })
    }

    /// Thaws what is paused, and starts what has no processes.
    fn go_on(
        &self,
        entry: &Entry,
        inner: &mut Inner,
        timeout: Option<Duration>,
        cold: bool,
    ) -> Answer<()> {
        let ends_at = ends_at(timeout);
        if inner.running.is_some() && !cold {
            inner.write(&self.store, |record| {
                record.state = SandboxState::Running;
                record.reason = None;
                record.ends_at = ends_at;
            })?;
            let running = inner.running.as_ref().ok_or_else(|| lost(&entry.id))?;
            if let Err(error) = running.engine.thaw() {
                inner.put(&self.store, SandboxState::Paused, None);
                return Err(error);
            }
            *entry.agent.write() = Some(running.engine.agent().clone());
            self.logs.note(&entry.id, "info", "resumed");
        } else {
            self.restart(entry, inner, |_| Ok(()), |record| record.ends_at = ends_at)?;
        }
        self.expiry.set(&entry.id, ends_at);
        Ok(())
    }

    /// Ends the processes, does something to the workspace, and starts them anew; `also` is written with
    /// that it runs. What fails leaves the sandbox `failed`, without processes.
    pub(super) fn restart(
        &self,
        entry: &Entry,
        inner: &mut Inner,
        between: impl FnOnce(&Inner) -> Answer<()>,
        also: impl FnOnce(&mut SandboxRecord),
    ) -> Answer<()> {
        // It may have waited for the end of the daemon, which has said what the sandbox is.
        self.refuse_when_ending()?;
        inner.set(&self.store, SandboxState::Creating, None)?;
        self.halt(entry, inner);
        let started = between(inner).and_then(|()| self.launch(entry, inner, None));
        let started = started.and_then(|()| {
            inner.write(&self.store, |record| {
                record.state = SandboxState::Running;
                record.reason = None;
                record.started_at = Some(now());
                record.generation += 1;
                also(record);
            })
        });
        let Err(error) = started else {
            self.logs.note(&entry.id, "info", "started again");
            return Ok(());
        };
        self.halt(entry, inner);
        let reason = std::iter::once(&error.error).chain(&error.causes);
        let reason: Vec<&str> = reason.map(String::as_str).collect();
        let reason = reason.join(": ");
        self.logs
            .note(&entry.id, "error", &format!("cannot start: {reason}"));
        let state = match self.refuse_when_ending() {
            Ok(()) => SandboxState::Failed,
            Err(_) => SandboxState::Stopped,
        };
        inner.put(&self.store, state, Some(reason));
        // Its processes were ended: that is not nothing.
        let kind = match error.kind {
            ErrorKind::Unavailable => ErrorKind::Failed,
            other => other,
        };
        let error = ApiError { kind, ..error };
        Err(error.while_doing(format!("cannot start the sandbox '{}'", entry.id)))
    }

    /// A request wants to talk to a sandbox that cannot answer now.
    pub(super) fn wake(&self, entry: &Entry) -> Answer<Agent> {
        let mut inner = self.locked(entry)?;
        let now = entry.agent.read().clone();
        if let Some(agent) = now {
            return Ok(agent);
        }
        let state = inner.record.state;
        let sleeps = matches!(state, SandboxState::Paused | SandboxState::Stopped);
        if !sleeps || !inner.record.auto_resume {
            return Err(not_running(&entry.id, state));
        }
        self.refuse_when_ending()?;
        let timeout = Spec::of(&inner.record)?.timeout_s.map(Duration::from_secs);
        self.go_on(entry, &mut inner, timeout, false)?;
        let now = entry.agent.read().clone();
        now.ok_or_else(|| not_running(&entry.id, state))
    }

    /// Gives a sandbox its time from now. `only_longer`: never sooner than so far.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Conflict`] if it does not run.
    pub fn set_timeout(&self, id: &str, timeout: Duration, only_longer: bool) -> Answer<Sandbox> {
        self.check_timeout(Some(timeout))?;
        let entry = self.entry(id)?;
        let _extends = entry.to_be_extended();
        let mut inner = self.locked(&entry)?;
        if !is_up(inner.record.state) {
            return Err(not_running(id, inner.record.state));
        }
        self.extend(&entry, &mut inner, Some(timeout), only_longer)?;
        self.shown(&inner.record)
    }

    /// Takes a sandbox's time away: it goes on until somebody ends it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; or when that cannot be recorded.
    pub fn end_never(&self, id: &str) -> Answer<()> {
        let entry = self.entry(id)?;
        let _extends = entry.to_be_extended();
        let mut inner = self.locked(&entry)?;
        inner.write(&self.store, |record| record.ends_at = None)?;
        self.expiry.set(id, None);
        Ok(())
    }

    fn extend(
        &self,
        entry: &Entry,
        inner: &mut Inner,
        timeout: Option<Duration>,
        only_longer: bool,
    ) -> Answer<()> {
        let Some(mut ends_at) = ends_at(timeout) else {
            return Ok(());
        };
        if only_longer {
            // One without an end keeps none.
            let Some(so_far) = inner.record.ends_at else {
                return Ok(());
            };
            ends_at = ends_at.max(so_far);
        }
        inner.write(&self.store, |record| record.ends_at = Some(ends_at))?;
        self.expiry.set(&entry.id, Some(ends_at));
        Ok(())
    }

    /// Refuses a time that is longer than the configuration allows.
    pub(super) fn check_timeout(&self, timeout: Option<Duration>) -> Answer<()> {
        let most = TIMEOUT_MAX;
        match timeout {
            Some(timeout) if timeout > most => {
                let what = format!("the timeout may be {} s at most", most.as_secs());
                Err(ApiError::new(ErrorKind::Usage, what))
            }
            _ => Ok(()),
        }
    }

    /// Ends a sandbox and removes its workspace; its snapshots stay.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it is gone already, or what is left of it cannot be removed.
    pub fn kill(&self, id: &str) -> Answer<Sandbox> {
        let entry = self.entry(id)?;
        let _ends = entry.to_be_ended();
        let mut inner = self.locked(&entry)?;
        self.kill_locked(&entry, &mut inner)
    }

    /// The same for whoever holds it.
    pub(super) fn kill_locked(&self, entry: &Entry, inner: &mut Inner) -> Answer<Sandbox> {
        inner.set(&self.store, SandboxState::Stopping, None)?;
        let shown = self.shown(&inner.record)?;
        self.remove(entry, inner)?;
        info!(sandbox = entry.id, "killed a sandbox");
        Ok(Sandbox {
            state: crate::wire::sandbox::SandboxState::Stopped,
            ..shown
        })
    }

    /// Ends a sandbox's processes, and removes its workspace and its row.
    pub(super) fn remove(&self, entry: &Entry, inner: &mut Inner) -> Answer<()> {
        self.halt(entry, inner);
        self.delete_workspace_of(&inner.record)?;
        inner.write(&self.store, |record| {
            record.state = SandboxState::Stopped;
            record.deleted_at = Some(now());
            record.ends_at = None;
        })?;
        self.expiry.set(&entry.id, None);
        self.entries.lock().remove(&entry.id);
        self.logs.remove(&entry.id);
        Ok(())
    }

    /// Waits until nobody else changes a sandbox.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if it was killed meanwhile.
    pub(super) fn locked<'a>(
        &self,
        entry: &'a Entry,
    ) -> Answer<parking_lot::MutexGuard<'a, Inner>> {
        let inner = entry.inner.lock();
        match inner.record.deleted_at {
            None => Ok(inner),
            Some(_) => Err(not_found(&entry.id)),
        }
    }
}

/// Why a sandbox was not paused. It goes on.
#[derive(Debug)]
pub(super) enum Unpaused {
    /// What runs in it does not come to rest.
    Restless(ApiError),
    /// Anything else.
    Failed(ApiError),
}

impl From<ApiError> for Unpaused {
    fn from(error: ApiError) -> Self {
        Self::Failed(error)
    }
}

impl From<Unpaused> for ApiError {
    fn from(unpaused: Unpaused) -> Self {
        match unpaused {
            Unpaused::Restless(error) | Unpaused::Failed(error) => error,
        }
    }
}

/// A sandbox that runs, and has no processes: a bug.
pub(super) fn lost(id: &str) -> ApiError {
    ApiError::new(
        ErrorKind::Internal,
        format!("the processes of sandbox '{id}' are lost"),
    )
}
