//! How the daemon answers the API.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::time::Duration;

use floe_fs::id::TemplateName;
use floe_fs::{SnapshotFilter, SnapshotInfo};
use futures_util::future::BoxFuture;

use super::backend::{Answer, Backend, Host, NamedSnapshot, SnapshotQuery};
use crate::agent::Agent;
use crate::daemon::{Daemon, handlers};
use crate::error::{ApiError, ErrorKind};
use crate::wire::records::Snapshot;
use crate::wire::sandbox::{
    AttachedSandbox, ForkedSandbox, Sandbox, SandboxLogLine, SandboxUsage, Template,
};
use crate::wire::{CreateSandbox, DeleteSnapshots, ForkSandbox, ListSandboxes, SnapshotSandbox};

/// The label of a snapshot that is a step of a template, and not for lists.
const STEP: &str = "floe.step";

impl Backend for Daemon {
    fn create(&self, request: &CreateSandbox) -> Answer<AttachedSandbox> {
        self.sandboxes.create(request)
    }

    fn sandbox(&self, id: &str) -> Answer<Sandbox> {
        self.sandboxes.get(id)
    }

    fn access_token(&self, id: &str) -> Answer<Option<String>> {
        self.sandboxes.access_token(id)
    }

    fn with_token(&self, digest: &[u8; 32]) -> Answer<Option<String>> {
        Ok(self.sandboxes.with_token(digest))
    }

    fn access_tokens(&self) -> Answer<Vec<(String, String)>> {
        Ok(self.sandboxes.access_tokens())
    }

    fn environment(&self, id: &str) -> Answer<BTreeMap<String, String>> {
        self.sandboxes.environment(id)
    }

    fn sandboxes(&self, request: &ListSandboxes) -> Answer<Vec<Sandbox>> {
        self.sandboxes.list(request)
    }

    fn session(&self, key: &str) -> Answer<Sandbox> {
        match self.store.sandbox_of_session(key)? {
            Some(record) => self.sandboxes.get(&record.id),
            None => {
                let what = format!("the session '{}' has no sandbox", key.escape_default());
                Err(ApiError::new(ErrorKind::NotFound, what))
            }
        }
    }

    fn resume(&self, id: &str, timeout: Option<Duration>, cold: bool) -> Answer<AttachedSandbox> {
        self.sandboxes.resume(id, timeout, cold)
    }

    fn pause(&self, id: &str) -> Answer<bool> {
        self.sandboxes.pause(id).map(|(_, already)| already)
    }

    fn kill(&self, id: &str) -> Answer<()> {
        self.sandboxes.kill(id).map(drop)
    }

    fn set_timeout(&self, id: &str, timeout: Duration, only_longer: bool) -> Answer<()> {
        let set = self.sandboxes.set_timeout(id, timeout, only_longer);
        set.map(drop)
    }

    fn take_snapshot(&self, request: &SnapshotSandbox) -> Answer<Snapshot> {
        // Also for a client that did not wait long enough: it finds it in the list.
        self.sandboxes.snapshot(request, &|| false)
    }

    fn fork(&self, request: &ForkSandbox) -> Answer<Vec<ForkedSandbox>> {
        self.sandboxes.fork(request, &|| false)
    }

    fn rollback(&self, id: &str, snapshot: &str) -> Answer<Sandbox> {
        self.sandboxes.rollback(id, snapshot)
    }

    fn usage(&self, id: &str) -> Answer<SandboxUsage> {
        self.sandboxes.usage(id)
    }

    fn logs(&self, id: &str, limit: usize) -> Answer<Vec<SandboxLogLine>> {
        self.sandboxes.logs(id, Some(limit))
    }

    fn snapshots(&self, query: &SnapshotQuery) -> Answer<Vec<NamedSnapshot>> {
        let template = query.name.as_deref().map(TemplateName::parse).transpose()?;
        let mut filter = SnapshotFilter {
            of_sandboxes: true,
            sandbox: query.sandbox.clone(),
            template: template.map(|name| name.to_string()),
            automatic: Some(false),
            after: query.after.as_deref().map(str::parse).transpose()?,
            ..SnapshotFilter::default()
        };
        let mut found = Vec::new();
        loop {
            let missing = query.limit.saturating_sub(found.len());
            filter.limit = Some(missing);
            let some = self.store.snapshots(&filter)?;
            let full = some.len() == missing;
            filter.after = some.last().map(|last| last.cursor);
            for info in some {
                // Of sandboxes all of them are.
                let named = named(self, info, true)?;
                if named.is_listed {
                    found.push(named);
                }
            }
            if !full || found.len() == query.limit {
                return Ok(found);
            }
        }
    }

    fn snapshot(&self, reference: &str) -> Answer<NamedSnapshot> {
        let template = match TemplateName::parse(reference) {
            Ok(name) => self.store.template(&name)?,
            Err(_) => None,
        };
        let id = template.map(|template| template.snapshot.to_string());
        let reference = id.as_deref().unwrap_or(reference);
        let info = self.store.find_snapshot(reference)?;
        // A sandbox's workspace has its id as a name.
        let of_sandbox = self.store.sandbox(&info.workspace)?.is_some();
        named(self, info, of_sandbox)
    }

    fn snapshot_bytes(&self, ids: &[String]) -> Answer<Vec<u64>> {
        let found: Result<Vec<_>, _> = ids.iter().map(|id| self.store.find_snapshot(id)).collect();
        let go_on = &mut |_, _| ControlFlow::Continue(());
        let usage = self.store.snapshot_usage(&found?, go_on)?;
        Ok(usage.into_iter().map(|one| one.exclusive).collect())
    }

    fn delete_snapshot(&self, id: &str) -> Answer<()> {
        let request = DeleteSnapshots {
            snapshots: vec![id.to_owned()],
            ..DeleteSnapshots::default()
        };
        handlers::delete_snapshots(self, request, &mut |_| true).map(drop)
    }

    fn templates(&self) -> Answer<Vec<Template>> {
        self.sandboxes.templates()
    }

    fn template(&self, name: &str) -> Answer<Template> {
        // What cannot be a name is none.
        let found = match TemplateName::parse(name) {
            Ok(name) => self.store.template(&name)?,
            Err(_) => None,
        };
        found.map(Template::from).ok_or_else(|| {
            let what = format!("there is no template '{}'", name.escape_default());
            ApiError::new(ErrorKind::NotFound, what)
        })
    }

    fn delete_template(&self, name: &str) -> Answer<()> {
        self.sandboxes.delete_template(name).map(drop)
    }

    fn host(&self) -> Host {
        let disk = rustix::fs::statvfs(self.store.dir());
        Host {
            cpus: std::thread::available_parallelism()
                .map_or(1, |cpus| u64::try_from(cpus.get()).unwrap_or(u64::MAX)),
            memory_bytes: memory_bytes(),
            disk_bytes: disk.map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize)),
            timeout_s: self.config.sandbox.timeout,
        }
    }

    fn agent<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<Agent>> {
        Box::pin(self.sandboxes.agent(id))
    }
}

fn named(daemon: &Daemon, info: SnapshotInfo, of_sandbox: bool) -> Answer<NamedSnapshot> {
    let names = daemon.store.templates_of(&info.id)?.into_iter();
    let is_step = info.labels.contains_key(STEP);
    Ok(NamedSnapshot {
        names: names.map(|template| template.name).collect(),
        is_listed: of_sandbox && info.automatic.is_none() && !is_step,
        snapshot: info.into(),
    })
}

/// Memory of this machine in bytes.
fn memory_bytes() -> u64 {
    let host = rustix::system::sysinfo();
    host.totalram.saturating_mul(host.mem_unit.into())
}
