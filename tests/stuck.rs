//! A daemon that is killed while it waits for an answer of its own: when it mounts, and when it makes
//! the mounts of its predecessor again. The thread that waits cannot be killed, and keeps the store;
//! the guard has to end the connection.
//!
//! A debug build's daemon leaves a request unanswered where this asks it to (`fs/src/fault.rs`). That of
//! a release build does not know how, and is killed at whatever it does then.

use std::fs;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use floe_harness::TestStore;
use floe_harness::command::run;

/// How long the kernel and the guard may take.
const LIMIT: Duration = Duration::from_secs(30);

struct Stalls {
    store: TestStore,
    file: PathBuf,
}

impl Stalls {
    /// A workspace, and a daemon that can be asked to stall.
    fn new() -> Self {
        let store = TestStore::new();
        let file = store.base().join("panic");
        let stalls = Self { store, file };
        let start = stalls.command(&["daemon", "start"]);
        run(&mut { start }, LIMIT).expect_code(0);
        stalls.store.ok(["ws", "create", "w"]);
        stalls
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = self.store.command();
        command.args(arguments);
        command.env("FLOE_TEST_PANIC", &self.file);
        command
    }

    /// Has the next request of a kind go unanswered.
    fn ask(&self, operation: &str) {
        let draft = self.store.base().join("draft");
        fs::write(&draft, format!("{operation} stall")).unwrap();
        fs::rename(&draft, &self.file).unwrap();
    }

    /// Waits until such a request has come.
    fn wait(&self) {
        if !cfg!(debug_assertions) {
            return fs::remove_file(&self.file).unwrap();
        }
        let deadline = Instant::now() + LIMIT;
        while self.file.exists() {
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
    stalls.ask("getattr");
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
    stalls.ask("getattr");
    let mut start = stalls.spawn(&["daemon", "start"]);
    stalls.wait();
    stalls.kill();
    let started = start.wait().unwrap();
    assert!(!started.success() || !cfg!(debug_assertions), "{started}");
    assert!(fs::read_dir(live).is_err(), "a dead mount");
    stalls.goes_on();
}
