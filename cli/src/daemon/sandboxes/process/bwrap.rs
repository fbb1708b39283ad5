//! The command line of bubblewrap.
//!
//! It runs as the host's root and makes every namespace but the user namespace itself, so that these
//! belong to the host's root: not even root of the sandbox can change its mounts or its network. Then it
//! enters the sandbox's user namespace and becomes the agent, process 1.
//!
//! A shell goes before it, to enter the control groups: from there on nothing can be left of a start
//! that is not found by them. bubblewrap alone leaves its second process waiting for ever when the first is
//! killed at the wrong moment.

use std::fs::File;
use std::io::{Seek, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use command_fds::{CommandFdExt, FdMapping};
use rustix::fs::MemfdFlags;

use super::enter::entering;
use super::{StartError, seccomp};

/// Where the agent is seen inside. /dev is not part of the workspace, so nothing of this gets into a
/// snapshot.
const AGENT: &str = "/dev/floe/guest";

/// Descriptors of the started process.
const SOCKET_FD: i32 = 3;
const USER_NAMESPACE_FD: i32 = 4;
const FILTER_FD: i32 = 5;

/// What a sandbox is started with.
pub(super) struct Plan<'a> {
    /// The sandbox's id, its host name.
    pub(super) id: &'a str,
    /// Where its workspace is mounted.
    pub(super) root: &'a Path,
    /// The agent's binary.
    pub(super) agent: &'a Path,
    /// Whether it shares the host's network.
    pub(super) network: bool,
    /// Its user namespace.
    pub(super) user_namespace: OwnedFd,
    /// The agent's end of the conversation.
    pub(super) socket: UnixStream,
    /// The files by which a process enters its control groups.
    pub(super) groups: Vec<PathBuf>,
    /// Where complaints go.
    pub(super) log: File,
}

/// The command that starts a sandbox.
pub(super) fn command(plan: Plan<'_>) -> Result<Command, StartError> {
    let mut command = entering(&plan.groups);
    command.arg("bwrap");
    command.args([
        "--die-with-parent",
        "--new-session",
        "--as-pid-1",
        "--clearenv",
    ]);
    command.args([
        "--unshare-pid",
        "--unshare-ipc",
        "--unshare-uts",
        "--hostname",
        plan.id,
    ]);
    if !plan.network {
        command.arg("--unshare-net");
    }
    command.arg("--userns2").arg(USER_NAMESPACE_FD.to_string());
    // Of its user namespace: the agent gives them up for every command that is not root's.
    command.args(["--cap-add", "ALL"]);
    command.arg("--bind").arg(plan.root).arg("/");
    command.args(["--proc", "/proc", "--dev", "/dev"]);
    command.args(["--perms", "1777", "--tmpfs", "/dev/shm"]);
    command.args(["--perms", "0555", "--dir", "/dev/floe"]);
    command.arg("--ro-bind").arg(plan.agent).arg(AGENT);
    // bubblewrap follows links in the workspace while the whole of the host is below /oldroot.
    if plan.network && has_plain_resolv_conf(plan.root) {
        command.args(["--ro-bind-try", "/etc/resolv.conf", "/etc/resolv.conf"]);
    }
    command.arg("--seccomp").arg(FILTER_FD.to_string());
    command
        .args(["--chdir", "/", "--", AGENT, "--fd"])
        .arg(SOCKET_FD.to_string());
    command
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    command
        .current_dir("/")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(plan.log);
    let map = |parent_fd, child_fd| FdMapping {
        parent_fd,
        child_fd,
    };
    let mappings = vec![
        map(plan.socket.into(), SOCKET_FD),
        map(plan.user_namespace, USER_NAMESPACE_FD),
        map(filter()?, FILTER_FD),
    ];
    command
        .fd_mappings(mappings)
        .map_err(|collision| StartError::Bubblewrap {
            source: std::io::Error::other(collision),
        })?;
    Ok(command)
}

/// Whether there is an ordinary file to mount the host's over. Nothing runs in the workspace yet, so what is
/// seen here stays so.
fn has_plain_resolv_conf(root: &Path) -> bool {
    let kind = |at: &str| std::fs::symlink_metadata(root.join(at)).map(|meta| meta.file_type());
    kind("etc").is_ok_and(|kind| kind.is_dir())
        && kind("etc/resolv.conf").is_ok_and(|kind| kind.is_file())
}

/// The filter of system calls as a file to read.
fn filter() -> Result<OwnedFd, StartError> {
    let program = seccomp::program()?;
    let written = || {
        let mut file = File::from(rustix::fs::memfd_create("filter", MemfdFlags::CLOEXEC)?);
        file.write_all(&program)?;
        file.rewind()?;
        Ok(file.into())
    };
    written().map_err(|source: std::io::Error| StartError::Filter {
        source: source.into(),
    })
}
