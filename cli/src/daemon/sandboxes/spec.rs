//! What a sandbox's row says in `spec` (docs/format.md): JSON that only the daemon reads.

use std::collections::BTreeMap;

use floe_fs::{SandboxCursor, SandboxRecord};
use serde::{Deserialize, Serialize};

use crate::error::{ApiError, ErrorKind};
use crate::wire::CreateSandbox;
use crate::wire::sandbox::{Limits, OnTimeout, Sandbox, SandboxState, VmSpec};

/// The version of what is written.
const VERSION: u32 = 1;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Spec {
    version: u32,
    pub(super) metadata: BTreeMap<String, String>,
    /// Environment of its processes.
    pub(super) env: BTreeMap<String, String>,
    /// With the configuration's where its maker said nothing.
    pub(super) limits: Limits,
    /// Those that the host did not enforce at the last start.
    pub(super) unenforced: Vec<String>,
    pub(super) network: bool,
    /// What its files and processes are guarded with.
    pub(super) token: Option<String>,
    /// What the request that made it was, so that another with its idempotency key is noticed.
    pub(super) request: String,
    /// Its time in seconds from each time it starts to run, if it has an end.
    pub(super) timeout_s: Option<u64>,
    /// What a virtual machine is made of; none for processes.
    #[serde(default)]
    pub(super) vm: Option<VmSpec>,
    /// It is there to make a template, and goes with the daemon.
    #[serde(default)]
    pub(super) builds: bool,
}

impl Spec {
    /// Of a request.
    pub(super) fn new(request: &CreateSandbox, limits: Limits, token: Option<String>) -> Self {
        Self {
            version: VERSION,
            metadata: request.metadata.clone(),
            env: request.env.clone(),
            limits,
            unenforced: Vec::new(),
            network: request.network,
            token,
            request: digest(request),
            timeout_s: request.timeout_s,
            vm: request.vm.clone(),
            builds: false,
        }
    }

    /// As it stands in a row.
    pub(super) fn of(record: &SandboxRecord) -> Result<Self, ApiError> {
        serde_json::from_str(&record.spec).map_err(|error| {
            let what = format!(
                "the catalog's record of sandbox '{}' is not readable",
                record.id
            );
            ApiError::new(ErrorKind::Failed, what).caused_by(&error)
        })
    }

    /// As it is written.
    pub(super) fn text(&self) -> Result<String, ApiError> {
        serde_json::to_string(self).map_err(|error| {
            ApiError::new(ErrorKind::Internal, "a sandbox cannot be recorded").caused_by(&error)
        })
    }
}

/// A request without its key.
pub(super) fn digest(request: &CreateSandbox) -> String {
    let request = CreateSandbox {
        idempotency_key: None,
        ..request.clone()
    };
    let text = serde_json::to_vec(&request).unwrap_or_default();
    blake3::hash(&text).to_hex().to_string()
}

/// A time in nanoseconds since the epoch as RFC 3339.
pub(super) fn rfc3339(nanoseconds: i64) -> String {
    jiff::Timestamp::from_nanosecond(nanoseconds.into())
        .map_or_else(|_| nanoseconds.to_string(), |time| time.to_string())
}

/// A row as users see it.
pub(super) fn shown(record: &SandboxRecord, workspace: &str) -> Result<Sandbox, ApiError> {
    let spec = Spec::of(record)?;
    Ok(Sandbox {
        id: record.id.clone(),
        kind: record.kind.word().to_owned(),
        state: state(record.state),
        reason: record.reason.clone(),
        template: record.template.clone(),
        snapshot: record.snapshot.as_ref().map(ToString::to_string),
        workspace: workspace.to_owned(),
        metadata: spec.metadata,
        created_at: rfc3339(record.created_at),
        started_at: record.started_at.map(rfc3339),
        ends_at: record.ends_at.map(rfc3339),
        on_timeout: match record.on_timeout {
            floe_fs::OnTimeout::Kill => OnTimeout::Kill,
            floe_fs::OnTimeout::Pause => OnTimeout::Pause,
        },
        auto_resume: record.auto_resume,
        session: record.session.clone(),
        generation: record.generation,
        limits: spec.limits,
        unenforced: spec.unenforced,
        network: spec.network,
        fidelity: match &spec.vm {
            Some(vm) if vm.workspace.is_none() => "filesystem+memory",
            _ => "filesystem",
        }
        .to_owned(),
        cursor: SandboxCursor::behind(record).to_string(),
    })
}

fn state(state: floe_fs::SandboxState) -> SandboxState {
    use floe_fs::SandboxState as Kept;
    match state {
        Kept::Creating => SandboxState::Creating,
        Kept::Running => SandboxState::Running,
        Kept::Pausing => SandboxState::Pausing,
        Kept::Paused => SandboxState::Paused,
        Kept::Snapshotting => SandboxState::Snapshotting,
        Kept::Stopping => SandboxState::Stopping,
        Kept::Stopped => SandboxState::Stopped,
        Kept::Failed => SandboxState::Failed,
    }
}

/// The states of a request as the store names them.
pub(super) fn kept(states: &[SandboxState]) -> Vec<floe_fs::SandboxState> {
    let kept = states
        .iter()
        .filter_map(|state| floe_fs::SandboxState::parse(state.word()));
    kept.collect()
}
