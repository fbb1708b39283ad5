//! The daemon itself.

use std::collections::HashMap;

use floe_fs::{MountRecord, MountTarget};

use super::Daemon;
use crate::error::ApiError;
use crate::wire::records::{DaemonStatus, Mounted, Stopping, Unrestored};
use crate::wire::{Status, Stop, WirePath};

/// Says who the daemon is and what is mounted.
///
/// # Errors
/// When the catalog cannot be read.
pub fn status(daemon: &Daemon, _: &Status) -> Result<DaemonStatus, ApiError> {
    let names: HashMap<_, _> = daemon
        .store
        .workspaces()?
        .into_iter()
        .map(|info| (info.id, info.name))
        .collect();
    let mounted = |record: MountRecord| {
        let (workspace, snapshot, read_only) = match record.target {
            MountTarget::Workspace(id) => {
                let name = names.get(&id).cloned();
                let name = name.or_else(|| Some("(deleted)".to_owned()));
                (name, None, record.read_only)
            }
            MountTarget::Snapshot(id) => (None, Some(id.to_string()), true),
        };
        Mounted {
            workspace,
            snapshot,
            dir: WirePath::from(&*record.dir),
            read_only,
        }
    };
    Ok(DaemonStatus {
        pid: std::process::id(),
        store: WirePath::from(daemon.store.dir()),
        store_id: daemon.store.id().to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        started_at: daemon.started_at.clone(),
        api: daemon.api_url.get().cloned(),
        mounts: daemon.mounts.all().into_iter().map(mounted).collect(),
        unrestored: unrestored(daemon),
    })
}

/// What could not be mounted again.
pub(crate) fn unrestored(daemon: &Daemon) -> Vec<Unrestored> {
    let all = daemon.mounts.unrestored().into_iter();
    all.map(|it| Unrestored {
        dir: WirePath::from(&*it.record.dir),
        error: [vec![it.error.error], it.error.causes].concat().join(": "),
    })
    .collect()
}

/// Begins the daemon's end. The answer leaves before it.
///
/// # Errors
/// Never.
pub fn stop(daemon: &Daemon, _: &Stop) -> Result<Stopping, ApiError> {
    daemon.request_stop("a stop request");
    Ok(Stopping {
        pid: std::process::id(),
    })
}
