//! Starting and ending the processes of a sandbox on a mount of its workspace.
//!
//! Order: a slot of ids, the mount that shows the slot's ids, the processes; ending is the reverse. What
//! fails undoes what was before it.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use floe_fs::{MountTarget, SandboxState, WorkspaceInfo};
use tracing::{debug, warn};

use super::engine::Engine;
use super::entry::{Entry, Inner, Running};
use super::process::{Host, Process, Slot, Start};
use super::spec::Spec;
use super::vm::{GoesOn, Vm, VmStart};
use super::{Answer, Sandboxes};
use crate::agent::Agent;
use crate::daemon::mounts::Subject;
use crate::error::{ApiError, ErrorKind};
use crate::wire::sandbox::VmSpec;

/// How long a machine runs until what it has touched counts as what it needs first.
const WORKING_SET_AFTER: Duration = Duration::from_secs(5);

impl Sandboxes {
    /// Starts the processes. The row says already that this is about to happen, and is not written here
    /// but for limits that the host does not enforce. A machine goes on from `memory`, if there is any, else it
    /// boots.
    pub(super) fn launch(
        &self,
        entry: &Entry,
        inner: &mut Inner,
        memory: Option<&GoesOn>,
    ) -> Answer<()> {
        self.refuse_when_ending()?;
        let host = self.host()?;
        let mut spec = Spec::of(&inner.record)?;
        let slot = host.slots.take()?;
        let workspace = self.store.workspace(&self.workspace_name(&inner.record)?)?;
        let engine = match &spec.vm {
            None => Engine::Process(self.launch_processes(host, entry, workspace, &spec, &slot)?),
            Some(vm) => Engine::Vm(Box::new(self.launch_vm(
                host,
                entry,
                workspace,
                (&spec, vm, memory),
                &slot,
            )?)),
        };
        let number = self.next_start.fetch_add(1, Ordering::Relaxed);
        let agent = engine.agent().clone();
        let unenforced = engine.unenforced().to_vec();
        inner.running = Some(Running {
            engine,
            slot,
            number,
        });
        let ready = self
            .runtime
            .block_on(agent.set_env(spec.env.clone()))
            .map_err(ApiError::from);
        let ready = ready.and_then(|()| {
            if spec.unenforced == unenforced {
                return Ok(());
            }
            spec.unenforced = unenforced;
            let text = spec.text()?;
            inner.write(&self.store, |record| record.spec = text)
        });
        if let Err(error) = ready {
            self.halt(entry, inner);
            return Err(error);
        }
        *entry.agent.write() = Some(agent.clone());
        if memory.is_some() {
            self.note_working_set_later(&entry.id, number);
        }
        let (me, id) = (self.me.clone(), entry.id.clone());
        self.runtime.spawn(async move {
            agent.closed().await;
            let noticed = tokio::task::spawn_blocking(move || {
                if let Some(me) = me.upgrade() {
                    me.notice_end(&id, number);
                }
            });
            if let Err(error) = noticed.await {
                warn!(%error, "the end of a sandbox was not dealt with");
            }
        });
        Ok(())
    }

    fn launch_processes(
        &self,
        host: &Host,
        entry: &Entry,
        workspace: WorkspaceInfo,
        spec: &Spec,
        slot: &Slot,
    ) -> Answer<Process> {
        let target = MountTarget::Workspace(workspace.id);
        let subject = Subject::Sandbox(workspace, Some(slot.shift()));
        let root = self.mounts.mount(&subject, None)?;
        let started = Process::start(
            host,
            &Start {
                id: &entry.id,
                root: &root,
                slot,
                limits: &spec.limits,
                network: spec.network,
                log: &self.logs.errors(&entry.id),
            },
        );
        Ok(started.inspect_err(|_| self.unmount(&target, &root))?)
    }

    fn launch_vm(
        &self,
        host: &Host,
        entry: &Entry,
        root: WorkspaceInfo,
        (spec, vm, memory): (&Spec, &VmSpec, Option<&GoesOn>),
        slot: &Slot,
    ) -> Answer<Vm> {
        let root = Subject::Sandbox(root, None);
        let workspace = match &vm.workspace {
            Some(name) => Some(Subject::Sandbox(self.store.workspace(name)?, None)),
            None => None,
        };
        let started = Vm::start(
            host,
            &VmStart {
                id: &entry.id,
                mounts: &self.mounts,
                root: &root,
                workspace: workspace.as_ref(),
                spec: vm,
                store: self.store.dir(),
                goes_on: memory,
                limits: &spec.limits,
                slot,
                dir: &self.vms_dir(),
                console: &self.logs.console(&entry.id),
                log: &self.logs.errors(&entry.id),
                is_ending: &self.ending,
                pool: &self.monitors,
            },
        );
        self.fill_pool();
        Ok(started?)
    }

    /// When a machine that was started from an image has run for a moment, notes what it wanted of that.
    fn note_working_set_later(&self, id: &str, number: u64) {
        let (me, id) = (self.me.clone(), id.to_owned());
        self.runtime.spawn(async move {
            tokio::time::sleep(WORKING_SET_AFTER).await;
            let noted = tokio::task::spawn_blocking(move || {
                if let Some(me) = me.upgrade() {
                    me.note_working_set(&id, number);
                }
            });
            if let Err(error) = noted.await {
                warn!(%error, "a working set was not noted");
            }
        });
    }

    fn note_working_set(&self, id: &str, number: u64) {
        let Ok(entry) = self.entry(id) else {
            return;
        };
        // One that is being changed is not waited for: it is a hint.
        let Some(inner) = entry.inner.try_lock() else {
            return;
        };
        let running = inner.running.as_ref();
        let running = running.filter(|running| running.number == number);
        if let Some(Engine::Vm(vm)) = running.map(|running| &running.engine)
            && let Err(error) = vm.note_working_set()
        {
            debug!(sandbox = id, %error, "a working set was not noted");
        }
    }

    /// Starts monitors for machines to come, for which nobody waits.
    fn fill_pool(&self) {
        let me = self.me.clone();
        let fill = move || {
            if let Some(me) = me.upgrade()
                && let Some(host) = me.host.get()
            {
                me.monitors.fill(&host.spawner);
            }
        };
        let thread = std::thread::Builder::new().name("vm-pool".to_owned());
        if let Err(error) = thread.spawn(fill) {
            warn!(%error, "no monitor is started before it is needed");
        }
    }

    /// Ends the processes and unmounts. Nothing to do for one that has none.
    pub(super) fn halt(&self, entry: &Entry, inner: &mut Inner) {
        *entry.agent.write() = None;
        let Some(running) = inner.running.take() else {
            return;
        };
        let is_mounted = matches!(running.engine, Engine::Process(_));
        running.engine.end();
        if let Some(workspace) = inner.record.workspace.filter(|_| is_mounted) {
            let target = MountTarget::Workspace(workspace);
            self.unmount(&target, Path::new(&entry.id));
        }
        // Only now may others have its ids.
        drop(running.slot);
    }

    /// Whoever looks at the workspace goes on.
    fn unmount(&self, target: &MountTarget, what: &Path) {
        let Err(error) = self.mounts.umount_working(target, false) else {
            return;
        };
        warn!(sandbox = %what.display(), error = error.error, causes = ?error.causes,
            "cannot unmount a sandbox's workspace cleanly, detaching");
        if let Err(error) = self.mounts.umount_working(target, true) {
            warn!(sandbox = %what.display(), error = error.error, causes = ?error.causes,
                "cannot detach a sandbox's workspace");
        }
    }

    /// The agent of a start is gone. If nobody ended it, the sandbox is stopped, and says so.
    fn notice_end(&self, id: &str, number: u64) {
        let Ok(entry) = self.entry(id) else {
            return;
        };
        let mut inner = entry.inner.lock();
        let Some(running) = inner
            .running
            .as_ref()
            .filter(|running| running.number == number)
        else {
            return;
        };
        let (reason, failed) = running.engine.ended_because();
        let state = match failed {
            true => SandboxState::Failed,
            false => SandboxState::Stopped,
        };
        self.halt(&entry, &mut inner);
        self.logs.note(id, "error", &reason);
        warn!(sandbox = id, reason, "a sandbox ended by itself");
        if let Err(error) = inner.set(&self.store, state, Some(reason)) {
            warn!(sandbox = id, error = error.error, causes = ?error.causes,
                "the end of a sandbox could not be recorded");
        }
    }

    /// Why a sandbox ended by itself, whose agent this was until it was gone. None if somebody ended it.
    pub fn why_ended(&self, id: &str, agent: &Agent) -> Option<String> {
        let entry = self.entry(id).ok()?;
        let number = {
            let inner = entry.inner.lock();
            let running = inner.running.as_ref();
            // Not of one that is only silent, or has nothing more to say on one channel.
            running
                .filter(|running| running.engine.agent().is(agent) && agent.is_closed())
                .map(|running| running.number)
        };
        // Whoever is first does it.
        if let Some(number) = number {
            self.notice_end(id, number);
        }
        let inner = entry.inner.lock();
        let has_ended = matches!(
            inner.record.state,
            SandboxState::Stopped | SandboxState::Failed
        );
        inner.record.reason.clone().filter(|_| has_ended)
    }

    /// The daemon ends: the processes go, the workspace stays.
    pub(super) fn stop_for_the_end(&self, entry: &Entry) {
        let _ends = entry.to_be_ended();
        let mut inner = entry.inner.lock();
        if inner.running.is_none() {
            return;
        }
        let was_paused = inner.record.state == SandboxState::Paused;
        self.halt(entry, &mut inner);
        let written = inner.set(
            &self.store,
            SandboxState::Stopped,
            Some(stopped_because(was_paused, "was stopped")),
        );
        if let Err(error) = written {
            warn!(sandbox = entry.id, error = error.error, causes = ?error.causes,
                "the next daemon will find out that a sandbox has no processes");
        }
    }
}

/// What a sandbox says that lost its processes with the daemon.
pub(super) fn stopped_because(was_paused: bool, daemon: &str) -> String {
    let what = if was_paused { "paused" } else { "running" };
    format!("the daemon {daemon} while it was {what}: its processes are gone, its files are there")
}

/// What is said of a sandbox that does not run.
pub(super) fn not_running(id: &str, state: SandboxState) -> ApiError {
    let what = format!("the sandbox '{id}' is {}", state.word());
    ApiError::new(ErrorKind::Conflict, what)
        .hint(format!("have it go on with `floe sandbox resume {id}`"))
}
