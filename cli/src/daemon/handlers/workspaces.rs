//! Workspaces.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use floe_fs::id::WorkspaceName;

use super::{Daemon, shown};
use crate::error::{ApiError, ErrorKind};
use crate::wire::records::{Deleted, Imported, Workspace};
use crate::wire::{
    CreateWorkspace, DeleteWorkspace, ImportWorkspace, ListWorkspaces, Progress, RenameWorkspace,
    ShowWorkspace,
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
    let mut reported = Instant::now();
    let (info, report) = daemon
        .store
        .import_workspace(&name, &dir, &mut |progress| {
            let mut wanted = is_wanted();
            if wanted && reported.elapsed() >= REPORT_EVERY {
                reported = Instant::now();
                wanted = on_progress(&Progress {
                    files: progress.files,
                    bytes: progress.bytes,
                });
            }
            if wanted {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
    Ok(Imported {
        workspace: shown(daemon, info),
        import: report.into(),
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

/// Removes a workspace that is not mounted; its snapshots stay.
///
/// # Errors
/// When there is none of that name, or it is mounted.
pub fn delete_workspace(daemon: &Daemon, request: &DeleteWorkspace) -> Result<Deleted, ApiError> {
    let workspace = shown(daemon, daemon.store.workspace(&request.name)?);
    if !request.dry_run {
        daemon.store.delete_workspace(&request.name)?;
    }
    Ok(Deleted {
        workspace,
        deleted: !request.dry_run,
    })
}
