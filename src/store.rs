//! A store, its daemon and its mounts, as one value that a test owns.
//!
//! Lifecycle: [`TestStore::new`] makes a directory and `floe store init` in it; commands that need
//! the daemon start it. Dropping the value checks the store if its daemon runs (`floe check`), stops
//! the daemon (`floe daemon stop`), and where that does not end everything, ends what is left by
//! force, says so and fails the test: an unsound store, a frozen layer that is not what it was when
//! [`TestStore::snapshot`] returned, and a daemon or a mount that outlives `daemon stop`, is a bug.
//!
//! Environment: `FLOE_BIN` (binary to test), `FLOE_TEST_DIR` (parent of the test directories,
//! otherwise the system's temporary directory), `FLOE_TEST_KEEP=1` (leave the directory).

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::command::{self, Output};
use crate::frozen::FrozenLayers;
use crate::process::{self, Handle};
use crate::{binary, mounts, requirements};

/// Longest time one command may take, unless [`TestStore::set_limit`] says otherwise.
const LIMIT: Duration = Duration::from_secs(120);

/// Longest time the daemon may take to end.
const STOP_LIMIT: Duration = Duration::from_secs(30);

/// A store in a directory of its own. See the module head for its lifecycle.
#[derive(Debug)]
pub struct TestStore {
    /// `None` once [`Drop`] has taken it, and where it belongs to somebody else.
    dir: Option<TempDir>,
    base: PathBuf,
    mounted: AtomicU32,
    limit: Duration,
    frozen: Mutex<FrozenLayers>,
}

impl Default for TestStore {
    fn default() -> Self {
        Self::new()
    }
}

impl TestStore {
    /// Makes a store in a fresh directory.
    ///
    /// # Panics
    /// Without root or `/dev/fuse`, or when `floe store init` fails.
    #[must_use]
    #[track_caller]
    pub fn new() -> Self {
        let parent = std::env::var_os("FLOE_TEST_DIR").map_or_else(std::env::temp_dir, Into::into);
        Self::new_in(&parent)
    }

    /// Makes a store in a fresh directory below `parent`, for example on another host file system.
    ///
    /// # Panics
    /// As [`TestStore::new`].
    #[must_use]
    #[track_caller]
    pub fn new_in(parent: &Path) -> Self {
        let store = Self::without_init(parent);
        store.ok(["store", "init"]);
        store
    }

    /// Makes a store with a workspace `w` that `fill` fills, and a mounted fork `f` of a snapshot of
    /// it: whatever is changed there comes from a frozen layer.
    ///
    /// # Panics
    /// As [`TestStore::new`].
    #[must_use]
    #[track_caller]
    pub fn fork_of(fill: impl FnOnce(&Path)) -> (Self, PathBuf) {
        let store = Self::new();
        store.ok(["ws", "create", "w"]);
        let origin = store.mount("w");
        fill(&origin);
        store.umount(&origin);
        store.ok(["fork", "w", "f"]);
        let live = store.mount("f");
        (store, live)
    }

    /// Makes the directory only; the caller makes the store.
    ///
    /// # Panics
    /// Without root or `/dev/fuse`.
    #[must_use]
    #[track_caller]
    pub fn without_init(parent: &Path) -> Self {
        requirements::require_root_and_fuse();
        let dir = tempfile::Builder::new()
            .prefix("floe-test-")
            .tempdir_in(parent)
            .unwrap_or_else(|error| panic!("a directory in {}: {error}", parent.display()));
        // The mount table holds paths without symbolic links.
        let base = dir
            .path()
            .canonicalize()
            .expect("the test directory resolves");
        for name in ["home", "mnt", "run"] {
            fs::create_dir(base.join(name)).expect("a directory of the test");
        }
        Self {
            dir: Some(dir),
            base,
            mounted: AtomicU32::new(0),
            limit: LIMIT,
            frozen: Mutex::default(),
        }
    }

    /// Takes over the directory of another value, or a copy of it, as [`TestStore::base`] named it.
    /// It is not removed at the end.
    ///
    /// # Panics
    /// As [`TestStore::new`].
    #[must_use]
    #[track_caller]
    pub fn adopt(base: &Path) -> Self {
        requirements::require_root_and_fuse();
        Self {
            dir: None,
            base: base.canonicalize().expect("the test directory resolves"),
            // The first owner has made mount points of low numbers.
            mounted: AtomicU32::new(10_000),
            limit: LIMIT,
            frozen: Mutex::default(),
        }
    }

    /// Changes the time limit of every later command.
    pub fn set_limit(&mut self, limit: Duration) {
        self.limit = limit;
    }

    /// The test's own directory: it holds the store, the mount points and anything a test adds.
    #[must_use]
    pub fn base(&self) -> &Path {
        &self.base
    }

    /// The store's directory.
    #[must_use]
    pub fn store_dir(&self) -> PathBuf {
        self.base.join("store")
    }

    /// A `floe --store DIR` command with a clean environment, to be completed and run.
    #[must_use]
    pub fn command(&self) -> Command {
        let mut command = Command::new(binary::floe());
        command.env_clear();
        for kept in [
            "PATH",
            "RUST_BACKTRACE",
            "RUST_LOG",
            "FLOE_LOG",
            "LLVM_PROFILE_FILE",
        ] {
            if let Some(value) = std::env::var_os(kept) {
                command.env(kept, value);
            }
        }
        command
            .env("HOME", self.base.join("home"))
            .env("XDG_RUNTIME_DIR", self.base.join("run"))
            .env("LC_ALL", "C.UTF-8")
            .env("TZ", "UTC")
            .env("COLUMNS", "100")
            .env("NO_COLOR", "1")
            .current_dir(&self.base)
            .arg("--store")
            .arg(self.store_dir());
        command
    }

    /// Runs `floe --store DIR ARGS...` and returns what happened, success or not.
    #[must_use]
    #[track_caller]
    pub fn run<I>(&self, args: I) -> Output
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        command::run(self.command().args(args), self.limit)
    }

    /// Runs a command that must succeed and returns its standard output as text.
    ///
    /// # Panics
    /// When it exits with anything but 0, with everything it printed.
    #[track_caller]
    pub fn ok<I>(&self, args: I) -> String
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        self.run(args).expect_code(0).text()
    }

    /// Runs a command that must succeed with `--json` added and returns what it printed.
    ///
    /// # Panics
    /// When it fails or prints anything but one JSON value.
    #[must_use]
    #[track_caller]
    pub fn json<I>(&self, args: I) -> serde_json::Value
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let mut command = self.command();
        command.args(args).arg("--json");
        command::run(&mut command, self.limit).expect_code(0).json()
    }

    /// Runs a command that must fail with exit code `code`.
    ///
    /// # Panics
    /// When it succeeds, fails differently, or says nothing on standard error.
    #[track_caller]
    pub fn fails<I>(&self, code: i32, args: I) -> Output
    where
        I: IntoIterator,
        I::Item: AsRef<OsStr>,
    {
        let output = self.run(args).expect_code(code);
        assert!(
            !output.stderr.is_empty(),
            "a failure must say why\n{output}"
        );
        output
    }

    /// Mounts a workspace or snapshot at a fresh directory of the test and returns it.
    ///
    /// # Panics
    /// When the command fails or nothing is mounted afterwards.
    #[must_use]
    #[track_caller]
    pub fn mount(&self, target: &str) -> PathBuf {
        let number = self.mounted.fetch_add(1, Ordering::Relaxed);
        let name = format!("{number}-{}", target.replace('/', "_"));
        let dir = self.base.join("mnt").join(name);
        fs::create_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        self.ok([
            OsString::from("mount"),
            OsString::from(target),
            dir.clone().into(),
        ]);
        assert!(
            mounts::is_mounted(&dir),
            "nothing is mounted at {}",
            dir.display()
        );
        dir
    }

    /// Unmounts one directory. Where it is busy, this tries for five seconds more: a program that
    /// another thread of the test starts holds copies of all descriptors from fork to exec.
    ///
    /// # Panics
    /// When the command fails or the mount is still there.
    #[track_caller]
    pub fn umount(&self, dir: &Path) {
        let umount = || self.run([OsStr::new("umount"), dir.as_os_str()]);
        let deadline = Instant::now() + Duration::from_secs(5);
        let mut output = umount();
        while output.code == Some(4) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(10));
            output = umount();
        }
        output.expect_code(0);
        assert!(
            !mounts::is_mounted(dir),
            "{} is still mounted",
            dir.display()
        );
    }

    /// Takes a snapshot and returns its id.
    ///
    /// # Panics
    /// When the command fails or prints no id.
    #[track_caller]
    pub fn snapshot(&self, workspace: &str) -> String {
        let id = self.ok(["snapshot", workspace]);
        assert!(
            id.len() == 16 && id.bytes().all(|byte| byte.is_ascii_hexdigit()),
            "not a snapshot id: {id:?}"
        );
        self.remember_frozen();
        id
    }

    /// Notes what every layer that is frozen now holds: it must hold the same at the end.
    /// [`TestStore::snapshot`] does that.
    ///
    /// # Panics
    /// When the catalog or an object cannot be read.
    pub fn remember_frozen(&self) {
        let mut frozen = self.frozen.lock().expect("no other test has failed");
        frozen.remember_new(&self.store_dir());
    }

    /// The daemon of this store; `None` when none runs.
    ///
    /// # Panics
    /// When `daemon status` succeeds without a pid.
    #[must_use]
    #[track_caller]
    pub fn daemon(&self) -> Option<Handle> {
        let output = self.run(["daemon", "status", "--json"]);
        if output.code != Some(0) {
            return None;
        }
        let status = output.json();
        let pid = status["pid"]
            .as_u64()
            .and_then(|pid| u32::try_from(pid).ok());
        Handle::open(pid.unwrap_or_else(|| panic!("no pid in {status}")))
    }

    /// Ends the daemon with SIGKILL, as a crash would, and waits for its end. Its mounts stay
    /// behind and answer ENOTCONN until the next command.
    ///
    /// # Panics
    /// When no daemon runs.
    #[track_caller]
    pub fn kill_daemon(&self) {
        let daemon = self.daemon().expect("a running daemon");
        daemon.kill();
        assert!(
            daemon.wait_for_end(STOP_LIMIT),
            "the daemon survived SIGKILL"
        );
    }

    /// Ends the daemon in order.
    ///
    /// # Panics
    /// When the command fails, or the daemon or a mount of the store is still there.
    #[track_caller]
    pub fn stop_daemon(&self) {
        let daemon = self.daemon();
        self.ok(["daemon", "stop"]);
        if let Some(daemon) = daemon {
            assert!(
                daemon.wait_for_end(STOP_LIMIT),
                "the daemon outlived `daemon stop`"
            );
        }
        let left = self.floe_mounts();
        assert!(left.is_empty(), "mounts outlived `daemon stop`: {left:?}");
    }

    /// Checks the store's soundness, and that frozen layers are what they were; starts the daemon if
    /// none runs.
    ///
    /// # Panics
    /// When `floe check` finds a problem, with all it found, or when a frozen layer has changed.
    #[track_caller]
    pub fn check(&self) {
        self.ok(["check"]);
        let changed = self.changed_layers();
        assert!(
            changed.is_empty(),
            "frozen layers have changed: {changed:?}"
        );
    }

    fn changed_layers(&self) -> Vec<i64> {
        let frozen = self.frozen.lock().expect("no other test has failed");
        frozen.changed(&self.store_dir())
    }

    /// How many files with contents the store has.
    ///
    /// # Panics
    /// When its directories cannot be read.
    #[must_use]
    pub fn object_files(&self) -> usize {
        let objects = self.store_dir().join("objects");
        let dirs = fs::read_dir(objects).expect("the objects of the store");
        dirs.map(|dir| {
            let dir = dir.expect("the objects of the store").path();
            fs::read_dir(dir).map_or(1, Iterator::count)
        })
        .sum()
    }

    /// The FUSE mounts below the test's directory.
    #[must_use]
    pub fn floe_mounts(&self) -> Vec<mounts::MountPoint> {
        let mut found = mounts::below(&self.base);
        found.retain(|mount| mount.fs_type.starts_with("fuse"));
        found
    }

    /// Ends and detaches whatever `daemon stop` left, and says what that was.
    fn end_by_force(&self) -> Vec<String> {
        let mut left = Vec::new();
        for process in process::of_store(binary::floe(), &self.store_dir()) {
            left.push(format!("process {}", process.pid()));
            process.terminate();
            if !process.wait_for_end(Duration::from_secs(5)) {
                process.kill();
                left.push(format!("process {} (needed SIGKILL)", process.pid()));
            }
        }
        let detached = mounts::detach_below(&self.base);
        left.extend(
            detached
                .iter()
                .map(|mount| format!("mount {}", mount.dir.display())),
        );
        left
    }
}

impl Drop for TestStore {
    fn drop(&mut self) {
        // Of a store whose test failed, or damaged it, nothing is claimed.
        let check =
            (!std::thread::panicking() && self.daemon().is_some()).then(|| self.run(["check"]));
        let sound = check.as_ref().is_some_and(|check| check.code == Some(0));
        let changed = if sound {
            self.changed_layers()
        } else {
            Vec::new()
        };
        let check = check.filter(|check| check.code != Some(0));
        let stop = command::run(self.command().args(["daemon", "stop"]), STOP_LIMIT);
        let left = self.end_by_force();
        let keep = std::env::var_os("FLOE_TEST_KEEP").is_some_and(|value| value == "1");
        if let Some(dir) = self.dir.take() {
            // Never delete through a mount that could not be removed.
            if keep || !mounts::below(&self.base).is_empty() {
                eprintln!("left for inspection: {}", dir.keep().display());
            } else if let Err(error) = dir.close() {
                eprintln!("cannot remove {}: {error}", self.base.display());
            }
        }
        if !left.is_empty() {
            let message = format!("`daemon stop` left {}\n{stop}", left.join(", "));
            // A second panic while the test's own unwinds would hide the first.
            assert!(std::thread::panicking(), "{message}");
            eprintln!("{message}");
        }
        assert!(
            changed.is_empty() || std::thread::panicking(),
            "frozen layers have changed: {changed:?}"
        );
        if let Some(check) = check {
            assert!(std::thread::panicking(), "the store is not sound\n{check}");
        }
    }
}
