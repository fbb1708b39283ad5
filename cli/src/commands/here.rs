//! Whether what the daemon has mounted can be seen from here.
//!
//! A daemon that was started in another mount namespace (`unshare -m`, a container) mounts there.
//! Here the directory stays a plain one, and what is written to it would be in no workspace.

use std::collections::HashMap;
use std::fs::read_link;
use std::path::Path;

use floe_fs::dispatch::fuser::{FoundMount, every_mount};

use crate::error::{ApiError, ErrorKind};

/// Checks that a mount of Floe's is on each directory, as this process sees it.
///
/// # Errors
/// When one is not, and the daemon is not known to live here.
pub(super) fn check(daemon: u32, dirs: &[&Path]) -> Result<(), ApiError> {
    let table = every_mount().map_err(|error| {
        ApiError::new(ErrorKind::Failed, "cannot read the table of mounts").caused_by(&error)
    })?;
    let mut floe: HashMap<&Path, Vec<&FoundMount>> = HashMap::new();
    for mount in table.iter().filter(|mount| mount.is_floe()) {
        floe.entry(&mount.dir).or_default().push(mount);
    }
    let is_mounted = |dir: &Path| {
        let mut here = floe.get(dir).into_iter().flatten();
        here.any(|mount| mount.is_on_top().unwrap_or(false))
    };
    match dirs.iter().find(|dir| !is_mounted(dir)) {
        // Somebody else has unmounted it meanwhile.
        Some(_) if lives_here(daemon) => Ok(()),
        Some(missing) => Err(not_here(daemon, missing)),
        None => Ok(()),
    }
}

fn lives_here(daemon: u32) -> bool {
    let namespace = |process: &str| read_link(format!("/proc/{process}/ns/mnt")).ok();
    let mine = namespace("self");
    mine.is_some() && mine == namespace(&daemon.to_string())
}

fn not_here(daemon: u32, dir: &Path) -> ApiError {
    let what = format!("the daemon (pid {daemon}) lives in another mount namespace");
    let mut error = ApiError::new(ErrorKind::Conflict, what).hint(
        "stop it, which unmounts everything, and start one here: `floe daemon stop`, then \
         `floe daemon start`",
    );
    let cause = format!("what it mounted on '{}' cannot be seen here", dir.display());
    error.causes.push(cause);
    error
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_directory_is_no_mount_of_a_daemon_elsewhere() {
        assert!(check(1, &[]).is_ok());
        let error = check(u32::MAX, &[Path::new("/")]).unwrap_err();
        assert!(error.error.contains("another mount namespace"), "{error}");
        assert!(error.hint.unwrap().contains("`floe daemon stop`"));
        assert!(check(std::process::id(), &[Path::new("/")]).is_ok());
    }
}
