//! A daemon that is a few maps, and does what it is told to.

use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;

use super::super::backend::{Answer, Backend, Host, NamedSnapshot, SnapshotQuery};
use crate::agent::Agent;
use crate::error::{ApiError, ErrorKind};
use crate::wire::records::Snapshot;
use crate::wire::sandbox::{
    Attached, AttachedSandbox, ForkedSandbox, Limits, OnTimeout, Sandbox, SandboxLogLine,
    SandboxState, SandboxUsage, Template,
};
use crate::wire::{CreateSandbox, ForkSandbox, ListSandboxes, SnapshotSandbox};

/// See the module.
#[derive(Default)]
pub(super) struct Fake {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    next: usize,
    sandboxes: BTreeMap<String, Sandbox>,
    /// By their ids, which grow.
    snapshots: BTreeMap<String, Snapshot>,
    templates: BTreeMap<String, String>,
    created: Vec<CreateSandbox>,
    /// What the next request fails with.
    failure: Option<ErrorKind>,
    panics: bool,
    slow: Option<Duration>,
}

pub(super) const TOKEN: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

impl Fake {
    /// The next request fails so.
    pub(super) fn fail(&self, kind: ErrorKind) {
        self.state.lock().failure = Some(kind);
    }

    /// The next request panics.
    pub(super) fn panic(&self) {
        self.state.lock().panics = true;
    }

    /// Every request takes so long.
    pub(super) fn slow(&self, how: Duration) {
        self.state.lock().slow = Some(how);
    }

    /// The requests for sandboxes so far.
    pub(super) fn created(&self) -> Vec<CreateSandbox> {
        self.state.lock().created.clone()
    }

    pub(super) fn add_sandbox(&self, id: &str, state: SandboxState) {
        let mut held = self.state.lock();
        let cursor = held.number();
        held.sandboxes
            .insert(id.to_owned(), sandbox(id, state, &cursor));
    }

    pub(super) fn add_snapshot(&self, sandbox: &str) -> String {
        self.state.lock().add_snapshot(sandbox)
    }

    pub(super) fn name(&self, name: &str, snapshot: &str) {
        let mut state = self.state.lock();
        state.templates.insert(name.to_owned(), snapshot.to_owned());
    }

    pub(super) fn remove_snapshot(&self, id: &str) {
        self.state.lock().snapshots.remove(id);
    }

    pub(super) fn has_snapshot(&self, id: &str) -> bool {
        self.state.lock().snapshots.contains_key(id)
    }

    fn begin(&self) -> Answer<parking_lot::MutexGuard<'_, State>> {
        let (slow, panics, failure) = {
            let mut state = self.state.lock();
            (
                state.slow,
                std::mem::take(&mut state.panics),
                state.failure.take(),
            )
        };
        if let Some(slow) = slow {
            std::thread::sleep(slow);
        }
        assert!(!panics, "on purpose");
        match failure {
            Some(kind) => Err(ApiError::new(kind, "on purpose").hint("try `floe doctor`")),
            None => Ok(self.state.lock()),
        }
    }
}

impl State {
    fn number(&mut self) -> String {
        self.next += 1;
        format!("{:06}", self.next)
    }

    fn add_snapshot(&mut self, sandbox: &str) -> String {
        let id = self.number();
        self.snapshots.insert(id.clone(), snapshot(&id, sandbox));
        id
    }

    fn sandbox(&mut self, id: &str) -> Answer<&mut Sandbox> {
        let missing = || ApiError::new(ErrorKind::NotFound, format!("there is no sandbox '{id}'"));
        self.sandboxes.get_mut(id).ok_or_else(missing)
    }

    fn named(&self, id: &str) -> Answer<NamedSnapshot> {
        let missing = || ApiError::new(ErrorKind::NotFound, format!("there is no snapshot '{id}'"));
        let found = self.snapshots.get(id).ok_or_else(missing)?;
        let names = self
            .templates
            .iter()
            .filter(|(_, snapshot)| *snapshot == id);
        Ok(NamedSnapshot {
            snapshot: found.clone(),
            names: names.map(|(name, _)| name.clone()).collect(),
            is_listed: found.automatic.is_none(),
        })
    }
}

fn sandbox(id: &str, state: SandboxState, cursor: &str) -> Sandbox {
    Sandbox {
        id: id.to_owned(),
        kind: "process".to_owned(),
        state,
        reason: (state == SandboxState::Stopped).then(|| "the daemon ended".to_owned()),
        template: "base".to_owned(),
        snapshot: None,
        workspace: id.to_owned(),
        metadata: BTreeMap::new(),
        created_at: "2026-01-01T00:00:00Z".to_owned(),
        started_at: Some("2026-01-01T00:00:06Z".to_owned()),
        ends_at: None,
        on_timeout: OnTimeout::Kill,
        auto_resume: false,
        session: None,
        generation: 1,
        limits: Limits::default(),
        unenforced: Vec::new(),
        network: false,
        fidelity: "filesystem".to_owned(),
        cursor: cursor.to_owned(),
    }
}

fn snapshot(id: &str, sandbox: &str) -> Snapshot {
    Snapshot {
        image: None,
        id: id.to_owned(),
        workspace: sandbox.to_owned(),
        name: None,
        parent: None,
        created_at: "2026-01-01T00:00:00Z".to_owned(),
        cursor: id.to_owned(),
        elapsed_us: 1,
        durable: false,
        fidelity: "filesystem".to_owned(),
        message: None,
        labels: BTreeMap::new(),
        automatic: None,
        expires_at: None,
        protected: false,
        layer: 1,
    }
}

impl Backend for Fake {
    fn create(&self, request: &CreateSandbox) -> Answer<AttachedSandbox> {
        let mut state = self.begin()?;
        state.created.push(request.clone());
        let same = |one: &&Sandbox| one.session.is_some() && one.session == request.session;
        if let Some(found) = state.sandboxes.values().find(same).cloned() {
            return Ok(AttachedSandbox {
                sandbox: found,
                attached: Attached::Running,
            });
        }
        let cursor = state.number();
        let id = format!("s{cursor}");
        let made = Sandbox {
            template: request.template.clone().unwrap_or_default(),
            session: request.session.clone(),
            metadata: request.metadata.clone(),
            ..sandbox(&id, SandboxState::Running, &cursor)
        };
        state.sandboxes.insert(id, made.clone());
        Ok(AttachedSandbox {
            sandbox: made,
            attached: Attached::Created,
        })
    }

    fn sandbox(&self, id: &str) -> Answer<Sandbox> {
        self.begin()?.sandbox(id).cloned()
    }

    fn access_token(&self, id: &str) -> Answer<Option<String>> {
        self.begin()?.sandbox(id).map(|_| Some(TOKEN.to_owned()))
    }

    fn with_token(&self, digest: &[u8; 32]) -> Answer<Option<String>> {
        let state = self.begin()?;
        let is_token = Sha256::digest(TOKEN).as_slice() == digest;
        Ok(state.sandboxes.keys().next().cloned().filter(|_| is_token))
    }

    fn access_tokens(&self) -> Answer<Vec<(String, String)>> {
        let state = self.begin()?;
        let ids = state.sandboxes.keys();
        Ok(ids.map(|id| (id.clone(), TOKEN.to_owned())).collect())
    }

    fn environment(&self, id: &str) -> Answer<BTreeMap<String, String>> {
        self.begin()?.sandbox(id).map(|_| BTreeMap::new())
    }

    fn sandboxes(&self, request: &ListSandboxes) -> Answer<Vec<Sandbox>> {
        let state = self.begin()?;
        let mut found: Vec<_> = state.sandboxes.values().cloned().collect();
        found.sort_by(|a, b| a.cursor.cmp(&b.cursor));
        if !request.oldest_first {
            found.reverse();
        }
        let behind = |one: &Sandbox| match (&request.after, request.oldest_first) {
            (None, _) => true,
            (Some(after), true) => one.cursor > *after,
            (Some(after), false) => one.cursor < *after,
        };
        found.retain(|one| {
            behind(one)
                && (request.states.is_empty() || request.states.contains(&one.state))
                && request
                    .metadata
                    .iter()
                    .all(|(key, value)| one.metadata.get(key) == Some(value))
        });
        found.truncate(request.limit.unwrap_or(usize::MAX));
        Ok(found)
    }

    fn session(&self, key: &str) -> Answer<Sandbox> {
        let state = self.begin()?;
        let mut all = state.sandboxes.values();
        let found = all.find(|one| one.session.as_deref() == Some(key)).cloned();
        found.ok_or_else(|| ApiError::new(ErrorKind::NotFound, "the session has no sandbox"))
    }

    fn resume(&self, id: &str, _: Option<Duration>, _: bool) -> Answer<AttachedSandbox> {
        let mut state = self.begin()?;
        let sandbox = state.sandbox(id)?;
        let attached = match std::mem::replace(&mut sandbox.state, SandboxState::Running) {
            SandboxState::Running => Attached::Running,
            _ => Attached::Resumed,
        };
        Ok(AttachedSandbox {
            sandbox: sandbox.clone(),
            attached,
        })
    }

    fn pause(&self, id: &str) -> Answer<bool> {
        let mut state = self.begin()?;
        let sandbox = state.sandbox(id)?;
        let before = std::mem::replace(&mut sandbox.state, SandboxState::Paused);
        Ok(before == SandboxState::Paused)
    }

    fn kill(&self, id: &str) -> Answer<()> {
        let mut state = self.begin()?;
        state.sandbox(id)?;
        state.sandboxes.remove(id);
        Ok(())
    }

    fn set_timeout(&self, id: &str, _: Duration, _: bool) -> Answer<()> {
        self.begin()?.sandbox(id).map(drop)
    }

    fn take_snapshot(&self, request: &SnapshotSandbox) -> Answer<Snapshot> {
        let mut state = self.begin()?;
        state.sandbox(&request.sandbox)?;
        let id = state.add_snapshot(&request.sandbox);
        if let Some(name) = &request.name {
            state.templates.insert(name.clone(), id.clone());
        }
        state.named(&id).map(|named| named.snapshot)
    }

    fn fork(&self, request: &ForkSandbox) -> Answer<Vec<ForkedSandbox>> {
        let mut state = self.begin()?;
        state.sandbox(&request.sandbox)?;
        let mut made = Vec::new();
        for _ in 1..request.count {
            let cursor = state.number();
            let fork = sandbox(&format!("s{cursor}"), SandboxState::Running, &cursor);
            state.sandboxes.insert(fork.id.clone(), fork.clone());
            made.push(ForkedSandbox::Sandbox(Box::new(fork)));
        }
        // The last one has no luck.
        made.push(ForkedSandbox::Error(ApiError::new(
            ErrorKind::Failed,
            "no room",
        )));
        Ok(made)
    }

    fn rollback(&self, id: &str, snapshot: &str) -> Answer<Sandbox> {
        let mut state = self.begin()?;
        state.named(snapshot)?;
        state.sandbox(id).cloned()
    }

    fn usage(&self, id: &str) -> Answer<SandboxUsage> {
        self.begin()?.sandbox(id)?;
        Ok(SandboxUsage {
            at: "2026-01-01T00:00:07Z".to_owned(),
            cpu_us: Some(500_000),
            memory_bytes: Some(1 << 20),
            ..SandboxUsage::default()
        })
    }

    fn logs(&self, id: &str, _: usize) -> Answer<Vec<SandboxLogLine>> {
        self.begin()?.sandbox(id)?;
        Ok(vec![SandboxLogLine {
            at: "2026-01-01T00:00:00Z".to_owned(),
            level: "info".to_owned(),
            message: "started".to_owned(),
        }])
    }

    fn snapshots(&self, query: &SnapshotQuery) -> Answer<Vec<NamedSnapshot>> {
        let state = self.begin()?;
        let named = state
            .snapshots
            .keys()
            .rev()
            .filter_map(|id| state.named(id).ok());
        let fits = |one: &NamedSnapshot| {
            let of = query
                .sandbox
                .as_ref()
                .is_none_or(|id| *id == one.snapshot.workspace);
            let name = query
                .name
                .as_ref()
                .is_none_or(|name| one.names.contains(name));
            let behind = query
                .after
                .as_ref()
                .is_none_or(|after| one.snapshot.cursor < *after);
            of && name && behind
        };
        Ok(named.filter(fits).take(query.limit).collect())
    }

    fn snapshot(&self, reference: &str) -> Answer<NamedSnapshot> {
        let state = self.begin()?;
        let id = state.templates.get(reference).cloned();
        let id = id.unwrap_or_else(|| reference.to_owned());
        // As the daemon does, it takes the beginning of an id for it.
        let whole = state.snapshots.keys().find(|key| key.starts_with(&id));
        state.named(whole.map_or(&id, |whole| whole))
    }

    fn snapshot_bytes(&self, ids: &[String]) -> Answer<Vec<u64>> {
        drop(self.begin()?);
        Ok(ids.iter().map(|_| 4096).collect())
    }

    fn delete_snapshot(&self, id: &str) -> Answer<()> {
        let mut state = self.begin()?;
        state.named(id)?;
        state.snapshots.remove(id);
        state.templates.retain(|_, snapshot| snapshot != id);
        Ok(())
    }

    fn templates(&self) -> Answer<Vec<Template>> {
        let state = self.begin()?;
        let each = state.templates.iter().map(|(name, snapshot)| Template {
            name: name.clone(),
            snapshot: snapshot.clone(),
            updated_at: "2026-01-01T00:00:00Z".to_owned(),
        });
        Ok(each.collect())
    }

    fn template(&self, name: &str) -> Answer<Template> {
        let found = self.templates()?.into_iter().find(|one| one.name == name);
        found.ok_or_else(|| ApiError::new(ErrorKind::NotFound, "there is no such template"))
    }

    fn delete_template(&self, name: &str) -> Answer<()> {
        self.begin()?.templates.remove(name);
        Ok(())
    }

    fn host(&self) -> Host {
        Host {
            cpus: 4,
            memory_bytes: 8 << 30,
            disk_bytes: 100 << 30,
            timeout_s: 300,
        }
    }

    fn agent<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<Agent>> {
        Box::pin(async move {
            self.begin()?.sandbox(id)?;
            Err(ApiError::new(ErrorKind::Conflict, "it has no processes"))
        })
    }
}
