//! Differences.

use floe_fs::id::{Ino, LayerId};
use floe_fs::{DiffOptions, DiffSide};

use super::super::mounts::Subject;
use super::{Daemon, subject};
use crate::error::ApiError;
use crate::wire::records::{Changed, FileAt, FileLines};
use crate::wire::{Diff, DiffFile, WirePath};

/// Says what of a workspace is meant that is not its present state.
const BASE: &str = "@base";

/// What differs between two states.
///
/// # Errors
/// When one does not exist, or they have nothing in common.
pub fn diff(daemon: &Daemon, request: &Diff) -> Result<Vec<Changed>, ApiError> {
    let (a, b) = match &request.b {
        Some(b) => (side(daemon, &request.a)?, side(daemon, b)?),
        None => {
            let name = daemon.store.workspace(&request.a)?.name;
            (DiffSide::Base(name.clone()), DiffSide::Workspace(name))
        }
    };
    let options = DiffOptions {
        paths: request.paths.iter().map(WirePath::to_bytes).collect(),
        each_file: request.each_file,
    };
    let found = daemon.store.diff(&a, &b, &options)?;
    let changed = found.into_iter();
    Ok(changed
        .map(|entry| Changed::new(entry, request.versions))
        .collect())
}

/// How the contents of two files differ.
///
/// # Errors
/// When one cannot be read.
pub fn diff_file(daemon: &Daemon, request: &DiffFile) -> Result<FileLines, ApiError> {
    let at = |file: FileAt| (Ino(file.inode), LayerId(file.layer));
    let found = daemon
        .store
        .diff_file(request.old.map(at), request.new.map(at))?;
    Ok(FileLines::new(found, request.hunks))
}

/// Resolves `WS|SNAP|WS@base`. No name has an `@` in it.
fn side(daemon: &Daemon, text: &str) -> Result<DiffSide, ApiError> {
    if let Some(workspace) = text.strip_suffix(BASE) {
        return Ok(DiffSide::Base(daemon.store.workspace(workspace)?.name));
    }
    Ok(match subject(daemon, text)? {
        Subject::Workspace(info) | Subject::Sandbox(info, _) | Subject::Onlooker(info) => {
            DiffSide::Workspace(info.name)
        }
        Subject::Snapshot(info) => DiffSide::Snapshot(info.id),
    })
}
