//! A process that outlives a killed daemon by a moment, to end the connections of its mounts.
//!
//! The daemon uses its own mounts: it has programs' dirty pages written back before a snapshot. A
//! thread that is killed while it waits for an answer there waits on, for the answer of a process
//! that is dead; and as it keeps the process's descriptors open, the kernel does not notice that the
//! server is gone. Every program on the mount would wait with it. So somebody else has to tell the
//! kernel.

use std::collections::HashMap;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};
use signal_hook::iterator::Signals;
use tracing::{debug, warn};

use crate::error::{ApiError, ErrorKind};

/// Major and minor number of a file system.
type Device = (u32, u32);

/// The guard of a running daemon.
pub(super) struct Guard {
    process: Child,
    told: Arc<Told>,
}

/// The way to tell the guard what the daemon serves.
pub(crate) struct Told {
    stdin: Mutex<ChildStdin>,
    /// File systems that are served.
    served: AtomicUsize,
}

/// A file system that the guard knows of. Dropping it says that it is served no more.
pub(crate) struct Guarded {
    device: Device,
    told: Arc<Told>,
}

impl Guard {
    /// Starts one. To be called by the daemon's main thread: the kernel tells the guard of the end
    /// of the thread that started it.
    ///
    /// # Errors
    /// When no process can be started.
    pub(super) fn start() -> Result<Self, ApiError> {
        let failed = |error: &std::io::Error| {
            ApiError::new(ErrorKind::Failed, "cannot start the daemon's guard").caused_by(error)
        };
        let program = std::env::current_exe().map_err(|error| failed(&error))?;
        let mut process = Command::new(program)
            .args(["daemon", "guard", "--parent"])
            .arg(std::process::id().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let stdin = process
            .stdin
            .take()
            .ok_or_else(|| failed(&std::io::ErrorKind::BrokenPipe.into()))?;
        // Until it watches, an end of the daemon would escape it.
        let mut ready = [0];
        let stdout = process.stdout.take();
        let mut stdout = stdout.ok_or_else(|| failed(&std::io::ErrorKind::BrokenPipe.into()))?;
        stdout
            .read_exact(&mut ready)
            .map_err(|error| failed(&error))?;
        let told = Arc::new(Told {
            stdin: Mutex::new(stdin),
            served: AtomicUsize::new(0),
        });
        Ok(Self { process, told })
    }

    /// The way to tell it.
    pub(super) fn told(&self) -> Arc<Told> {
        Arc::clone(&self.told)
    }

    /// Whether anything is served still.
    pub(super) fn is_needed(&self) -> bool {
        self.told.served.load(Ordering::Acquire) > 0
    }

    /// Ends it: the daemon has unmounted everything.
    pub(super) fn end(mut self) {
        let ended = self.process.kill();
        if let Err(error) = ended.and_then(|()| self.process.wait().map(drop)) {
            warn!(%error, "the daemon's guard did not end");
        }
    }
}

impl Told {
    /// The daemon serves a file system from now on.
    pub(super) fn serves(self: &Arc<Self>, device: Device) -> Guarded {
        self.served.fetch_add(1, Ordering::AcqRel);
        self.tell('+', device);
        let told = Arc::clone(self);
        Guarded { device, told }
    }

    fn tell(&self, what: char, (major, minor): Device) {
        let mut stdin = self.stdin.lock().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = stdin.write_all(format!("{what}{major}:{minor}\n").as_bytes()) {
            warn!(%error, "the daemon's guard is gone");
        }
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.told.tell('-', self.device);
        self.told.served.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Takes one line of [`Told`] into account; others are no concern.
fn hear(line: &str, served: &mut HashMap<Device, u32>) {
    let parse = |text: &str| {
        let (major, minor) = text.split_once(':')?;
        Some((major.parse().ok()?, minor.parse().ok()?))
    };
    if let Some(device) = line.strip_prefix('+').and_then(parse) {
        // Counted: the next file system may have the number before the last one is taken leave of.
        *served.entry(device).or_default() += 1;
    } else if let Some(device) = line.strip_prefix('-').and_then(parse) {
        match served.get_mut(&device) {
            Some(count) if *count > 1 => *count -= 1,
            _ => drop(served.remove(&device)),
        }
    }
}

/// Hears what the daemon says until its end. What was read is taken into account before the set is
/// let go.
fn listen(served: &Mutex<HashMap<Device, u32>>) {
    let mut text = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        // The set is not held while there is nothing to hear.
        let stdin = std::io::stdin();
        if poll(&mut [PollFd::new(&stdin, PollFlags::IN)], None).is_err() {
            continue;
        }
        let mut served = served.lock().unwrap_or_else(PoisonError::into_inner);
        match stdin.lock().read(&mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(count) => text.extend_from_slice(&buffer[..count]),
        }
        while let Some(end) = text.iter().position(|&byte| byte == b'\n') {
            let line: Vec<u8> = text.drain(..=end).collect();
            hear(String::from_utf8_lossy(&line).trim_end(), &mut served);
        }
    }
}

/// Whether a process ends to its last thread within a moment.
fn has_ended(process: &OwnedFd) -> bool {
    let mut fds = [PollFd::new(process, PollFlags::IN)];
    let moment = Timespec {
        tv_sec: 0,
        tv_nsec: 300_000_000,
    };
    poll(&mut fds, Some(&moment)).is_ok_and(|ready| ready > 0)
}

/// Waits for the end of the daemon, then ends the connections of what it served.
///
/// # Errors
/// When signals cannot be waited for, or the connections cannot be ended.
pub fn guard(parent: u32) -> Result<(), ApiError> {
    let failed = |what: &str, error: &dyn std::error::Error| {
        ApiError::new(ErrorKind::Failed, what).caused_by(error)
    };
    // Those that a terminal or a service manager sends to everybody are for the daemon to obey.
    let mut signals = Signals::new([SIGUSR1, SIGTERM, SIGINT, SIGHUP])
        .map_err(|error| failed("cannot watch for signals", &error))?;
    rustix::process::set_parent_process_death_signal(Some(Signal::USR1))
        .map_err(|error| failed("cannot watch the daemon", &error))?;
    let served = Arc::new(Mutex::new(HashMap::new()));
    let listening = Arc::clone(&served);
    std::thread::Builder::new()
        .name("listen".into())
        .spawn(move || listen(&listening))
        .map_err(|error| failed("cannot start a thread", &error))?;
    let daemon = i32::try_from(parent).ok().and_then(Pid::from_raw);
    let Some(daemon) = daemon.filter(|_| rustix::process::getppid() == daemon) else {
        // It ended before it could be watched, and had mounted nothing yet.
        return Ok(());
    };
    let process = pidfd_open(daemon, PidfdFlags::empty())
        .map_err(|error| failed("cannot watch the daemon", &error))?;
    std::io::stdout()
        .write_all(b"+")
        .and_then(|()| std::io::stdout().flush())
        .map_err(|error| failed("cannot tell the daemon that it is watched", &error))?;
    signals.forever().find(|&signal| signal == SIGUSR1);
    // If all of it ends, the kernel notices by itself, and the numbers may soon be those of other
    // mounts. What it said last is heard meanwhile: a thread that hangs keeps the pipe open.
    if has_ended(&process) {
        return Ok(());
    }
    let served = served.lock().unwrap_or_else(PoisonError::into_inner);
    debug!(mounts = served.len(), "the daemon has ended");
    if served.is_empty() {
        return Ok(());
    }
    let devices: Vec<Device> = served.keys().copied().collect();
    floe_fs::dispatch::fuser::abort(&devices)
        .map_err(|error| failed("cannot end the connections of the daemon's mounts", &error))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_system_is_known_from_its_first_to_its_last_word() {
        let mut served = HashMap::new();
        let lines = [
            "+0:39", "+0:40", "-0:39", "nonsense", "+x:1", "-0:7", "+0:40", "-0:40",
        ];
        for line in lines {
            hear(line, &mut served);
        }
        assert_eq!(served, HashMap::from([((0, 40), 1)]));
    }
}
