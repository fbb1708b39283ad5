//! Workspaces.

use std::ops::ControlFlow;
use std::time::Duration;

use floe_fs::id::WorkspaceName;
use floe_fs::{BaseDir, Quota};

use super::{Daemon, shown};
use crate::error::{ApiError, ErrorKind};
use crate::wire::records::{Adopted, Deleted, Imported, Workspace};
use crate::wire::{
    AdoptWorkspace, CreateWorkspace, CreateWorkspaceFrom, DeleteWorkspace, ImportWorkspace,
    ListWorkspaces, Progress, RenameWorkspace, SetQuota, ShowWorkspace,
};

/// Least time between two reports of an import.
const REPORT_EVERY: Duration = Duration::from_millis(50);

/// Makes an empty workspace.
///
/// # Errors
/// When the name is not allowed or taken.
pub fn create_workspace(daemon: &Daemon, request: &CreateWorkspace) -> Result<Workspace, ApiError> {
    let name = WorkspaceName::parse(&request.name)?;
    Ok(shown(daemon, daemon.store.create_workspace(&name)?))
}

/// Makes a workspace with a copy of a directory. `on_progress` is told now and then how far it is
/// and returns whether that could be passed on; `is_wanted` is asked after each file and before the
/// end whether anybody still waits for the result. If not, there is no workspace in the end.
///
/// # Errors
/// When the name is not allowed or taken, or something in the directory cannot be copied.
pub fn import_workspace(
    daemon: &Daemon,
    request: &ImportWorkspace,
    is_wanted: &dyn Fn() -> bool,
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Imported, ApiError> {
    let name = WorkspaceName::parse(&request.name)?;
    let dir = request.dir.to_path();
    if !dir.is_absolute() {
        let what = format!("'{}' is not an absolute path", dir.display());
        return Err(ApiError::new(ErrorKind::Usage, what));
    }
    let (info, report) = daemon
        .store
        .import_workspace(&name, &dir, &mut |progress| {
            let told = Progress {
                files: progress.files,
                bytes: progress.bytes,
                total: None,
            };
            match is_wanted() && on_progress(&told) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }
        })?;
    Ok(Imported {
        workspace: shown(daemon, info),
        import: report.into(),
    })
}

/// Makes a workspace that shows directories of the host in place.
///
/// # Errors
/// When the name is not allowed or taken, or a directory cannot be used.
pub fn create_workspace_from(
    daemon: &Daemon,
    request: &CreateWorkspaceFrom,
) -> Result<Workspace, ApiError> {
    let name = WorkspaceName::parse(&request.name)?;
    let mut dirs = Vec::new();
    for dir in &request.dirs {
        let (dir, at) = (dir.dir.to_path(), dir.at.to_path());
        if !dir.is_absolute() {
            let what = format!("'{}' is not an absolute path", dir.display());
            return Err(ApiError::new(ErrorKind::Usage, what));
        }
        dirs.push(BaseDir { dir, at });
    }
    if let Some(bad) = request.exclude.iter().find(|line| line.contains('\n')) {
        let what = format!("the pattern {bad:?} has more than one line");
        return Err(ApiError::new(ErrorKind::Usage, what));
    }
    let exclude = request.exclude.join("\n");
    let made = daemon.store.create_workspace_from(&name, &dirs, &exclude)?;
    Ok(shown(daemon, made))
}

/// Takes in what a workspace shows of the host. It goes on when nobody waits any more; `on_progress`
/// is told now and then how far it is and returns whether that could be passed on.
///
/// # Errors
/// When there is nothing to adopt, or some of it could not be taken in.
pub fn adopt_workspace(
    daemon: &Daemon,
    request: &AdoptWorkspace,
    is_wanted: &dyn Fn() -> bool,
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Adopted, ApiError> {
    let base = daemon.store.base_of(&request.name)?;
    let adoption = daemon.adoptions.begin(base)?;
    let adopted = loop {
        if request.detach {
            break None;
        }
        match adoption.wait(REPORT_EVERY) {
            Ok(ended) => break Some(ended?),
            Err(progress) => {
                let told = on_progress(&Progress {
                    files: progress.directories + progress.files,
                    bytes: progress.bytes,
                    total: None,
                });
                if !told || !is_wanted() {
                    break None;
                }
            }
        }
    };
    Ok(Adopted {
        workspace: shown(daemon, daemon.store.workspace(&request.name)?),
        adopted,
    })
}

/// Lists the workspaces by name.
///
/// # Errors
/// When the catalog cannot be read.
pub fn list_workspaces(daemon: &Daemon, _: &ListWorkspaces) -> Result<Vec<Workspace>, ApiError> {
    let all = daemon.store.workspaces()?;
    Ok(all.into_iter().map(|info| shown(daemon, info)).collect())
}

/// Describes one workspace.
///
/// # Errors
/// When there is none of that name.
pub fn show_workspace(daemon: &Daemon, request: &ShowWorkspace) -> Result<Workspace, ApiError> {
    Ok(shown(daemon, daemon.store.workspace(&request.name)?))
}

/// Gives a workspace another name. Its mounts stay where they are.
///
/// # Errors
/// When there is none of that name, or the new one is not allowed or taken.
pub fn rename_workspace(daemon: &Daemon, request: &RenameWorkspace) -> Result<Workspace, ApiError> {
    let to = WorkspaceName::parse(&request.to)?;
    Ok(shown(
        daemon,
        daemon.store.rename_workspace(&request.name, &to)?,
    ))
}

/// Says how much a workspace may hold.
///
/// # Errors
/// When there is none of that name.
pub fn set_quota(daemon: &Daemon, request: &SetQuota) -> Result<Workspace, ApiError> {
    let changed = daemon.store.change_quota(&request.name, |before| Quota {
        bytes: request
            .bytes
            .or(before.bytes.filter(|_| !request.any_bytes)),
        inodes: request
            .inodes
            .or(before.inodes.filter(|_| !request.any_inodes)),
    })?;
    Ok(shown(daemon, changed))
}

/// Removes a workspace; its snapshots stay. Where it is mounted it can be used until it is unmounted.
///
/// # Errors
/// When there is none of that name, or a sandbox has it.
pub fn delete_workspace(daemon: &Daemon, request: &DeleteWorkspace) -> Result<Deleted, ApiError> {
    let info = daemon.store.workspace(&request.name)?;
    if let Some(sandbox) = daemon.sandboxes.of_workspace(info.id)? {
        let what = format!(
            "'{}' is the workspace of the sandbox '{sandbox}'",
            request.name
        );
        return Err(ApiError::new(ErrorKind::Conflict, what)
            .hint(format!("remove both with `floe sandbox kill {sandbox}`")));
    }
    let _held = daemon.mounts.hold(&info)?;
    let workspace = shown(daemon, info);
    if !request.dry_run {
        daemon.store.delete_workspace(&request.name)?;
    }
    Ok(Deleted {
        workspace,
        deleted: !request.dry_run,
    })
}
