//! Landing: on workspaces, and in directories of the host.

use floe_fs::{HostLandOptions, LandOptions, MountTarget};

use super::Daemon;
use super::snapshots::mounted_inside;
use crate::error::ApiError;
use crate::wire::records::{Changed, Landed, LandedOnHost, Undone};
use crate::wire::{Land, LandOnHost, UndoLanding, WirePath};

/// Merges what a workspace changed into another, in place where that is mounted.
///
/// # Errors
/// When a workspace does not exist, the two have nothing in common, or something is mounted inside
/// a mount of the one that is landed on: the kernel forgets all its names, and would detach what is
/// mounted on them.
pub fn land(daemon: &Daemon, request: &Land) -> Result<Landed, ApiError> {
    let options = LandOptions {
        only: request.only.iter().map(WirePath::to_bytes).collect(),
        no_merge: request.no_merge,
        dry_run: request.dry_run,
    };
    let store = &daemon.store;
    let onto = store.land_target(&request.workspace, request.onto.as_deref())?;
    let inside = daemon.mounts.inside(&MountTarget::Workspace(onto.id))?;
    if !inside.is_empty() && !request.dry_run {
        return Err(mounted_inside(&onto.name, &inside, "landing"));
    }
    Ok(store
        .land(&request.workspace, Some(&onto.name), &options)?
        .into())
}

/// Lands what a workspace changed in the directories of the host that it stands on.
///
/// # Errors
/// When it stands on none, or others have changed the same there.
pub fn land_on_host(daemon: &Daemon, request: &LandOnHost) -> Result<LandedOnHost, ApiError> {
    let options = HostLandOptions {
        only: request.only.iter().map(WirePath::to_bytes).collect(),
        dry_run: request.dry_run,
    };
    let landed = daemon.store.land_in_base(&request.workspace, &options)?;
    let changes = landed.entries.into_iter();
    Ok(LandedOnHost {
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
