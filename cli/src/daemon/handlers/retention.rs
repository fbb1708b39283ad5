//! How long snapshots are kept.

use std::time::Duration;

use floe_fs::SnapshotClass;

use super::Daemon;
use crate::error::ApiError;
use crate::wire::retention::{RetentionApplied, RetentionRule};
use crate::wire::{ApplyRetention, ClearRetention, SetRetention, ShowRetention};

fn class(automatic: bool) -> SnapshotClass {
    match automatic {
        true => SnapshotClass::Automatic,
        false => SnapshotClass::ByHand,
    }
}

fn rules(daemon: &Daemon, workspace: Option<&str>) -> Result<Vec<RetentionRule>, ApiError> {
    let rules = daemon.store.retention_rules(workspace)?;
    Ok(rules.into_iter().map(RetentionRule::from).collect())
}

/// Tells the rules that hold for a workspace, or all that were set.
///
/// # Errors
/// When there never was a workspace of that name.
pub fn show_retention(
    daemon: &Daemon,
    request: &ShowRetention,
) -> Result<Vec<RetentionRule>, ApiError> {
    rules(daemon, request.workspace.as_deref())
}

/// Sets a rule; tells the rules as they are then.
///
/// # Errors
/// When there never was a workspace of that name.
pub fn set_retention(
    daemon: &Daemon,
    request: &SetRetention,
) -> Result<Vec<RetentionRule>, ApiError> {
    let rule = floe_fs::RetentionRule {
        keep_last: request.keep_last,
        keep_within: request.keep_within_s.map(Duration::from_secs),
    };
    let workspace = request.workspace.as_deref();
    daemon
        .store
        .set_retention(workspace, class(request.automatic), &rule)?;
    rules(daemon, workspace)
}

/// Takes a rule back; tells the rules as they are then.
///
/// # Errors
/// When there never was a workspace of that name.
pub fn clear_retention(
    daemon: &Daemon,
    request: &ClearRetention,
) -> Result<Vec<RetentionRule>, ApiError> {
    let workspace = request.workspace.as_deref();
    daemon
        .store
        .clear_retention(workspace, class(request.automatic))?;
    rules(daemon, workspace)
}

/// Deletes what has expired and what no rule keeps, or says which that is.
///
/// # Errors
/// When the store fails.
pub fn apply_retention(
    daemon: &Daemon,
    request: &ApplyRetention,
) -> Result<RetentionApplied, ApiError> {
    let report = daemon.store.apply_retention(request.dry_run)?;
    let frees = match request.dry_run {
        true => Some(daemon.store.would_free_retired(&report)?),
        false => None,
    };
    Ok(RetentionApplied::new(report, !request.dry_run, frees))
}
