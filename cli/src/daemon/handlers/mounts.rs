//! Mounting and unmounting.

use floe_fs::MountTarget;

use super::super::mounts::Subject;
use super::{Daemon, subject};
use crate::error::{ApiError, ErrorKind};
use crate::wire::records::{Mounted, Unmounted};
use crate::wire::{Mount, Umount, WirePath};

/// Mounts a workspace, or a snapshot read-only. Doing it again changes nothing.
///
/// # Errors
/// When there is no such thing, or it cannot be mounted there.
pub fn mount(daemon: &Daemon, request: &Mount) -> Result<Mounted, ApiError> {
    let subject = match subject(daemon, &request.target)? {
        Subject::Workspace(info) if request.read_only => Subject::Onlooker(info),
        subject => subject,
    };
    let dir = request.dir.as_ref().map(WirePath::to_path);
    let dir = daemon.mounts.mount(&subject, dir.as_deref())?;
    let (workspace, snapshot) = match subject {
        Subject::Workspace(info) | Subject::Sandbox(info, _) | Subject::Onlooker(info) => {
            (Some(info.name), None)
        }
        Subject::Snapshot(info) => (None, Some(info.id.to_string())),
    };
    let read_only = request.read_only || snapshot.is_some();
    Ok(Mounted {
        workspace,
        snapshot,
        dir: WirePath::from(&*dir),
        read_only,
    })
}

/// Unmounts: every mount of the workspace of that name, or else the mount on that directory, or
/// else every mount of that snapshot. A workspace or snapshot that is not mounted is fine.
///
/// # Errors
/// When there is no such thing, or a mount is busy.
pub fn umount(daemon: &Daemon, request: &Umount) -> Result<Unmounted, ApiError> {
    let found = subject(daemon, &request.target);
    if let Ok(Subject::Workspace(info)) = &found {
        return unmounted(daemon, &MountTarget::Workspace(info.id), request.lazy);
    }
    if let Some(dir) = daemon
        .mounts
        .umount_dir(&request.dir.to_path(), request.lazy)?
    {
        return Ok(Unmounted {
            unmounted: vec![WirePath::from(&*dir)],
        });
    }
    match found {
        Ok(Subject::Snapshot(info)) => {
            unmounted(daemon, &MountTarget::Snapshot(info.id), request.lazy)
        }
        Ok(Subject::Workspace(_) | Subject::Sandbox(..) | Subject::Onlooker(_)) => Ok(Unmounted {
            unmounted: Vec::new(),
        }),
        Err(error) if error.kind == ErrorKind::NotFound => {
            let what = format!(
                "'{}' is neither a workspace nor a mount of one",
                request.target
            );
            Err(ApiError::new(ErrorKind::NotFound, what)
                .hint("see what is mounted with `floe daemon status`"))
        }
        Err(error) => Err(error),
    }
}

fn unmounted(daemon: &Daemon, target: &MountTarget, lazy: bool) -> Result<Unmounted, ApiError> {
    let dirs = daemon.mounts.umount(target, lazy)?;
    Ok(Unmounted {
        unmounted: dirs.iter().map(|dir| WirePath::from(&**dir)).collect(),
    })
}
