//! The end of a machine.

use std::time::{Duration, Instant};

use floe_guest::vm::WORKSPACE_DIR;
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount_remount, unmount};
use rustix::process::{Pid, Signal, WaitOptions};
use rustix::system::RebootCommand;

/// How long processes that were killed have to be gone: one may be in the middle of a request to a file
/// system.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long those that were killed have to end, before they are looked for again.
const ROUND: Duration = Duration::from_millis(2);

/// Switches the machine off. Returns why that failed.
pub fn power_off() -> String {
    match rustix::system::reboot(RebootCommand::PowerOff) {
        Ok(()) => "the machine was switched off and runs on".to_owned(),
        Err(error) => format!("cannot switch the machine off: {error}"),
    }
}

/// Ends all processes, and sees that everything that was written is with the host.
pub fn leave() {
    end_all();
    rustix::fs::sync();
    // What cannot be unmounted any more was written all the same. Without the workspace, or before
    // anything was mounted, there is nothing.
    match unmount(WORKSPACE_DIR, UnmountFlags::empty()) {
        Ok(()) | Err(_) => {}
    }
    match mount_remount("/", MountFlags::RDONLY, c"") {
        Ok(()) | Err(_) => {}
    }
}

/// Kills until nobody is left: who loses its parent becomes a child of this process.
fn end_all() {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        match rustix::process::kill_process_group(Pid::INIT, Signal::KILL) {
            Ok(()) | Err(_) => {}
        }
        loop {
            match rustix::process::wait(WaitOptions::NOHANG) {
                Ok(Some(_)) | Err(Errno::INTR) => {}
                Ok(None) => break,
                // No children.
                Err(_) => return,
            }
        }
        std::thread::sleep(ROUND);
    }
}
