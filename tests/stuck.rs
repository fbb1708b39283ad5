//! A daemon that is killed while it waits for an answer of its own: when it mounts, and when it makes
//! the mounts of its predecessor again. The thread that waits cannot be killed, and keeps the store;
//! the guard has to end the connection.
//!
//! A debug build's daemon leaves a request unanswered where this asks it to (`fs/src/fault.rs`). That of
//! a release build does not know how, and is killed at whatever it does then.

use std::fs;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use floe_harness::command::run;
use floe_harness::{Faults, TestStore};

/// How long the kernel and the guard may take.
const LIMIT: Duration = Duration::from_secs(30);

struct Stalls {
    store: TestStore,
    faults: Faults,
}

impl Stalls {
    /// A workspace, and a daemon that can be asked to stall.
    fn new() -> Self {
        let store = TestStore::new();
        let faults = Faults::new(store.base());
        let stalls = Self { store, faults };
        run(&mut stalls.command(&["daemon", "start"]), LIMIT).expect_code(0);
        stalls.store.ok(["ws", "create", "w"]);
        stalls
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.store.command();
        command.args(arguments);
        self.faults.allow(&mut command);
        command
    }

    /// Waits until a request has come that is not to be answered.
    fn wait(&self) {
        if !cfg!(debug_assertions) {
            return self.faults.take_back();
        }
        let deadline = Instant::now() + LIMIT;
        while self.faults.is_asked() {
            assert!(Instant::now() < deadline, "no such request came");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn spawn(&self, arguments: &[&str]) -> Child {
        let mut command = self.command(arguments);
        command.stdin(Stdio::null());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        command.spawn().unwrap()
    }

    /// Ends the process that has the store; nothing of it may stay.
    #[track_caller]
    fn kill(&self) {
        let text = fs::read_to_string(self.store.store_dir().join("lock")).unwrap();
        let pid = text.trim().parse().unwrap();
        let daemon = floe_harness::process::Handle::open(pid).expect("a running daemon");
        daemon.kill();
        assert!(daemon.wait_for_end(LIMIT), "the daemon survived SIGKILL");
    }

    /// Everything works again, without anybody doing anything about it.
    #[track_caller]
    fn goes_on(&self) {
        let live = self.store.mount("w");
        fs::write(live.join("after"), "after").unwrap();
        self.store.snapshot("w");
        self.store.check();
    }
}

#[test]
fn a_daemon_that_is_killed_while_it_mounts_ends() {
    let stalls = Stalls::new();
    stalls.faults.ask("getattr", "stall");
    let mut mount = stalls.spawn(&["mount", "w"]);
    stalls.wait();
    stalls.kill();
    // It asks a new daemon, or says that its own has gone.
    mount.wait().unwrap();
    stalls.goes_on();
}

#[test]
fn a_daemon_that_is_killed_while_it_mounts_again_what_was_mounted_ends() {
    let stalls = Stalls::new();
    let live = stalls.store.mount("w");
    stalls.store.kill_daemon();
    stalls.faults.ask("getattr", "stall");
    let mut start = stalls.spawn(&["daemon", "start"]);
    stalls.wait();
    stalls.kill();
    let started = start.wait().unwrap();
    assert!(!started.success() || !cfg!(debug_assertions), "{started}");
    assert!(fs::read_dir(live).is_err(), "a dead mount");
    stalls.goes_on();
}
