//! What the agent does to itself before it serves anybody, and how it ends.

use std::fs;
use std::io;
use std::time::Duration;

use rustix::io::Errno;
use rustix::process::{
    DumpableBehavior, Gid, Pid, Resource, Rlimit, Signal, Uid, WaitOptions, getpid, getrlimit,
    set_child_subreaper, set_dumpable_behavior, set_parent_process_death_signal, setrlimit,
};
use rustix::thread::{
    CapabilitySet, capabilities, clear_ambient_capability_set, set_capabilities, set_thread_groups,
    set_thread_res_gid, set_thread_res_uid,
};
use thiserror::Error;

use super::Place;

/// Most files that the agent opens at once, if the system allows it.
const MAX_FILES: u64 = 16_384;

/// How often what is left is looked for at the end.
const ROUNDS: usize = 400;

/// How long those that were killed have to end, before they are looked for again.
const ROUND: Duration = Duration::from_millis(5);

/// What could not be done. The agent does not start then.
#[derive(Debug, Error)]
#[error("cannot {what}: {error}")]
pub struct StartError {
    pub what: &'static str,
    pub error: Errno,
}

fn step(what: &'static str, outcome: Result<(), Errno>) -> Result<(), StartError> {
    outcome.map_err(|error| StartError { what, error })
}

/// Becomes what the agent is to be. On the only thread there is. Returns the limit of open files
/// that was there before, for commands.
pub fn become_agent(place: Place) -> Result<Rlimit, StartError> {
    let sets = capabilities(None).map_err(|error| StartError {
        what: "read capabilities",
        error,
    })?;
    let needed = CapabilitySet::SETUID | CapabilitySet::SETGID;
    if sets.effective.contains(needed) {
        // The sandbox starts it as a user that does not exist there, with all capabilities of its
        // user namespace. Becoming 0 keeps them.
        step("leave all groups", set_thread_groups(&[]))?;
        step(
            "become group 0",
            set_thread_res_gid(Gid::ROOT, Gid::ROOT, Gid::ROOT),
        )?;
        step(
            "become user 0",
            set_thread_res_uid(Uid::ROOT, Uid::ROOT, Uid::ROOT),
        )?;
    }
    if place == Place::Sandbox {
        // Changing ids takes it back, so not before.
        step(
            "ask to end with the parent",
            set_parent_process_death_signal(Some(Signal::KILL)),
        )?;
    }
    let mut sets = capabilities(None).map_err(|error| StartError {
        what: "read capabilities",
        error,
    })?;
    sets.inheritable = CapabilitySet::empty();
    step(
        "drop inheritable capabilities",
        set_capabilities(None, sets),
    )?;
    step("drop ambient capabilities", clear_ambient_capability_set())?;
    step(
        "keep others out of its memory",
        set_dumpable_behavior(DumpableBehavior::NotDumpable),
    )?;
    if !is_init() {
        step("reap orphans", set_child_subreaper(Some(getpid())))?;
    }
    // New files of the daemon's uploads are 0644, new directories 0755.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let before = getrlimit(Resource::Nofile);
    let most = before.maximum.unwrap_or(MAX_FILES).min(MAX_FILES);
    let raised = Rlimit {
        current: Some(before.current.unwrap_or(most).max(most)),
        maximum: before.maximum,
    };
    step(
        "raise its limit of files",
        setrlimit(Resource::Nofile, raised),
    )?;
    if is_init() && place == Place::Sandbox {
        // A file of the host's. Root in the sandbox could take it from here, and fill the host's disk.
        let flags = rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let null = rustix::fs::open("/dev/null", flags, rustix::fs::Mode::empty());
        step(
            "let go of stderr",
            null.and_then(rustix::stdio::dup2_stderr),
        )?;
    }
    Ok(before)
}

fn is_init() -> bool {
    getpid() == Pid::INIT
}

/// Kills every process of the sandbox. `started` are those that requests have started.
pub fn kill_all(started: impl Iterator<Item = i32>) {
    if is_init() {
        // The group of process 1 stands for everybody. The kernel kills what comes after that when
        // process 1 ends.
        match rustix::process::kill_process_group(Pid::INIT, Signal::KILL) {
            Ok(()) | Err(Errno::SRCH) => {}
            Err(error) => super::complain("kill all processes", &error),
        }
        return;
    }
    for pid in started {
        match super::sys::kill_group(pid, Signal::KILL.as_raw()) {
            Ok(()) => {}
            Err(error) if Errno::from_io_error(&error) == Some(Errno::SRCH) => {}
            Err(error) => super::complain("kill a process", &error),
        }
    }
    // Whoever loses its parent becomes a child of the agent, so this comes to an end.
    for _ in 0..ROUNDS {
        for child in children() {
            match rustix::process::kill_process(child, Signal::KILL) {
                Ok(()) | Err(Errno::SRCH) => {}
                Err(error) => super::complain("kill a process", &error),
            }
        }
        // Not waiting: one that has come meanwhile was not killed yet.
        while let Ok(Some(_)) | Err(Errno::INTR) = rustix::process::wait(WaitOptions::NOHANG) {}
        if children().is_empty() {
            return;
        }
        std::thread::sleep(ROUND);
    }
}

/// Children of this process.
fn children() -> Vec<Pid> {
    let parent = getpid().as_raw_nonzero().get();
    let Ok(entries) = fs::read_dir("/proc") else {
        return Vec::new();
    };
    entries
        .filter_map(|entry| {
            let pid: i32 = entry.ok()?.file_name().to_str()?.parse().ok()?;
            let found = parent_of(pid).ok()?;
            (found == Some(parent))
                .then(|| Pid::from_raw(pid))
                .flatten()
        })
        .collect()
}

/// Field 4 of /proc/PID/stat; field 2 is a name that may hold anything. Source: proc_pid_stat(5).
fn parent_of(pid: i32) -> io::Result<Option<i32>> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat"))?;
    let fields = stat.rsplit(')').next().unwrap_or_default();
    let mut fields = fields.split_whitespace();
    Ok(fields.nth(1).and_then(|parent| parent.parse().ok()))
}
