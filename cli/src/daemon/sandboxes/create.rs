//! Making sandboxes: each request one, but of a key one at most.

use std::sync::Arc;

use floe_fs::id::WorkspaceName;
use floe_fs::{ForkSource, Quota, SandboxKind, SandboxRecord, SandboxState};
use tracing::{info, warn};

use super::entry::{Entry, Inner};
use super::spec::{Spec, digest};
use super::vm::GoesOn;
use super::{Answer, Sandboxes, life};
use crate::config::Network;
use crate::error::{ApiError, ErrorKind};
use crate::wire::CreateSandbox;
use crate::wire::sandbox::{Attached, AttachedSandbox, OnTimeout};

/// Most entries of metadata or of the environment.
const ENTRIES_MAX: usize = 256;
/// Longest key of one in bytes.
const KEY_MAX: usize = 1024;
/// Longest value of one in bytes.
const VALUE_MAX: usize = 32 << 10;
/// Longest session or idempotency key in bytes.
const NAME_MAX: usize = 255;
/// Letters of an id: those of a name in DNS, without any that are taken for one another.
const LETTERS: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";

impl Sandboxes {
    /// Makes a sandbox and starts it. With an idempotency key or a session, perhaps one that is there
    /// already is the answer.
    ///
    /// # Errors
    /// When what it is to start from does not exist, something in the request is not allowed, or it
    /// cannot be started; there is no sandbox then.
    pub fn create(&self, request: &CreateSandbox) -> Answer<AttachedSandbox> {
        self.refuse_when_ending()?;
        self.check(request)?;
        let lost = || {
            Err(ApiError::new(
                ErrorKind::Internal,
                "a sandbox could not be made",
            ))
        };
        if let Some(session) = &request.session {
            let key = format!("session {session}");
            let made = self
                .creations
                .run(&key, |_| self.of_session(session, request));
            return match made {
                Some((made, true)) => made,
                // Somebody else has it run now.
                Some((made, false)) => made.map(|made| AttachedSandbox {
                    attached: Attached::Running,
                    ..made
                }),
                None => lost(),
            };
        }
        let Some(idempotency_key) = &request.idempotency_key else {
            return self.make(request, Attached::Created, false);
        };
        let key = format!("key {idempotency_key} {}", digest(request));
        let made = self.creations.run(&key, |_| {
            match self.store.sandbox_of_key(idempotency_key)? {
                Some(record) => self.made_before(&record, request),
                None => self.make(request, Attached::Created, false),
            }
        });
        made.map_or_else(lost, |(made, _)| made)
    }

    /// The answer to a request that was answered before.
    fn made_before(
        &self,
        record: &SandboxRecord,
        request: &CreateSandbox,
    ) -> Answer<AttachedSandbox> {
        let conflict = |what: String| Err(ApiError::new(ErrorKind::Conflict, what));
        if Spec::of(record)?.request != digest(request) {
            return conflict("another request was made with this idempotency key".to_owned());
        }
        if record.deleted_at.is_some() {
            return conflict(format!(
                "the sandbox '{}' of this request was killed",
                record.id
            ));
        }
        Ok(AttachedSandbox {
            sandbox: self.shown(record)?,
            attached: Attached::Created,
        })
    }

    /// The running sandbox of a session: the one that is there, or one made of its last snapshot, or a new one.
    fn of_session(&self, session: &str, request: &CreateSandbox) -> Answer<AttachedSandbox> {
        if let Some(record) = self.store.sandbox_of_session(session)? {
            let timeout = request.timeout_s.map(std::time::Duration::from_secs);
            match self.resume(&record.id, timeout, false) {
                // It was killed a moment ago.
                Err(error) if error.kind == ErrorKind::NotFound => {}
                other => return other,
            }
        }
        match self.store.last_snapshot_of_session(session)? {
            Some(last) => {
                let request = CreateSandbox {
                    template: Some(last.to_string()),
                    ..request.clone()
                };
                self.make(&request, Attached::Restored, false)
            }
            None => self.make(request, Attached::Created, false),
        }
    }

    fn check(&self, request: &CreateSandbox) -> Answer<()> {
        let usage = |what: String| Err(ApiError::new(ErrorKind::Usage, what));
        for (what, map) in [
            ("metadata", &request.metadata),
            ("environment", &request.env),
        ] {
            if map.len() > ENTRIES_MAX {
                return usage(format!("the {what} has more than {ENTRIES_MAX} entries"));
            }
            for (key, value) in map {
                if key.is_empty() || key.len() > KEY_MAX || value.len() > VALUE_MAX {
                    return usage(format!(
                        "a key of the {what} must have 1 to {KEY_MAX} bytes, its value at most {VALUE_MAX}"
                    ));
                }
            }
        }
        let bad =
            |(key, value): (&String, &String)| key.contains(['=', '\0']) || value.contains('\0');
        if let Some((key, _)) = request.env.iter().find(|&entry| bad(entry)) {
            return usage(format!("the environment variable {key:?} is not possible"));
        }
        for (what, key) in [
            ("session", &request.session),
            ("idempotency key", &request.idempotency_key),
        ] {
            if key
                .as_ref()
                .is_some_and(|key| key.is_empty() || key.len() > NAME_MAX)
            {
                return usage(format!("the {what} must have 1 to {NAME_MAX} bytes"));
            }
        }
        let timeout_max = life::TIMEOUT_MAX.as_secs();
        if request
            .timeout_s
            .is_some_and(|timeout| timeout > timeout_max)
        {
            return usage(format!("the timeout may be {timeout_max} s at most"));
        }
        let limits = &request.limits;
        let least = [
            ("cpu_millis", limits.cpu_millis, 10),
            ("memory_bytes", limits.memory_bytes, 16 << 20),
            ("pids", limits.pids, 16),
            ("disk_bytes", limits.disk_bytes, 1 << 20),
        ];
        for (name, asked, least) in least {
            if asked.is_some_and(|asked| asked < least || i64::try_from(asked).is_err()) {
                return usage(format!("the limit {name} must be at least {least}"));
            }
        }
        Ok(())
    }

    /// Counts new sandboxes among those that there are, so that others find them, all or none.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when that were more than there may be.
    pub(super) fn admit(&self, new: &[Arc<Entry>]) -> Answer<()> {
        let most = self.settings.max;
        let mut entries = self.entries.lock();
        if entries.len().saturating_add(new.len()) > most {
            let what = format!("there may be {most} sandboxes at most");
            return Err(ApiError::new(ErrorKind::Unavailable, what)
                .hint("kill some with `floe sandbox kill`"));
        }
        entries.extend(
            new.iter()
                .map(|entry| (entry.id.clone(), Arc::clone(entry))),
        );
        Ok(())
    }

    /// The reverse, for those that have no row.
    pub(super) fn dismiss(&self, never_made: &[Arc<Entry>]) {
        let mut entries = self.entries.lock();
        for entry in never_made {
            entries.remove(&entry.id);
        }
    }

    /// Makes a sandbox. `builds`: one to make a template in.
    pub(super) fn make(
        &self,
        request: &CreateSandbox,
        attached: Attached,
        builds: bool,
    ) -> Answer<AttachedSandbox> {
        let template = request
            .template
            .clone()
            .unwrap_or_else(|| super::base::NAME.to_owned());
        let snapshot = self.resolve(&template)?;
        let token = request.secure.then(new_token).transpose()?;
        let mut spec = Spec::new(request, self.settings.limits(&request.limits), token);
        let memory = self.memory_for(&snapshot, &mut spec.vm)?;
        let network = spec.network;
        spec.network &= self.settings.network == Network::Host;
        spec.builds = builds;
        let record = SandboxRecord {
            id: new_id()?,
            kind: match &spec.vm {
                None => SandboxKind::Process,
                Some(_) => SandboxKind::Vm,
            },
            state: SandboxState::Creating,
            reason: None,
            workspace: None,
            template,
            snapshot: Some(snapshot.clone()),
            created_at: life::now(),
            started_at: None,
            ends_at: None,
            on_timeout: match request.on_timeout {
                OnTimeout::Kill => floe_fs::OnTimeout::Kill,
                OnTimeout::Pause => floe_fs::OnTimeout::Pause,
            },
            auto_resume: request.auto_resume,
            generation: 0,
            slot: None,
            session: request.session.clone(),
            idempotency_key: request.idempotency_key.clone(),
            spec: spec.text()?,
            deleted_at: None,
        };
        let entry = Entry::new(record);
        let mut inner = entry.inner.lock();
        // Whoever kills it from now on waits until it is made.
        self.admit(std::slice::from_ref(&entry))?;
        if let Err(error) = self.store.put_sandbox(&inner.record) {
            self.dismiss(std::slice::from_ref(&entry));
            return Err(error.into());
        }
        let name = WorkspaceName::parse(&entry.id)?;
        let made = self.store.fork(&ForkSource::Snapshot(snapshot), &[name]);
        let made = made
            .map_err(ApiError::from)
            .and_then(|_| self.bring_up(&entry, &mut inner, memory.as_ref()));
        match made {
            Ok(()) => {
                if network && !spec.network {
                    let what = "asked for the network, which the configuration gives no sandbox";
                    self.logs.note(&entry.id, "info", what);
                }
                info!(
                    sandbox = entry.id,
                    template = inner.record.template,
                    "made a sandbox"
                );
                let sandbox = self.shown(&inner.record)?;
                Ok(AttachedSandbox { sandbox, attached })
            }
            Err(error) => {
                self.abandon(&entry, &mut inner);
                Err(error.while_doing("cannot make a sandbox"))
            }
        }
    }

    /// Has a sandbox run for the first time: its workspace is there under its name.
    /// A machine goes on from `memory`, if there is any, else it boots.
    pub(super) fn bring_up(
        &self,
        entry: &Entry,
        inner: &mut Inner,
        memory: Option<&GoesOn>,
    ) -> Answer<()> {
        let workspace = self.store.workspace(&entry.id)?;
        let spec = Spec::of(&inner.record)?;
        if let Some(bytes) = spec.limits.disk_bytes {
            let quota = |before: Quota| Quota {
                // The quota counts all that is seen, what stands on the host not; a limit is for what comes.
                bytes: Some(workspace.bytes.saturating_add(bytes)),
                ..before
            };
            self.store.change_quota(&entry.id, quota)?;
        }
        inner.write(&self.store, |record| record.workspace = Some(workspace.id))?;
        self.launch(entry, inner, memory)?;
        let ends_at = life::ends_at(spec.timeout_s.map(std::time::Duration::from_secs));
        let written = inner.write(&self.store, |record| {
            record.state = SandboxState::Running;
            record.started_at = Some(life::now());
            record.ends_at = ends_at;
        });
        if let Err(error) = written {
            self.halt(entry, inner);
            return Err(error);
        }
        self.expiry.set(&entry.id, ends_at);
        self.logs.note(
            &entry.id,
            "info",
            &format!("started from '{}'", inner.record.template),
        );
        Ok(())
    }

    /// Removes a sandbox that could not be made.
    pub(super) fn abandon(&self, entry: &Entry, inner: &mut Inner) {
        // Whoever tries again with the same key is not to be answered with this one.
        let forgotten = inner.write(&self.store, |record| record.idempotency_key = None);
        if let Err(error) = forgotten.and_then(|()| self.remove(entry, inner)) {
            warn!(sandbox = entry.id, error = error.error, causes = ?error.causes,
                "a sandbox that could not be made is removed when the daemon starts again");
        }
    }
}

/// A new sandbox's id: 20 letters and digits, 100 random bits.
pub(super) fn new_id() -> Answer<String> {
    let mut bytes = [0_u8; 20];
    random(&mut bytes)?;
    let letter = |byte: u8| char::from(LETTERS[usize::from(byte) % LETTERS.len()]);
    // A letter first, as names of hosts and of workspaces like it.
    let first = char::from(LETTERS[usize::from(bytes[0]) % 24]);
    Ok(std::iter::once(first)
        .chain(bytes[1..].iter().map(|&byte| letter(byte)))
        .collect())
}

/// A new token: 256 random bits in hexadecimal digits.
pub(super) fn new_token() -> Answer<String> {
    let mut bytes = [0_u8; 32];
    random(&mut bytes)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn random(bytes: &mut [u8]) -> Answer<()> {
    getrandom::fill(bytes).map_err(|error| {
        ApiError::new(ErrorKind::Failed, "the kernel has no random numbers").caused_by(&error)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_names_of_hosts_and_of_workspaces_and_never_the_same() {
        let ids: Vec<String> = (0..200).map(|_| new_id().unwrap()).collect();
        for id in &ids {
            assert_eq!(id.len(), 20);
            assert!(id.starts_with(|c: char| c.is_ascii_lowercase()), "{id}");
            assert!(
                id.bytes()
                    .all(|b| b.is_ascii_lowercase() || b.is_ascii_digit())
            );
            WorkspaceName::parse(id).unwrap();
        }
        let unique: std::collections::HashSet<_> = ids.iter().collect();
        assert_eq!(unique.len(), ids.len());
        assert_eq!(new_token().unwrap().len(), 64);
    }
}
