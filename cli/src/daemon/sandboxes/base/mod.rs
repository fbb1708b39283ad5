//! The template `base`: the host's own programs, and nothing of the host's that is anybody's business.
//!
//! It is made when it is first asked for, at once: `/usr` and the package manager's records are shown in place
//! ([`floe_fs`]'s base directories), of `/etc` a list of things is copied ([`etc`]), and the rest is made
//! new. What not everybody on the host may read is left out everywhere. When the host's programs were
//! changed since, by its package manager for instance, it is made anew for the next sandbox. Its workspace
//! stays, so that `floe ws show template-base` tells what changed underneath and `floe ws adopt
//! template-base` makes it independent of the host.

mod accounts;
mod etc;
mod fill;

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use floe_fs::id::SnapshotId;
use floe_fs::id::WorkspaceName;
use floe_fs::{BaseDir, MountTarget, SnapshotOptions, Store};

use crate::daemon::mounts::{Mounts, Subject};
use crate::error::{ApiError, ErrorKind};

/// The name of the template.
pub(super) const NAME: &str = "base";
/// The workspace it is made in.
pub(super) const WORKSPACE: &str = "template-base";
/// Directories of the host that are shown in place.
const IN_PLACE: &[&str] = &["/usr", "/var/lib/dpkg"];
/// What of them is left out: what administrators put there for this host alone.
const EXCLUDED: &str = "/usr/local/etc\n/usr/local/var\n/usr/src\n/var/lib/dpkg/lock*";
/// What tells that the host's programs are not what they were.
const TELLING: &[&str] = &[
    "/usr",
    "/usr/bin",
    "/usr/sbin",
    "/usr/lib",
    "/usr/local/bin",
    "/usr/local/lib",
    "/var/lib/dpkg/status",
    "/etc/passwd",
    "/etc/ssl/certs",
    "/etc/alternatives",
];

/// What the host's programs are now: equal as long as nobody installed anything.
pub(super) fn fingerprint() -> String {
    let mut hasher = blake3::Hasher::new();
    hasher.update(concat!("base 1 ", env!("CARGO_PKG_VERSION"), "\n").as_bytes());
    for path in TELLING {
        let told = match fs::metadata(path) {
            Ok(meta) => format!(
                "{path} {} {} {} {}.{} {}.{}\n",
                meta.dev(),
                meta.ino(),
                meta.size(),
                meta.mtime(),
                meta.mtime_nsec(),
                meta.ctime(),
                meta.ctime_nsec()
            ),
            Err(_) => format!("{path} -\n"),
        };
        hasher.update(told.as_bytes());
    }
    hasher.finalize().to_hex().to_string()
}

/// Makes the template's snapshot and returns its id.
///
/// # Errors
/// When a directory of the host cannot be used, or the workspace cannot be filled; a workspace
/// that was begun is made again the next time.
pub(super) fn make(store: &Store, mounts: &Mounts) -> Result<SnapshotId, ApiError> {
    let name = WorkspaceName::parse(WORKSPACE)?;
    if let Ok(old) = store.workspace(WORKSPACE) {
        let is_ours = old.base.as_ref().is_some_and(|base| {
            base.dirs
                .iter()
                .all(|dir| IN_PLACE.iter().any(|ours| dir.at == Path::new(ours)))
        });
        if !is_ours {
            let what = format!("the workspace '{WORKSPACE}' was not made by Floe");
            let hint = format!("give it another name: `floe ws rename {WORKSPACE} NAME`");
            return Err(ApiError::new(ErrorKind::Conflict, what).hint(hint));
        }
        mounts.umount(&MountTarget::Workspace(old.id), false)?;
        store.delete_workspace(WORKSPACE)?;
    }
    let dirs: Vec<BaseDir> = IN_PLACE
        .iter()
        .map(PathBuf::from)
        .filter(|dir| dir.is_dir())
        .map(|dir| BaseDir {
            at: dir.clone(),
            dir,
        })
        .collect();
    let made = store.create_public_workspace_from(&name, &dirs, EXCLUDED)?;
    let subject = Subject::Sandbox(made, None);
    let root = mounts.mount(&subject, None)?;
    let filled = fill::fill(&root, Path::new("/"));
    mounts.umount(&subject.target(), false)?;
    filled.map_err(|error| {
        let what = format!(
            "cannot make '{}' of the template '{NAME}'",
            error.path.display()
        );
        ApiError::new(ErrorKind::Failed, what).caused_by(&error.source)
    })?;
    let options = SnapshotOptions {
        message: Some("the host's programs".to_owned()),
        ..SnapshotOptions::default()
    };
    Ok(store.snapshot(WORKSPACE, &options)?.id)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fingerprint_of_a_host_is_its_own_as_long_as_nothing_changes() {
        assert_eq!(fingerprint(), fingerprint());
        assert_eq!(fingerprint().len(), 64);
    }
}
