//! Landing.

use floe_fs::{LandOptions, MountTarget};

use super::Daemon;
use super::snapshots::mounted_inside;
use crate::error::ApiError;
use crate::wire::records::Landed;
use crate::wire::{Land, WirePath};

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
