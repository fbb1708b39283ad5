//! Landing in directories of the host.

use floe_fs::HostLandOptions;

use super::Daemon;
use crate::error::ApiError;
use crate::wire::records::{Changed, Landed, Undone};
use crate::wire::{Land, UndoLanding, WirePath};

/// Lands what a workspace changed in the directories of the host that it stands on.
///
/// # Errors
/// When it stands on none, or others have changed the same there.
pub fn land(daemon: &Daemon, request: &Land) -> Result<Landed, ApiError> {
    let options = HostLandOptions {
        only: request.only.iter().map(WirePath::to_bytes).collect(),
        dry_run: request.dry_run,
    };
    let landed = daemon.store.land_in_base(&request.workspace, &options)?;
    let changes = landed.entries.into_iter();
    Ok(Landed {
        workspace: request.workspace.clone(),
        dirs: landed
            .dirs
            .iter()
            .map(|dir| WirePath::from(&**dir))
            .collect(),
        landed: !request.dry_run,
        changes: changes.map(|entry| Changed::new(entry, false)).collect(),
        done: landed.report.into(),
        snapshot: landed.snapshot.map(|id| id.to_string()),
    })
}

/// Takes the last landing of a workspace in directories of the host back.
///
/// # Errors
/// When there is none, or others have changed something of it since.
pub fn undo_landing(daemon: &Daemon, request: &UndoLanding) -> Result<Undone, ApiError> {
    let report = daemon
        .store
        .undo_on_host(&request.workspace, request.dry_run)?;
    Ok(Undone {
        workspace: request.workspace.clone(),
        undone: !request.dry_run,
        done: report.into(),
    })
}
