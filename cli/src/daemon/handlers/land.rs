//! Landing.

use std::time::Instant;

use floe_fs::{HostLandOptions, LandError, LandOptions, MountTarget};

use super::Daemon;
use super::snapshots::mounted_inside;
use crate::error::ApiError;
use crate::wire::records::{Landed, Undone};
use crate::wire::{Land, UndoLanding, WirePath};

/// Merges what a workspace changed into another, in place where that is mounted; or into the
/// directories of the host that it stands on, if it is told to, or was made from them.
///
/// # Errors
/// When a workspace does not exist, the two have nothing in common, or something is mounted inside
/// a mount of the one that is landed on: the kernel forgets all its names, and would detach what is
/// mounted on them.
pub fn land(daemon: &Daemon, request: &Land) -> Result<Landed, ApiError> {
    let only = request.only.iter().map(WirePath::to_bytes).collect();
    let store = &daemon.store;
    let onto = request.onto.as_ref();
    // No workspace has a name like that.
    if onto.is_some_and(|onto| onto.to_path().is_absolute()) {
        return on_host(daemon, request, only);
    }
    let onto = onto.map(ToString::to_string);
    let onto = match store.land_target(&request.workspace, onto.as_deref()) {
        Err(LandError::NoTarget { .. }) if store.base_of(&request.workspace).is_ok() => {
            return on_host(daemon, request, only);
        }
        onto => onto?,
    };
    let options = LandOptions {
        only,
        no_merge: request.no_merge,
        dry_run: request.dry_run,
    };
    if request.dry_run {
        let would = store.land(&request.workspace, Some(&onto.name), &options)?;
        return Ok(would.into());
    }
    let held = daemon.mounts.hold(&onto)?;
    let inside = daemon.mounts.inside(&MountTarget::Workspace(onto.id))?;
    if !inside.is_empty() {
        return Err(mounted_inside(&onto.name, &inside, "landing"));
    }
    if store.workspace(&request.workspace)?.sandboxed {
        held.distrust()?;
    }
    let landed = store.land(&request.workspace, Some(&onto.name), &options)?;
    // A virtual machine may have got what was landed meanwhile.
    if store.workspace(&onto.name)?.sandboxed {
        held.distrust()?;
    }
    Ok(landed.into())
}

fn on_host(daemon: &Daemon, request: &Land, only: Vec<Vec<u8>>) -> Result<Landed, ApiError> {
    let started = Instant::now();
    let options = HostLandOptions {
        only,
        dir: request.onto.as_ref().map(WirePath::to_path),
        dry_run: request.dry_run,
    };
    let landed = daemon.store.land_in_base(&request.workspace, &options)?;
    let elapsed_us = u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
    Ok(Landed::on_host(&request.workspace, landed, elapsed_us))
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
