//! Sandboxes. The manager ([`crate::daemon::sandboxes`]) does the work and checks what it is asked for;
//! here stands how a sandbox is referred to.

use std::time::Duration;

use super::snapshots::check_texts;
use crate::config::{Network, SandboxSettings};
use crate::daemon::Daemon;
use crate::error::{ApiError, ErrorKind};
use crate::wire::records::Snapshot;
use crate::wire::sandbox::{
    AttachedSandbox, Console, ForkedSandbox, Sandbox, SandboxLogLine, SandboxUsage,
};
use crate::wire::{
    CreateSandbox, ForkSandbox, KillSandbox, ListSandboxes, MeasureSandbox, PauseSandbox,
    ReadConsole, ResumeSandbox, RollbackSandbox, SandboxLogs, ShowSandbox, SnapshotSandbox,
};

/// Fewest characters of an id that stand for it.
pub const ID_PREFIX_MIN: usize = 4;

/// Makes a sandbox and starts it.
///
/// # Errors
/// When the request goes beyond its bounds or what the configuration allows, there is no such
/// template or snapshot, or it cannot be started.
pub fn create_sandbox(
    daemon: &Daemon,
    request: &CreateSandbox,
) -> Result<AttachedSandbox, ApiError> {
    check_network(&daemon.config.sandbox, request)?;
    daemon.sandboxes.create(request)
}

/// Lists sandboxes, newest first unless asked otherwise.
///
/// # Errors
/// When the cursor is none, or the catalog cannot be read.
pub fn list_sandboxes(daemon: &Daemon, request: &ListSandboxes) -> Result<Vec<Sandbox>, ApiError> {
    daemon.sandboxes.list(request)
}

/// Describes one sandbox.
///
/// # Errors
/// When the reference fits none, or more than one.
pub fn show_sandbox(daemon: &Daemon, request: &ShowSandbox) -> Result<Sandbox, ApiError> {
    find(daemon, &request.sandbox)
}

/// Measures what a sandbox uses.
///
/// # Errors
/// When the reference fits none, or it has no processes.
pub fn measure_sandbox(
    daemon: &Daemon,
    request: &MeasureSandbox,
) -> Result<SandboxUsage, ApiError> {
    daemon.sandboxes.usage(&find_id(daemon, &request.sandbox)?)
}

/// Freezes a sandbox's processes. One that has none or whose are frozen stays so.
///
/// # Errors
/// When the reference fits none, or its state forbids it.
pub fn pause_sandbox(daemon: &Daemon, request: &PauseSandbox) -> Result<Sandbox, ApiError> {
    let (sandbox, _) = daemon
        .sandboxes
        .pause(&find_id(daemon, &request.sandbox)?)?;
    Ok(sandbox)
}

/// Has a sandbox run, whatever state it is in.
///
/// # Errors
/// When the reference fits none, or it cannot be started.
pub fn resume_sandbox(
    daemon: &Daemon,
    request: &ResumeSandbox,
) -> Result<AttachedSandbox, ApiError> {
    let id = find_id(daemon, &request.sandbox)?;
    let timeout = request.timeout_s.map(Duration::from_secs);
    daemon.sandboxes.resume(&id, timeout, request.cold)
}

/// Takes a snapshot of a sandbox; one that is being taken is the answer. One with memory is given up when
/// `is_there` says that nobody waits for it any more.
///
/// # Errors
/// When the reference fits none, its state forbids it, or the name is not allowed.
pub fn snapshot_sandbox(
    daemon: &Daemon,
    request: &SnapshotSandbox,
    is_there: &dyn Fn() -> bool,
) -> Result<Snapshot, ApiError> {
    check_texts(request.message.as_deref(), &request.labels)?;
    let request = SnapshotSandbox {
        sandbox: find_id(daemon, &request.sandbox)?,
        ..request.clone()
    };
    daemon.sandboxes.snapshot(&request, &|| !is_there())
}

/// Makes further sandboxes of one as it is now. `is_there`: as for [`snapshot_sandbox`].
///
/// # Errors
/// When the reference fits none, or its state forbids it. A fork that could not be made is no error,
/// but part of the answer.
pub fn fork_sandbox(
    daemon: &Daemon,
    request: &ForkSandbox,
    is_there: &dyn Fn() -> bool,
) -> Result<Vec<ForkedSandbox>, ApiError> {
    let request = ForkSandbox {
        sandbox: find_id(daemon, &request.sandbox)?,
        ..request.clone()
    };
    daemon.sandboxes.fork(&request, &|| !is_there())
}

/// Puts a sandbox back on a snapshot and starts it again.
///
/// # Errors
/// When a reference fits none, or its state forbids it.
pub fn rollback_sandbox(daemon: &Daemon, request: &RollbackSandbox) -> Result<Sandbox, ApiError> {
    let id = find_id(daemon, &request.sandbox)?;
    daemon.sandboxes.rollback(&id, &request.snapshot)
}

/// Ends a sandbox and removes its workspace; its snapshots stay.
///
/// # Errors
/// When the reference fits none.
pub fn kill_sandbox(daemon: &Daemon, request: &KillSandbox) -> Result<Sandbox, ApiError> {
    daemon.sandboxes.kill(&find_id(daemon, &request.sandbox)?)
}

/// Tells what happened in and to a sandbox, oldest first.
///
/// # Errors
/// When the reference fits none.
pub fn sandbox_logs(
    daemon: &Daemon,
    request: &SandboxLogs,
) -> Result<Vec<SandboxLogLine>, ApiError> {
    let id = find_id(daemon, &request.sandbox)?;
    daemon.sandboxes.logs(&id, request.limit)
}

/// Reads what the console of a virtual machine said.
///
/// # Errors
/// When the reference fits none, or it has no console.
pub fn read_console(daemon: &Daemon, request: &ReadConsole) -> Result<Console, ApiError> {
    let id = find_id(daemon, &request.sandbox)?;
    daemon.sandboxes.console(&id, request.offset)
}

/// Resolves a reference: an id, or the beginning of one.
///
/// # Errors
/// When it fits none, or more than one.
pub(crate) fn find_id(daemon: &Daemon, reference: &str) -> Result<String, ApiError> {
    find(daemon, reference).map(|sandbox| sandbox.id)
}

fn find(daemon: &Daemon, reference: &str) -> Result<Sandbox, ApiError> {
    match daemon.sandboxes.get(reference) {
        Err(error) if error.kind == ErrorKind::NotFound => {}
        answer => return answer,
    }
    let all = daemon.sandboxes.list(&ListSandboxes::default())?;
    beginning_with(all, reference)
}

/// The one sandbox whose id begins so.
fn beginning_with(all: Vec<Sandbox>, reference: &str) -> Result<Sandbox, ApiError> {
    let mut fitting: Vec<Sandbox> = match reference.len() >= ID_PREFIX_MIN {
        true => all
            .into_iter()
            .filter(|sandbox| sandbox.id.starts_with(reference))
            .collect(),
        false => Vec::new(),
    };
    match (fitting.pop(), fitting.len()) {
        (Some(only), 0) => Ok(only),
        (Some(last), _) => {
            fitting.push(last);
            let what = format!("{} sandboxes begin with '{reference}'", fitting.len());
            let mut error = ApiError::new(ErrorKind::Conflict, what)
                .hint("give more of the id; see all with `floe sandbox list`");
            error.causes = told(&fitting);
            Err(error)
        }
        (None, _) => {
            let what = format!("there is no sandbox '{reference}'");
            Err(ApiError::new(ErrorKind::NotFound, what)
                .hint("see what there is with `floe sandbox list`"))
        }
    }
}

/// Most sandboxes that an error names.
const NAMED_MAX: usize = 8;

fn told(fitting: &[Sandbox]) -> Vec<String> {
    let named = fitting.iter().take(NAMED_MAX);
    let mut told: Vec<String> = named
        .map(|one| format!("'{}' ({}, of {})", one.id, one.state.word(), one.template))
        .collect();
    if fitting.len() > NAMED_MAX {
        told.push(format!("and {} more", fitting.len() - NAMED_MAX));
    }
    told
}

/// Checks that a request asks for no more of the network than the configuration gives.
fn check_network(settings: &SandboxSettings, request: &CreateSandbox) -> Result<(), ApiError> {
    if !request.network || settings.network == Network::Host {
        return Ok(());
    }
    let what = "the configuration gives no sandbox the network";
    Err(ApiError::new(ErrorKind::Conflict, what).hint(
        "to allow it, set network = \"host\" under [sandbox] in the configuration file, and end the \
         daemon with `floe daemon stop`",
    ))
}

#[cfg(test)]
mod tests;
