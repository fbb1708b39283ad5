//! Sandboxes, as the wire contract has them. Members may be added; those that stand here stay.

use std::collections::BTreeMap;

use serde::Serialize;
use utoipa::ToSchema;

use super::super::backend::Host;
use super::super::state::Api;
use crate::wire::sandbox::{self, OnTimeout, SandboxState};

/// The version of the sandbox's side that clients are told; they ask for nothing newer. 0.5.7 brought
/// uploads of plain bytes; 0.6.2 would promise attributes of uploaded files.
pub(in super::super) const ENVD_VERSION: &str = "0.6.1";
/// What stands for the end of a sandbox that has none: clients need a time, and add to it.
const NO_END: &str = "9999-01-01T00:00:00Z";
const MIB: u64 = 1 << 20;

/// A sandbox that was made or found, and how to reach it.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Sandbox {
    /// What it was made from: a template's name, or a snapshot's id or name.
    #[serde(rename = "templateID")]
    template_id: String,
    /// Its id.
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    /// Always `floe`.
    #[serde(rename = "clientID")]
    client_id: &'static str,
    /// The version of its side of the protocol.
    envd_version: &'static str,
    /// What its files and processes are guarded with; absent if nothing guards them.
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    /// Always null: ports are not guarded.
    traffic_access_token: Option<String>,
    /// The domain below which its ports are found.
    domain: Option<String>,
}

impl Sandbox {
    /// A sandbox with its token.
    pub(super) fn new(api: &Api, sandbox: sandbox::Sandbox, token: Option<String>) -> Self {
        Self {
            template_id: sandbox.template,
            sandbox_id: sandbox.id,
            client_id: "floe",
            envd_version: ENVD_VERSION,
            envd_access_token: token,
            traffic_access_token: None,
            domain: api.domain.clone(),
        }
    }
}

/// A sandbox in a list.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct ListedSandbox {
    /// What it was made from.
    #[serde(rename = "templateID")]
    template_id: String,
    /// Its id.
    #[serde(rename = "sandboxID")]
    sandbox_id: String,
    /// Always `floe`.
    #[serde(rename = "clientID")]
    client_id: &'static str,
    /// When its processes were last started, or else when it was made.
    started_at: String,
    /// When its time is over; the year 9999 if it has no end.
    end_at: String,
    /// Processors it may use.
    cpu_count: u64,
    /// MiB of memory it may use.
    #[serde(rename = "memoryMB")]
    memory_mb: u64,
    /// MiB its files may take.
    #[serde(rename = "diskSizeMB")]
    disk_size_mb: u64,
    /// Whether it runs.
    state: State,
    /// The version of its side of the protocol.
    envd_version: &'static str,
    /// What its maker says of it.
    metadata: BTreeMap<String, String>,
    /// What it comes back with, if it is paused: with its processes, or with its files alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pause_mode: Option<PauseMode>,
    /// Where it is in its life, in Floe's own words.
    floe_state: &'static str,
    /// Why it is stopped or failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    reason: Option<String>,
    /// The snapshot it started from.
    #[serde(rename = "snapshotID", skip_serializing_if = "Option::is_none")]
    snapshot_id: Option<String>,
    /// Those of its limits that this host cannot enforce.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unenforced: Vec<String>,
}

/// A sandbox in full.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SandboxDetail {
    /// What lists say of it.
    #[serde(flatten)]
    listed: ListedSandbox,
    /// What its files and processes are guarded with.
    #[serde(skip_serializing_if = "Option::is_none")]
    envd_access_token: Option<String>,
    /// The domain below which its ports are found.
    domain: Option<String>,
    /// Whether it has a network.
    allow_internet_access: bool,
    /// What happens when its time is over.
    lifecycle: Lifecycle,
}

/// Whether a sandbox runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum State {
    /// It has processes that run, or is about to.
    Running,
    /// It can be resumed.
    Paused,
}

/// What a paused sandbox comes back with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum PauseMode {
    /// Its processes go on.
    Full,
    /// They are gone; its files are there.
    Filesystem,
}

/// What happens when the time of a sandbox is over.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct Lifecycle {
    /// Whether a request to it resumes it.
    auto_resume: bool,
    /// `kill` or `pause`.
    on_timeout: &'static str,
}

/// The state that clients know for one of Floe's own.
fn state(state: SandboxState) -> (State, Option<PauseMode>) {
    match state {
        SandboxState::Creating
        | SandboxState::Running
        | SandboxState::Pausing
        | SandboxState::Snapshotting
        | SandboxState::Stopping => (State::Running, None),
        SandboxState::Paused => (State::Paused, Some(PauseMode::Full)),
        SandboxState::Stopped | SandboxState::Failed => {
            (State::Paused, Some(PauseMode::Filesystem))
        }
    }
}

/// Floe's own states for one that clients know.
pub(super) fn floe_states(word: &str) -> Option<&'static [SandboxState]> {
    match word {
        "running" => Some(&[
            SandboxState::Creating,
            SandboxState::Running,
            SandboxState::Pausing,
            SandboxState::Snapshotting,
            SandboxState::Stopping,
        ]),
        "paused" => Some(&[
            SandboxState::Paused,
            SandboxState::Stopped,
            SandboxState::Failed,
        ]),
        _ => None,
    }
}

/// How many processors a sandbox may use.
pub(super) fn cpus(host: Host, limits: &sandbox::Limits) -> u64 {
    match limits.cpu_millis {
        Some(millis) => millis.div_ceil(1000).max(1),
        None => host.cpus,
    }
}

impl ListedSandbox {
    /// A sandbox on a machine of that size.
    pub(super) fn new(host: Host, sandbox: sandbox::Sandbox) -> Self {
        let (state, pause_mode) = state(sandbox.state);
        let limits = &sandbox.limits;
        Self {
            cpu_count: cpus(host, limits),
            memory_mb: limits.memory_bytes.unwrap_or(host.memory_bytes) / MIB,
            disk_size_mb: limits.disk_bytes.unwrap_or(host.disk_bytes) / MIB,
            template_id: sandbox.template,
            sandbox_id: sandbox.id,
            client_id: "floe",
            started_at: sandbox.started_at.unwrap_or(sandbox.created_at),
            end_at: sandbox.ends_at.unwrap_or_else(|| NO_END.to_owned()),
            state,
            envd_version: ENVD_VERSION,
            metadata: sandbox.metadata,
            pause_mode,
            floe_state: sandbox.state.word(),
            reason: sandbox.reason,
            snapshot_id: sandbox.snapshot,
            unenforced: sandbox.unenforced,
        }
    }
}

impl SandboxDetail {
    /// A sandbox with its token.
    pub(super) fn new(api: &Api, sandbox: sandbox::Sandbox, token: Option<String>) -> Self {
        Self {
            envd_access_token: token,
            domain: api.domain.clone(),
            allow_internet_access: sandbox.network,
            lifecycle: Lifecycle {
                auto_resume: sandbox.auto_resume,
                on_timeout: match sandbox.on_timeout {
                    OnTimeout::Kill => "kill",
                    OnTimeout::Pause => "pause",
                },
            },
            listed: ListedSandbox::new(api.host, sandbox),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [SandboxState; 8] = [
        SandboxState::Creating,
        SandboxState::Running,
        SandboxState::Pausing,
        SandboxState::Paused,
        SandboxState::Snapshotting,
        SandboxState::Stopping,
        SandboxState::Stopped,
        SandboxState::Failed,
    ];

    #[test]
    fn every_state_is_found_by_the_word_it_is_shown_with() {
        for one in ALL {
            let word = serde_json::to_value(state(one).0).unwrap();
            let found = floe_states(word.as_str().unwrap()).unwrap();
            assert!(found.contains(&one), "{one:?}");
        }
        let both: usize = ["running", "paused"]
            .map(|w| floe_states(w).unwrap().len())
            .iter()
            .sum();
        assert_eq!(both, ALL.len());
        assert!(floe_states("stopped").is_none());
    }

    #[test]
    fn a_part_of_a_processor_counts_as_one() {
        let host = Host {
            cpus: 8,
            ..Host::default()
        };
        let limits = |cpu_millis| sandbox::Limits {
            cpu_millis,
            ..sandbox::Limits::default()
        };
        assert_eq!(cpus(host, &limits(None)), 8);
        assert_eq!(cpus(host, &limits(Some(1))), 1);
        assert_eq!(cpus(host, &limits(Some(1001))), 2);
    }
}
