//! What sandboxes need of the host.

use std::path::{Path, PathBuf};

use super::Check;
use crate::daemon::sandboxes::host_limits;

pub(super) fn checks() -> Vec<Check> {
    if !rustix::process::geteuid().is_root() {
        return vec![Check::warn(
            "sandboxes",
            "sandboxes need a daemon that runs as root",
            "run Floe as root for sandboxes; workspaces and snapshots need no root",
        )];
    }
    vec![
        program("bubblewrap", "bwrap", "apt-get install bubblewrap"),
        program("unshare", "unshare", "apt-get install util-linux"),
        user_namespaces(Path::new("/proc/sys/user/max_user_namespaces")),
        control_groups(),
    ]
}

fn program(name: &'static str, file: &str, install: &str) -> Check {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found: Option<PathBuf> = std::env::split_paths(&path)
        .map(|dir| dir.join(file))
        .find(|file| file.is_file());
    match found {
        Some(file) => Check::ok(name, file.display().to_string()),
        None => Check::warn(
            name,
            "not found; sandboxes need it",
            format!("install it: `{install}`"),
        ),
    }
}

fn user_namespaces(limit: &Path) -> Check {
    let name = "user namespaces";
    match std::fs::read_to_string(limit).map(|text| text.trim().parse::<u64>()) {
        Ok(Ok(0)) => Check::warn(
            name,
            "the kernel allows none; sandboxes need them",
            format!(
                "allow them: `sysctl user.max_user_namespaces=16384` ({})",
                limit.display()
            ),
        ),
        Ok(Ok(most)) => Check::ok(name, format!("up to {most}")),
        Ok(Err(_)) | Err(_) => Check::warn(
            name,
            "the kernel has none; sandboxes need them",
            "use a kernel with CONFIG_USER_NS",
        ),
    }
}

fn control_groups() -> Check {
    let name = "control groups";
    match host_limits() {
        Err(error) => Check::warn(
            name,
            error.to_string(),
            "mount them: `mount -t cgroup2 none /sys/fs/cgroup`; sandboxes need them",
        ),
        Ok(missing) if missing.is_empty() => Check::ok(name, "cpu, memory, pids, freezing"),
        Ok(missing) => Check::warn(
            name,
            format!("freezing, but no limits of: {}", missing.join(", ")),
            "sandboxes work without, and say what is not enforced",
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::commands::doctor::Status;

    #[test]
    fn a_kernel_that_allows_no_user_namespaces_is_told() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("max");
        let status = |text: &str| {
            std::fs::write(&file, text).unwrap();
            user_namespaces(&file).status
        };
        assert_eq!(status("0\n"), Status::Warn);
        assert_eq!(status("96364\n"), Status::Ok);
        assert_eq!(status("?"), Status::Warn);
        assert_eq!(
            user_namespaces(&dir.path().join("none")).status,
            Status::Warn
        );
    }
}
