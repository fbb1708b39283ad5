//! From request to answer. Every handler is a plain function that any front end may call, on any
//! thread, with whatever input it was given: all checks are here or in the engine.

mod control;
mod diff;
mod kernel;
mod land;
mod mounts;
mod retention;
mod sandboxes;
mod snapshots;
mod space;
mod store;
mod templates;
mod workspaces;

pub(crate) use control::unrestored;
pub use control::{status, stop};
pub use diff::{diff, diff_file};
pub use kernel::{install_kernel, show_kernel};
pub use land::{land, undo_landing};
pub use mounts::{mount, umount};
pub use retention::{apply_retention, clear_retention, set_retention, show_retention};
pub(crate) use sandboxes::find_id;
pub use sandboxes::{
    create_sandbox, fork_sandbox, kill_sandbox, list_sandboxes, measure_sandbox, pause_sandbox,
    read_console, resume_sandbox, rollback_sandbox, sandbox_logs, show_sandbox, snapshot_sandbox,
};
pub(super) use snapshots::{check_texts, nanoseconds};
pub use snapshots::{edit_snapshots, fork, list_snapshots, log, rollback, show_snapshot, snapshot};
pub use space::{collect, delete_snapshots, hash_now, sizes, usage};
pub use store::{check_store, repair_store, store_config};
pub use templates::{build_template, delete_template, list_templates};
pub use workspaces::{
    adopt_workspace, create_workspace, create_workspace_from, delete_workspace, import_workspace,
    list_workspaces, rename_workspace, set_quota, show_workspace,
};

use floe_fs::{FindError, MountTarget, WorkspaceError, WorkspaceInfo};

use super::Daemon;
use super::mounts::Subject;
use crate::error::{ApiError, ErrorKind};
use crate::wire::WirePath;
use crate::wire::records::Workspace;

/// A workspace as shown: with the directories it is mounted on.
fn shown(daemon: &Daemon, info: WorkspaceInfo) -> Workspace {
    let dirs = daemon.mounts.dirs(&MountTarget::Workspace(info.id));
    Workspace::new(
        info,
        dirs.iter().map(|dir| WirePath::from(&**dir)).collect(),
    )
}

/// Resolves `WS|SNAP`: a workspace of exactly that name, or else a snapshot reference.
fn subject(daemon: &Daemon, text: &str) -> Result<Subject, ApiError> {
    let similar_workspaces = match daemon.store.workspace(text) {
        Ok(info) => return Ok(Subject::Workspace(info)),
        Err(WorkspaceError::NotFound { similar, .. }) => similar,
        Err(error) => return Err(error.into()),
    };
    match daemon.store.find_snapshot(text) {
        Ok(info) => Ok(Subject::Snapshot(info)),
        Err(FindError::NotFound { .. }) => {
            let what = format!("there is no workspace or snapshot '{text}'");
            let hint = match similar_workspaces.first() {
                Some(near) => format!("did you mean '{near}'? See all with `floe ws list`"),
                None => "see what there is with `floe ws list` and `floe snap list`".to_owned(),
            };
            Err(ApiError::new(ErrorKind::NotFound, what).hint(hint))
        }
        Err(error) => Err(error.into()),
    }
}
