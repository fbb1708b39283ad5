//! Notices that a test hangs, says where every thread waits, and ends the wait.
//!
//! A dead-lock between a daemon and the kernel cannot be left by the threads in it. After the limit
//! the watchdog prints the kernel stacks of the daemon and of the test's own process, then kills
//! the daemon: whoever waits for it gets ENOTCONN, and the test fails instead of hanging.

use std::fmt::Write as _;
use std::fs;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::process::Handle;

/// Watches one daemon until it is dropped.
#[derive(Debug)]
pub struct Watchdog {
    done: Option<Sender<()>>,
    thread: Option<JoinHandle<bool>>,
}

impl Watchdog {
    /// Starts watching; `limit` is a time that the test never needs.
    #[must_use]
    pub fn start(daemon: Handle, limit: Duration) -> Self {
        let (done, waiting) = channel();
        let thread = std::thread::spawn(move || {
            if waiting.recv_timeout(limit) != Err(RecvTimeoutError::Timeout) {
                return false;
            }
            eprintln!("nothing moved for {limit:?}; the daemon's threads:");
            eprintln!("{}", stacks(daemon.pid()));
            eprintln!("the test's threads:\n{}", stacks(std::process::id()));
            eprintln!("all that wait without a way out:\n{}", blocked());
            daemon.kill();
            true
        });
        Self {
            done: Some(done),
            thread: Some(thread),
        }
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        drop(self.done.take());
        let bit = self.thread.take().is_some_and(|thread| {
            // A watchdog that panicked has printed why.
            thread.join().unwrap_or(true)
        });
        assert!(
            !bit || std::thread::panicking(),
            "the watchdog ended a hang; see above"
        );
    }
}

/// Where each thread of a process is in the kernel, as far as it may be read.
#[must_use]
pub fn stacks(pid: u32) -> String {
    let mut text = String::new();
    let Ok(tasks) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return format!("process {pid} is gone");
    };
    for task in tasks.flatten() {
        let read = |name: &str| {
            let contents = fs::read_to_string(task.path().join(name)).unwrap_or_default();
            contents.trim_end().to_owned()
        };
        let state = read("status")
            .lines()
            .find(|line| line.starts_with("State:"))
            .map(str::to_owned)
            .unwrap_or_default();
        writeln!(
            text,
            "{} {} {state} in {}\n{}",
            task.file_name().to_string_lossy(),
            read("comm"),
            read("wchan"),
            read("stack")
        )
        .expect("writing to a string");
    }
    text
}

/// The threads of the whole machine in state D, kernel threads included: a dead-lock through the
/// kernel's writeback shows there and nowhere else.
#[must_use]
pub fn blocked() -> String {
    let Ok(processes) = fs::read_dir("/proc") else {
        return String::new();
    };
    let numbers = processes.flatten().filter_map(|entry| {
        let name = entry.file_name();
        name.to_str().and_then(|name| name.parse::<u32>().ok())
    });
    let all = numbers.map(stacks).collect::<String>();
    // One block of lines a thread; the first line of each has its state.
    let mut text = String::new();
    let mut shown = false;
    for line in all.lines() {
        if line.contains(" State:\t") {
            shown = line.contains("State:\tD");
        }
        if shown {
            text.push_str(line);
            text.push('\n');
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_process_past_the_limit_is_ended_and_the_test_fails() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let handle = || Handle::of_child(&child);
        drop(Watchdog::start(handle(), Duration::from_secs(60)));
        assert!(!handle().wait_for_end(Duration::ZERO));

        let watchdog = Watchdog::start(handle(), Duration::from_millis(1));
        assert!(handle().wait_for_end(Duration::from_secs(10)));
        let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(watchdog)));
        assert!(outcome.is_err());
        child.wait().unwrap();
    }

    #[test]
    fn stacks_name_every_thread() {
        assert!(stacks(std::process::id()).contains("State:"));
        assert!(stacks(u32::MAX).contains("is gone"));
    }
}
