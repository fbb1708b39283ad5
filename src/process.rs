//! Processes by pidfd, so that a reused pid is never signalled, and the search for those that
//! belong to one store.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Child;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

/// A handle on one process that stays valid, and harmless, after the process has ended.
#[derive(Debug)]
pub struct Handle {
    fd: OwnedFd,
    pid: Pid,
}

impl Handle {
    /// A handle on a process that exists; `None` when it does not (any more).
    #[must_use]
    pub fn open(pid: u32) -> Option<Self> {
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let fd = pidfd_open(pid, PidfdFlags::empty()).ok()?;
        Some(Self { fd, pid })
    }

    /// A handle on a child that has not been waited for.
    ///
    /// # Panics
    /// When the kernel has no pidfds.
    #[must_use]
    #[track_caller]
    pub fn of_child(child: &Child) -> Self {
        Self::open(child.id()).expect("a pidfd of a child that was not waited for")
    }

    /// The process id.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.pid.as_raw_nonzero().get().unsigned_abs()
    }

    /// Waits until the process has ended; false when `limit` passed first.
    #[must_use]
    pub fn wait_for_end(&self, limit: Duration) -> bool {
        let deadline = Instant::now() + limit;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).ok();
            let mut fds = [PollFd::new(&self.fd, PollFlags::IN)];
            match poll(&mut fds, timeout.as_ref()) {
                Ok(0) => return false,
                Ok(_) => return true,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => panic!("poll on a pidfd: {error}"),
            }
        }
    }

    /// Sends SIGTERM, unless the process has ended.
    pub fn terminate(&self) {
        self.signal(Signal::TERM);
    }

    /// Sends SIGKILL, unless the process has ended.
    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    fn signal(&self, signal: Signal) {
        match pidfd_send_signal(&self.fd, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => {}
            Err(error) => panic!("signalling process {}: {error}", self.pid()),
        }
    }
}

/// The processes that run `program` and name `dir` on their command line or in their environment.
///
/// `dir` must be a directory that the test made for itself: what it returns may be killed.
#[must_use]
pub fn of_store(program: &Path, dir: &Path) -> Vec<Handle> {
    let mut found = Vec::new();
    let Ok(processes) = fs::read_dir("/proc") else {
        return found;
    };
    for entry in processes.flatten() {
        let Some(pid) = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse::<u32>().ok())
        else {
            continue;
        };
        if pid == std::process::id() {
            continue;
        }
        // The handle comes first: what is read after it is about this process or nothing.
        let Some(handle) = Handle::open(pid) else {
            continue;
        };
        if runs(&entry.path(), program) && names(&entry.path(), dir) {
            found.push(handle);
        }
    }
    found
}

fn runs(process: &Path, program: &Path) -> bool {
    let Ok(exe) = fs::read_link(process.join("exe")) else {
        return false;
    };
    // A rebuilt binary leaves " (deleted)" behind the path of a running old one.
    let exe = exe.as_os_str().as_bytes();
    exe.strip_suffix(b" (deleted)").unwrap_or(exe) == program.as_os_str().as_bytes()
}

fn names(process: &Path, dir: &Path) -> bool {
    let dir = dir.as_os_str().as_bytes();
    ["cmdline", "environ"].iter().any(|file| {
        fs::read(process.join(file))
            .is_ok_and(|text| text.windows(dir.len()).any(|part| part == dir))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_is_found_by_program_and_directory_only() {
        let dir = tempfile::tempdir().unwrap();
        let sleep = fs::canonicalize("/bin/sleep").unwrap();
        let mut child = Command::new(&sleep)
            .arg("60")
            .env("FLOE_STORE", dir.path())
            .spawn()
            .unwrap();
        // The environment is there only once exec has happened in the child.
        let deadline = Instant::now() + Duration::from_secs(10);
        let found = loop {
            let found = of_store(&sleep, dir.path());
            if !found.is_empty() || Instant::now() > deadline {
                break found;
            }
        };
        assert_eq!(
            found.iter().map(Handle::pid).collect::<Vec<_>>(),
            [child.id()]
        );
        assert!(of_store(&sleep, Path::new("/nonexistent/floe")).is_empty());
        assert!(of_store(Path::new("/bin/true"), dir.path()).is_empty());
        assert!(!found[0].wait_for_end(Duration::from_millis(10)));
        found[0].kill();
        assert!(found[0].wait_for_end(Duration::from_secs(10)));
        child.wait().unwrap();
        found[0].kill();
    }
}
