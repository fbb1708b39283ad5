//! Sandboxes: workspaces that run.
//!
//! A sandbox is a row of the catalog, a workspace, and while it runs the processes in [`process`] on a
//! mount of that workspace. One [`entry::Entry`] each keeps these together; what changes it:
//!
//! | file | what it does |
//! |---|---|
//! | [`create`] | makes one: once for a key, once for a session |
//! | [`start`] | mounts, starts and ends its processes |
//! | [`life`] | pause, resume, kill, time |
//! | [`freeze`] | snapshot, fork, rollback |
//! | [`memory`] | the same of a machine, with its memory |
//! | [`seal`] | makes images of memory durable, in the background |
//! | [`expiry`] | ends those whose time is over, and notices those that ended by themselves |
//! | [`recover`] | brings what a killed daemon left into a truthful state |
//! | [`templates`], [`base`] | what sandboxes start from |
//!
//! Methods block, and are not for a thread of the runtime.

mod base;
mod create;
mod engine;
mod entry;
mod expiry;
mod freeze;
mod joined;
mod life;
mod log;
mod memory;
mod process;
mod recover;
mod seal;
mod spec;
mod start;
mod templates;
pub(super) mod vm;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use floe_fs::id::WorkspaceId;
use floe_fs::{MountTarget, SandboxFilter, SandboxRecord, SandboxState, Store, WorkspaceError};
use parking_lot::Mutex;
use subtle::ConstantTimeEq;
use tokio::runtime::Handle;

use super::mounts::Mounts;
use crate::agent::Agent;
use crate::config::SandboxSettings;
use crate::error::{ApiError, ErrorKind};
use crate::store_dir::make_private_dir;
use crate::wire::ListSandboxes;
use crate::wire::records::Snapshot;
use crate::wire::sandbox::{AttachedSandbox, Console, Sandbox, SandboxLogLine, SandboxUsage};
use entry::Entry;
use joined::Joined;
pub(crate) use process::{CgroupError, StartError};
use process::{Cgroups, Host, Slots, Spawner};
use spec::Spec;
pub(crate) use vm::VmError;

/// Most lines of a log that are told at once.
const LOG_LINES_MAX: usize = 10_000;
/// How many rows are read at a time where they are looked through.
const PAGE: usize = 256;

type Answer<T> = Result<T, ApiError>;

/// The sandboxes of a store.
pub struct Sandboxes {
    store: Arc<Store>,
    mounts: Arc<Mounts>,
    runtime: Handle,
    settings: SandboxSettings,
    logs: log::Logs,
    /// What sandboxes need of the host; looked for when the first is started.
    host: OnceLock<Host>,
    making_host: Mutex<()>,
    entries: Mutex<HashMap<String, Arc<Entry>>>,
    /// Snapshots being taken: by sandbox, name, message and labels.
    snapshots: Joined<String, Answer<Snapshot>>,
    /// Sandboxes being made for an idempotency key or a session.
    creations: Joined<String, Answer<AttachedSandbox>>,
    making_base: Mutex<()>,
    sealer: seal::Sealer,
    monitors: vm::Pool,
    expiry: expiry::Clock,
    next_start: AtomicU64,
    ending: AtomicBool,
    me: std::sync::Weak<Sandboxes>,
}

impl Sandboxes {
    /// Takes over the sandboxes of a store: what an earlier daemon left is brought into a truthful
    /// state first.
    ///
    /// # Errors
    /// When the catalog or the directory of logs cannot be used.
    pub(crate) fn start(
        store: Arc<Store>,
        mounts: Arc<Mounts>,
        runtime: Handle,
        settings: SandboxSettings,
    ) -> Answer<Arc<Self>> {
        let dir = store.dir().join("run").join("sandboxes");
        make_private_dir(&dir).map_err(|error| unusable(&dir, &error))?;
        let sandboxes = Arc::new_cyclic(|me| Self {
            logs: log::Logs::new(&dir),
            store,
            mounts,
            runtime,
            settings,
            host: OnceLock::new(),
            making_host: Mutex::new(()),
            entries: Mutex::default(),
            snapshots: Joined::default(),
            creations: Joined::default(),
            making_base: Mutex::new(()),
            sealer: seal::Sealer::default(),
            monitors: vm::Pool::default(),
            expiry: expiry::Clock::default(),
            next_start: AtomicU64::new(1),
            ending: AtomicBool::new(false),
            me: me.clone(),
        });
        sandboxes.recover()?;
        expiry::start(&sandboxes)?;
        Ok(sandboxes)
    }

    /// What sandboxes need of the host.
    fn host(&self) -> Answer<&Host> {
        let _one = self.making_host.lock();
        if let Some(host) = self.host.get() {
            return Ok(host);
        }
        if !rustix::process::geteuid().is_root() {
            let what = "sandboxes need a daemon that runs as root";
            return Err(ApiError::new(ErrorKind::Failed, what)
                .hint("run `floe` as root; workspaces and snapshots need no root"));
        }
        let agent = self.store.dir().join("run").join("floe-guest");
        install(&agent, crate::agent::image::IMAGE).map_err(|error| unusable(&agent, &error))?;
        let threads = |error: io::Error| {
            ApiError::new(ErrorKind::Failed, "cannot start a thread").caused_by(&error)
        };
        let made = Host {
            spawner: Spawner::start().map_err(threads)?,
            cgroups: Cgroups::find(self.store.id())?,
            slots: Arc::new(Slots::default()),
            runtime: self.runtime.clone(),
            agent,
        };
        Ok(self.host.get_or_init(|| made))
    }

    /// Where virtual machines have their directories. Nothing else is there.
    fn vms_dir(&self) -> PathBuf {
        self.store.dir().join("run").join("vms")
    }

    fn refuse_when_ending(&self) -> Answer<()> {
        match self.ending.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(ApiError::new(
                ErrorKind::Unavailable,
                "the daemon is stopping",
            )),
        }
    }

    /// The sandbox of an id.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] of one that never was or was killed.
    fn entry(&self, id: &str) -> Answer<Arc<Entry>> {
        let entries = self.entries.lock();
        entries.get(id).cloned().ok_or_else(|| not_found(id))
    }

    fn shown(&self, record: &SandboxRecord) -> Answer<Sandbox> {
        // The workspace keeps the sandbox's id as its name, unless somebody renames it.
        let name = self.workspace_if_any(record)?;
        spec::shown(record, name.as_deref().unwrap_or(&record.id))
    }

    /// The name of a sandbox's workspace. Never that of another one, which may have its id as a name.
    fn workspace_name(&self, record: &SandboxRecord) -> Answer<String> {
        self.workspace_if_any(record)?.ok_or_else(|| {
            let what = format!("the workspace of the sandbox '{}' is gone", record.id);
            ApiError::new(ErrorKind::Conflict, what)
                .hint(format!("remove it with `floe sandbox kill {}`", record.id))
        })
    }

    fn workspace_if_any(&self, record: &SandboxRecord) -> Answer<Option<String>> {
        match record.workspace {
            Some(id) => Ok(self.store.workspace_name(id)?),
            // It is made under this name before the row says so.
            None => Ok(Some(record.id.clone())),
        }
    }

    /// Deletes the workspace of a sandbox, if it is there.
    fn delete_workspace_of(&self, record: &SandboxRecord) -> Answer<()> {
        let Some(name) = self.workspace_if_any(record)? else {
            return Ok(());
        };
        // Whoever only looks at it has nothing to look at any more.
        if let Some(workspace) = record.workspace {
            let target = MountTarget::Workspace(workspace);
            if self.mounts.umount(&target, false).is_err() {
                self.mounts.umount(&target, true)?;
            }
        }
        match self.store.delete_workspace(&name) {
            Ok(_) | Err(WorkspaceError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// The sandbox that has a workspace, if one does.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn of_workspace(&self, workspace: WorkspaceId) -> Answer<Option<String>> {
        let all = self.store.sandboxes(&SandboxFilter::default())?;
        let mut having = all
            .into_iter()
            .filter(|one| one.workspace == Some(workspace));
        Ok(having.next().map(|one| one.id))
    }

    /// The row of a sandbox as it is now, without waiting for whoever changes it.
    fn record(&self, id: &str) -> Answer<SandboxRecord> {
        let found = self.store.sandbox(id)?;
        found
            .filter(|record| record.deleted_at.is_none())
            .ok_or_else(|| not_found(id))
    }

    /// Describes a sandbox.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] of one that never was or was killed.
    pub fn get(&self, id: &str) -> Answer<Sandbox> {
        self.shown(&self.record(id)?)
    }

    /// The token that a sandbox's files and processes are guarded with.
    ///
    /// # Errors
    /// As [`Sandboxes::get`].
    pub fn access_token(&self, id: &str) -> Answer<Option<String>> {
        Ok(Spec::of(&self.record(id)?)?.token)
    }

    /// The sandbox whose token has this SHA-256.
    pub fn with_token(&self, digest: &[u8; 32]) -> Option<String> {
        let entries = self.entries.lock();
        let is_it = |entry: &&Arc<Entry>| {
            let token = entry.token.as_ref();
            // Whoever asks cannot choose how much of a digest fits, but need not learn it either.
            token.is_some_and(|token| token.digest.ct_eq(digest).into())
        };
        entries.values().find(is_it).map(|entry| entry.id.clone())
    }

    /// The tokens of all sandboxes that have one, with their ids.
    pub fn access_tokens(&self) -> Vec<(String, String)> {
        let entries = self.entries.lock();
        let with_token =
            |entry: &Arc<Entry>| Some((entry.id.clone(), entry.token.as_ref()?.text.clone()));
        entries.values().filter_map(with_token).collect()
    }

    /// The environment that a sandbox's processes get.
    ///
    /// # Errors
    /// As [`Sandboxes::get`].
    pub fn environment(&self, id: &str) -> Answer<std::collections::BTreeMap<String, String>> {
        Ok(Spec::of(&self.record(id)?)?.env)
    }

    /// Lists sandboxes.
    ///
    /// # Errors
    /// When a place or time in the request is not one, or the catalog cannot be read.
    pub fn list(&self, request: &ListSandboxes) -> Answer<Vec<Sandbox>> {
        let after = request.after.as_deref().map(str::parse).transpose()?;
        let since = request
            .since
            .as_deref()
            .map(super::handlers::nanoseconds)
            .transpose()?;
        let limit = request.limit.unwrap_or(usize::MAX);
        let mut filter = SandboxFilter {
            states: spec::kept(&request.states),
            template: request.template.clone(),
            since,
            oldest_first: request.oldest_first,
            after,
            limit: Some(PAGE),
        };
        let mut found = Vec::new();
        loop {
            let page = self.store.sandboxes(&filter)?;
            let Some(last) = page.last() else {
                return Ok(found);
            };
            filter.after = Some(floe_fs::SandboxCursor::behind(last));
            for record in &page {
                let spec = Spec::of(record)?;
                let mut wanted = request.metadata.iter();
                if !spec.builds && wanted.all(|(key, value)| spec.metadata.get(key) == Some(value))
                {
                    if found.len() == limit {
                        return Ok(found);
                    }
                    found.push(self.shown(record)?);
                }
            }
        }
    }

    /// The agent of a sandbox. One that is paused goes on first if it was made so.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such sandbox, [`ErrorKind::Conflict`] if it does not run.
    pub async fn agent(&self, id: &str) -> Answer<Agent> {
        let entry = self.entry(id)?;
        let now = entry.agent.read().clone();
        if let Some(agent) = now {
            return Ok(agent);
        }
        let waiting = Arc::clone(&entry);
        let _one = waiting.waking.lock().await;
        let now = entry.agent.read().clone();
        if let Some(agent) = now {
            return Ok(agent);
        }
        let me = self.me.upgrade().ok_or_else(|| not_found(id))?;
        let wakes = tokio::task::spawn_blocking(move || me.wake(&entry));
        wakes.await.map_err(|error| {
            ApiError::new(ErrorKind::Internal, "a sandbox could not be woken").caused_by(&error)
        })?
    }

    /// What a sandbox uses.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such sandbox.
    pub fn usage(&self, id: &str) -> Answer<SandboxUsage> {
        let record = self.record(id)?;
        let mut usage = SandboxUsage {
            at: jiff::Timestamp::now().to_string(),
            ..SandboxUsage::default()
        };
        if let Ok(workspace) = self.store.workspace(&self.workspace_name(&record)?) {
            usage.disk_bytes = workspace.bytes;
        }
        let entry = self.entry(id)?;
        let counters = |inner: &entry::Inner| inner.running.as_ref().map(|it| it.engine.usage());
        // Whoever changes it holds it only for a moment, but for a start.
        let Some(group) = entry
            .inner
            .try_lock_for(Duration::from_secs(1))
            .and_then(|it| counters(&it))
        else {
            return Ok(usage);
        };
        usage.cpu_us = group.cpu_us;
        usage.memory_bytes = group.memory_bytes;
        usage.cache_bytes = group.cache_bytes;
        usage.pids = group.pids;
        Ok(usage)
    }

    /// What happened to and in a sandbox, oldest first.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such sandbox, or its log cannot be read.
    pub fn logs(&self, id: &str, limit: Option<usize>) -> Answer<Vec<SandboxLogLine>> {
        self.record(id)?;
        let limit = limit.unwrap_or(LOG_LINES_MAX).min(LOG_LINES_MAX);
        self.logs.read(id, limit).map_err(|error| {
            let what = format!("cannot read the log of sandbox '{id}'");
            ApiError::new(ErrorKind::Failed, what).caused_by(&error)
        })
    }

    /// Reads what the console of a virtual machine said, from a place on.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] if there is no such sandbox, [`ErrorKind::Conflict`] if it has no console.
    pub fn console(&self, id: &str, offset: u64) -> Answer<Console> {
        if self.record(id)?.kind != floe_fs::SandboxKind::Vm {
            let what = format!("the sandbox '{id}' is no virtual machine, and has no console");
            return Err(ApiError::new(ErrorKind::Conflict, what)
                .hint(format!("its log is shown by `floe sandbox logs {id}`")));
        }
        let (text, next) = self.logs.read_console(id, offset).map_err(|error| {
            let what = format!("cannot read the console of '{id}'");
            ApiError::new(ErrorKind::Failed, what).caused_by(&error)
        })?;
        Ok(Console { text, next })
    }

    /// Notes something in a sandbox's log. `level` is `info`, `warn` or `error`.
    pub fn note(&self, id: &str, level: &str, message: &str) {
        if self.entries.lock().contains_key(id) {
            self.logs.note(id, level, message);
        }
    }

    /// Ends every sandbox's processes; they are stopped, and can be started again by the next daemon.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        self.expiry.end();
        let entries: Vec<_> = self.entries.lock().values().cloned().collect();
        for entry in entries {
            self.stop_for_the_end(&entry);
        }
        self.monitors.end();
        self.sealer.finish();
        if let Some(host) = self.host.get() {
            host.cgroups.tidy();
        }
    }
}

/// The limits that this host cannot enforce, by name.
///
/// # Errors
/// When processes cannot even be frozen here.
pub(crate) fn host_limits() -> Result<Vec<&'static str>, CgroupError> {
    Ok(Cgroups::find("doctor")?.missing())
}

/// Puts the agent's binary where sandboxes can be shown it. Sandboxes that run have the file that was there.
fn install(path: &std::path::Path, binary: &[u8]) -> io::Result<()> {
    use std::os::unix::fs::PermissionsExt;
    if std::fs::read(path).is_ok_and(|there| there == binary) {
        return Ok(());
    }
    let new = path.with_extension("new");
    std::fs::write(&new, binary)?;
    std::fs::set_permissions(&new, std::fs::Permissions::from_mode(0o555))?;
    std::fs::rename(&new, path)
}

fn not_found(id: &str) -> ApiError {
    ApiError::new(ErrorKind::NotFound, format!("there is no sandbox '{id}'"))
        .hint("see what there is with `floe sandbox list`")
}

fn unusable(path: &std::path::Path, error: &io::Error) -> ApiError {
    ApiError::new(
        ErrorKind::Failed,
        format!("cannot use '{}'", path.display()),
    )
    .caused_by(error)
}

/// Whether a sandbox in this state has processes that go on.
fn is_up(state: SandboxState) -> bool {
    matches!(state, SandboxState::Running | SandboxState::Snapshotting)
}
