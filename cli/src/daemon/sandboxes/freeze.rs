//! Snapshots of a sandbox, forks of it, and putting it back on one.
//!
//! For a snapshot the processes are frozen, then the layer, then the processes go on: what is in it is the
//! state of one moment. A request that arrives before they go on gets the same snapshot, since nothing can have
//! happened in the sandbox between the two. A virtual machine writes back first what is in its memory only, and
//! who asks after that has begun gets another snapshot.

use std::time::Duration;

use floe_fs::id::{SnapshotId, TemplateName, WorkspaceName};
use floe_fs::{ForkSource, SandboxRecord, SandboxState, SnapshotOptions};
use tracing::{error, warn};

use super::create::{new_id, new_token};
use super::engine::Engine;
use super::entry::{Entry, Inner};
use super::life::{self, FREEZE_WAIT, lost};
use super::memory::{Wanted, keeps_memory};
use super::spec::Spec;
use super::start::not_running;
use super::{Answer, Sandboxes, is_up};
use crate::agent::Agent;
use crate::daemon::handlers::check_texts;
use crate::error::{ApiError, ErrorKind};
use crate::wire::records::Snapshot;
use crate::wire::sandbox::{ForkedSandbox, Sandbox};
use crate::wire::{ForkSandbox, SnapshotSandbox};

/// How long a snapshot that several have asked for waits for more who do.
const GATHER_MAX: Duration = Duration::from_millis(10);
/// How long the snapshot stays that a machine is forked by: the next one of its source is made over it.
const FORK_KEPT: Duration = Duration::from_secs(3600);
/// Most forks of one request.
const FORKS_MAX: u32 = 100;

impl Sandboxes {
    /// Takes a snapshot of a sandbox that runs. One that is being taken for an equal request is the answer.
    /// With memory it takes a while, and is given up when `is_unwanted` says that whoever asked has gone; others
    /// who asked for the same are not left without.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::Conflict`] if it does not run; [`ErrorKind::Unavailable`] when
    /// its processes do not come to rest: there is no snapshot then.
    pub fn snapshot(
        &self,
        request: &SnapshotSandbox,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Answer<Snapshot> {
        check_texts(request.message.as_deref(), &request.labels)?;
        let template = request
            .name
            .as_deref()
            .map(TemplateName::parse)
            .transpose()?;
        let entry = self.entry(&request.sandbox)?;
        let SnapshotSandbox {
            sandbox,
            name,
            message,
            labels,
        } = request;
        let key = format!("{sandbox} {name:?} {message:?} {labels:?}");
        let taken = self.snapshots.run(&key, |door| {
            let options = SnapshotOptions {
                message: message.clone(),
                labels: labels.clone(),
                ..SnapshotOptions::default()
            };
            // Before the lock, which others need.
            door.gather(GATHER_MAX);
            let mut inner = self.locked(&entry)?;
            if !is_up(inner.record.state) {
                return Err(not_snapshotted(&entry.id, inner.record.state));
            }
            let name = self.workspace_name_of(&entry)?;
            let taken = match keeps_memory(&inner)? {
                true => {
                    let wanted = Wanted {
                        options: &options,
                        to_fork: false,
                        is_unwanted: &|| is_unwanted() && door.close_if_alone(),
                        before_it_goes_on: &|| door.close(),
                    };
                    self.with_memory(&entry, &mut inner, &name, &wanted)?
                }
                false => {
                    let take = || Ok(self.store.snapshot(&name, &options)?);
                    self.frozen(&entry, &mut inner, take, &|| door.close())?
                }
            };
            if let Some(name) = &template {
                self.store.set_template(name, &taken.id, None)?;
            }
            self.logs
                .note(&entry.id, "info", &format!("snapshot {}", taken.id));
            Ok(Snapshot::from(taken))
        });
        let lost = || {
            Err(ApiError::new(
                ErrorKind::Internal,
                "the snapshot was not taken",
            ))
        };
        taken.map_or_else(lost, |(taken, _)| taken)
    }

    fn workspace_name_of(&self, entry: &Entry) -> Answer<String> {
        self.workspace_name(&self.record(&entry.id)?)
    }

    /// Does something while the processes stand still. `before_they_go_on` is called before anything can happen
    /// in the sandbox that is not in what was done; perhaps more than once.
    fn frozen<T>(
        &self,
        entry: &Entry,
        inner: &mut Inner,
        act: impl FnOnce() -> Answer<T>,
        before_they_go_on: &dyn Fn(),
    ) -> Answer<T> {
        inner.set(&self.store, SandboxState::Snapshotting, None)?;
        let running = inner.running.as_ref().ok_or_else(|| lost(&entry.id))?;
        if let Engine::Vm(_) = running.engine {
            // What is stored through a mapping from here on may be missing: who asks now gets another one.
            before_they_go_on();
            self.write_back(&entry.id, &running.engine);
        }
        let acted = match running.engine.freeze(FREEZE_WAIT) {
            Ok(()) => act(),
            // They go on already.
            Err(error) => {
                inner.set(&self.store, SandboxState::Running, None)?;
                return Err(error);
            }
        };
        // Whatever becomes of the row: the same lock is needed to find it behind.
        inner.put(&self.store, SandboxState::Running, None);
        before_they_go_on();
        // Whatever went wrong before.
        let running = inner.running.as_ref().ok_or_else(|| lost(&entry.id))?;
        if let Err(failed) = running.engine.thaw() {
            error!(
                sandbox = entry.id,
                error = failed.error,
                "a sandbox stands still"
            );
            return Err(failed);
        }
        acted
    }

    /// Has what is only in a machine's memory yet written to its files, which are all that a snapshot has of
    /// it. One that does not do it in time is snapshotted without, and its log says so.
    pub(super) fn write_back(&self, id: &str, engine: &Engine) {
        // What runs on the host has its pages there, and its mount sees to them.
        if let Engine::Vm(vm) = engine {
            self.sync_agent(id, &vm.agent);
        }
    }

    fn sync_agent(&self, id: &str, agent: &Agent) {
        let Err(error) = self.runtime.block_on(agent.sync()) else {
            return;
        };
        let said = format!(
            "what programs changed in mapped files may be missing from a snapshot: {error}"
        );
        self.logs.note(id, "warn", &said);
        warn!(sandbox = id, %error, "a virtual machine did not write back before a snapshot");
    }

    /// The same of the machine that has a workspace, if one does and runs: before a snapshot of the workspace
    /// that is asked for without it.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] of the workspace; or when the catalog cannot be read.
    pub fn write_back_workspace(&self, name: &str) -> Answer<()> {
        let entries: Vec<_> = self.entries.lock().values().cloned().collect();
        for entry in entries.iter().filter(|entry| entry.is_vm) {
            // One that stands still did it before.
            let Some(agent) = entry.agent.read().clone() else {
                continue;
            };
            let workspace = self.store.workspace(name)?;
            let Some(record) = self.store.sandbox(&entry.id)? else {
                continue;
            };
            let lent = Spec::of(&record)?.vm.and_then(|vm| vm.workspace);
            if record.workspace == Some(workspace.id) || lent.as_ref() == Some(&workspace.name) {
                self.sync_agent(&record.id, &agent);
            }
        }
        Ok(())
    }

    /// Makes further sandboxes of a sandbox as it is now, and starts them. Each is there or says why not.
    /// `is_unwanted`: as for [`Sandboxes::snapshot`].
    ///
    /// # Errors
    /// As [`Sandboxes::snapshot`], then there is none.
    pub fn fork(
        &self,
        request: &ForkSandbox,
        is_unwanted: &dyn Fn() -> bool,
    ) -> Answer<Vec<ForkedSandbox>> {
        self.refuse_when_ending()?;
        if request.count == 0 || request.count > FORKS_MAX {
            let what = format!("there may be 1 to {FORKS_MAX} forks at once");
            return Err(ApiError::new(ErrorKind::Usage, what));
        }
        let timeout = request.timeout_s.map(Duration::from_secs);
        self.check_timeout(timeout)?;
        let source = self.entry(&request.sandbox)?;
        let mut inner = self.locked(&source)?;
        if Spec::of(&inner.record)?
            .vm
            .is_some_and(|vm| vm.workspace.is_some())
        {
            let what = format!(
                "'{}' has a workspace for itself, which forks would need too",
                source.id
            );
            return Err(ApiError::new(ErrorKind::Conflict, what)
                .hint("fork its workspace with `floe fork`, and start another machine with that"));
        }
        let name = self.workspace_name(&inner.record)?;
        let ids: Vec<String> = (0..request.count)
            .map(|_| new_id())
            .collect::<Answer<_>>()?;
        let names = ids
            .iter()
            .map(|id| WorkspaceName::parse(id))
            .collect::<Result<Vec<_>, _>>()?;
        let entries: Vec<_> = ids
            .iter()
            .map(|id| Ok(Entry::new(forked(&inner.record, id, request.timeout_s)?)))
            .collect::<Answer<_>>()?;
        let mut locks: Vec<_> = entries.iter().map(|entry| entry.inner.lock()).collect();
        self.admit(&entries)?;
        for at in 0..entries.len() {
            if let Err(error) = self.store.put_sandbox(&locks[at].record) {
                self.dismiss(&entries[at..]);
                for (entry, lock) in entries.iter().zip(&mut locks).take(at) {
                    self.abandon(entry, lock);
                }
                return Err(error.into());
            }
        }
        let (mut memory, mut only_for_these) = (None, None);
        let act = || {
            Ok(self
                .store
                .fork(&ForkSource::Workspace(name.clone()), &names)?)
        };
        let made = match inner.record.state {
            state if is_up(state) && keeps_memory(&inner)? => {
                // Rules would keep it for days, with all of the memory.
                let expires_at = life::ends_at(Some(FORK_KEPT));
                let wanted = Wanted {
                    options: &SnapshotOptions {
                        expires_at,
                        ..SnapshotOptions::default()
                    },
                    to_fork: true,
                    is_unwanted,
                    before_it_goes_on: &|| (),
                };
                let taken = self.with_memory(&source, &mut inner, &name, &wanted);
                taken.and_then(|taken| {
                    let of = ForkSource::Snapshot(taken.id.clone());
                    let made = self.goes_on(&taken).and_then(|goes_on| {
                        memory = Some(goes_on);
                        Ok(self.store.fork(&of, &names)?)
                    });
                    if made.is_err() {
                        self.take_away(&taken);
                    }
                    only_for_these = Some(taken);
                    made
                })
            }
            state if is_up(state) => self.frozen(&source, &mut inner, act, &|| ()),
            SandboxState::Paused | SandboxState::Stopped => act(),
            other => Err(not_snapshotted(&source.id, other)),
        };
        drop(inner);
        let made = match made {
            Ok(made) => made,
            Err(error) => {
                for (entry, lock) in entries.iter().zip(&mut locks) {
                    self.abandon(entry, lock);
                }
                return Err(error);
            }
        };
        let snapshot = made.first().and_then(|info| info.forked_from.clone());
        let mut forks = Vec::new();
        for (entry, mut lock) in entries.iter().zip(locks) {
            lock.record.snapshot = snapshot.clone();
            let made = self.bring_up(entry, &mut lock, memory.as_ref());
            forks.push(match made.and_then(|()| self.shown(&lock.record)) {
                Ok(shown) => ForkedSandbox::Sandbox(Box::new(shown)),
                Err(error) => {
                    self.abandon(entry, &mut lock);
                    ForkedSandbox::Error(error)
                }
            });
        }
        let is_there = |fork: &ForkedSandbox| matches!(fork, ForkedSandbox::Sandbox(_));
        if let Some(taken) = only_for_these.filter(|_| !forks.iter().any(is_there)) {
            self.take_away(&taken);
        }
        Ok(forks)
    }

    /// Puts a sandbox's workspace back on a snapshot. Its processes are ended before, and started again.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] of the sandbox or the snapshot; or when it cannot be started again.
    pub fn rollback(&self, id: &str, snapshot: &str) -> Answer<Sandbox> {
        self.refuse_when_ending()?;
        let entry = self.entry(id)?;
        let mut inner = self.locked(&entry)?;
        let to = self.store.find_snapshot(snapshot)?.id;
        let name = self.workspace_name(&inner.record)?;
        let timeout = Spec::of(&inner.record)?.timeout_s.map(Duration::from_secs);
        let ends_at = inner.record.ends_at.or(life::ends_at(timeout));
        let back = |_: &Inner| {
            self.store.rollback(&name, to.as_str())?;
            Ok(())
        };
        self.restart(&entry, &mut inner, back, |record| {
            record.ends_at = ends_at;
            record.snapshot = Some(to.clone());
        })?;
        self.expiry.set(id, ends_at);
        self.logs.note(id, "info", &format!("rolled back to {to}"));
        self.shown(&inner.record)
    }
}

/// The row of a fork before it is made.
fn forked(source: &SandboxRecord, id: &str, timeout_s: Option<u64>) -> Answer<SandboxRecord> {
    let mut spec = Spec::of(source)?;
    spec.token = spec.token.is_some().then(new_token).transpose()?;
    spec.timeout_s = timeout_s;
    spec.request = String::new();
    Ok(SandboxRecord {
        id: id.to_owned(),
        state: SandboxState::Creating,
        reason: None,
        workspace: None,
        snapshot: None::<SnapshotId>,
        created_at: life::now(),
        started_at: None,
        ends_at: None,
        generation: source.generation + 1,
        slot: None,
        session: None,
        idempotency_key: None,
        spec: spec.text()?,
        deleted_at: None,
        ..source.clone()
    })
}

fn not_snapshotted(id: &str, state: SandboxState) -> ApiError {
    let word = state.word();
    let what = format!("sandbox '{id}' cannot be snapshotted while in '{word}' state");
    ApiError {
        error: what,
        ..not_running(id, state)
    }
}
