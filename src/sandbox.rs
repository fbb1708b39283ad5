//! A store whose daemon serves the HTTP interface, and that leaves nothing behind.
//!
//! [`Server::start`] makes a store and runs `floe serve` for it in the foreground on a port that the
//! kernel chooses. Dropping the value kills its sandboxes, and fails the test if anything of them is
//! left, if the store is not sound, or if the server does not end in order.
//!
//! Daemons of other tests may run at the same time: all that is looked at is of this store alone.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Mutex;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::api::{Answer, Api};
use crate::command::{self, Output};
use crate::leftovers::Traces;
use crate::process::Handle;
use crate::{TestStore, Watchdog};

/// Longest time until the server says its address, or ends when it is asked to.
const LIMIT: Duration = Duration::from_secs(60);

/// Longest time for what a killed sandbox has to be gone.
const GONE_LIMIT: Duration = Duration::from_secs(20);

/// How long a command inside may take, unless a test says otherwise.
const EXEC_LIMIT: Duration = Duration::from_secs(60);

/// A store and the `floe serve` of it. See the module head for its lifecycle.
#[derive(Debug)]
pub struct Server {
    running: Option<Child>,
    api: Api,
    key: String,
    domain: String,
    store_id: String,
    ids: Mutex<BTreeSet<String>>,
    before: BTreeSet<String>,
    options: Vec<String>,
    // Last: it goes when nothing uses it any more.
    store: TestStore,
}

impl Default for Server {
    fn default() -> Self {
        Self::start()
    }
}

impl Server {
    /// Makes a store and serves it.
    ///
    /// # Panics
    /// Without root or `/dev/fuse`, or when the server does not say its address.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        Self::start_with(TestStore::new(), &[])
    }

    /// Serves a store, with further arguments to `floe serve`.
    ///
    /// # Panics
    /// As [`Server::start`].
    #[must_use]
    #[track_caller]
    pub fn start_with(store: TestStore, options: &[&str]) -> Self {
        let store_id = store.json(["store", "info"])["id"]
            .as_str()
            .map(str::to_owned);
        let mut server = Self {
            running: None,
            api: Api::new("", None),
            key: String::new(),
            domain: String::new(),
            store_id: store_id.expect("`store info` tells the store's id"),
            ids: Mutex::default(),
            before: BTreeSet::new(),
            options: options.iter().map(|&option| option.to_owned()).collect(),
            store,
        };
        server.serve();
        server.before = server.traces().found();
        server
    }

    /// Starts `floe serve`, which must not run, and learns where it listens.
    ///
    /// # Panics
    /// When it does not say so.
    #[track_caller]
    pub fn serve(&mut self) {
        assert!(self.running.is_none(), "the server runs");
        let mut command = self.store.command();
        command
            .args(["serve", "--addr", "127.0.0.1:0", "--json"])
            .args(&self.options);
        let mut log = File::options();
        let log = log.create(true).append(true).open(self.log_path());
        let mut child = command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(log.expect("the server's log"))
            .spawn()
            .unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let lines = lines_of(child.stdout.take().expect("its standard output"));
        let Ok(line) = lines.recv_timeout(LIMIT) else {
            end_now(child);
            panic!("`floe serve` said no address\n{}", self.log());
        };
        self.running = Some(child);
        let told: Value = serde_json::from_str(&line)
            .unwrap_or_else(|error| panic!("not JSON ({error}): {line}"));
        let text = |key: &str| told[key].as_str().unwrap_or_default().to_owned();
        self.domain = text("domain");
        self.key = self.store.ok(["serve", "key"]);
        assert!(
            !self.key.is_empty() && !self.key.contains('\n'),
            "{}",
            self.key
        );
        self.api = Api::new(&text("url"), Some(&self.key));
    }

    /// A client with the server's key.
    #[must_use]
    pub fn api(&self) -> &Api {
        &self.api
    }

    /// The key.
    #[must_use]
    pub fn key(&self) -> &str {
        &self.key
    }

    /// Where it listens, such as `http://127.0.0.1:4711`.
    #[must_use]
    pub fn url(&self) -> &str {
        self.api.url()
    }

    /// Below which name ports of sandboxes are.
    #[must_use]
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &TestStore {
        &self.store
    }

    /// The server's process.
    ///
    /// # Panics
    /// When it does not run.
    #[must_use]
    #[track_caller]
    pub fn process(&self) -> Handle {
        Handle::of_child(self.running.as_ref().expect("a running server"))
    }

    /// Ends the server and says where everything waits if the test takes longer than `limit`.
    ///
    /// # Panics
    /// When the server does not run.
    #[must_use]
    #[track_caller]
    pub fn watch(&self, limit: Duration) -> Watchdog {
        Watchdog::start(self.process(), limit)
    }

    /// What the server has logged.
    #[must_use]
    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.store.base().join("serve.log")
    }

    /// The environment in which the published packages use this server.
    #[must_use]
    pub fn environment(&self) -> Vec<(&'static str, String)> {
        vec![
            ("E2B_API_KEY", self.key.clone()),
            ("E2B_API_URL", self.url().to_owned()),
            ("E2B_SANDBOX_URL", self.url().to_owned()),
            ("E2B_DOMAIN", self.domain.clone()),
            ("UCLOUD_SANDBOX_API_KEY", self.key.clone()),
            ("UCLOUD_SANDBOX_API_URL", self.url().to_owned()),
            ("UCLOUD_SANDBOX_URL", self.url().to_owned()),
            ("UCLOUD_SANDBOX_DOMAIN", self.domain.clone()),
            ("UCLOUD_SANDBOX_INSECURE_HTTP", "true".to_owned()),
        ]
    }

    /// Notes the id of a sandbox that something else has made, so that its traces are known.
    ///
    /// # Panics
    /// When another thread of the test has failed.
    pub fn note(&self, id: &str) {
        let mut ids = self.ids.lock().expect("no other thread has failed");
        ids.insert(id.to_owned());
    }

    /// Creates a sandbox by the HTTP interface and returns its id. `request` may be `{}`.
    ///
    /// # Panics
    /// When it is not made.
    #[must_use]
    #[track_caller]
    pub fn create(&self, request: &Value) -> String {
        let mut request = request.clone();
        for (key, default) in [("templateID", json!("base")), ("timeout", json!(3600))] {
            if request.get(key).is_none() {
                request[key] = default;
            }
        }
        let id = self.api.post("/sandboxes", &request).expect(201);
        let id = id.text("sandboxID");
        self.note(&id);
        id
    }

    /// Kills a sandbox that is there.
    ///
    /// # Panics
    /// When it is not.
    #[track_caller]
    pub fn kill_sandbox(&self, id: &str) -> Answer {
        self.api.delete(&format!("/sandboxes/{id}")).expect(204)
    }

    /// Takes a snapshot of a sandbox and returns its id.
    ///
    /// # Panics
    /// When it is not taken.
    #[must_use]
    #[track_caller]
    pub fn snapshot(&self, id: &str) -> String {
        let path = format!("/sandboxes/{id}/snapshots");
        let answer = self.api.post(&path, &json!({})).expect(201);
        answer.text("snapshotID")
    }

    /// A command inside a sandbox, as root: what it printed and its exit code.
    #[must_use]
    #[track_caller]
    pub fn exec(&self, id: &str, line: &str) -> Output {
        self.exec_as("root", id, line, EXEC_LIMIT)
    }

    /// A command inside a sandbox, as some user and within a time.
    #[must_use]
    #[track_caller]
    pub fn exec_as(&self, user: &str, id: &str, line: &str, limit: Duration) -> Output {
        let mut command = self.store.command();
        command.args(["sandbox", "exec", "--user", user, id, "--"]);
        command::run(command.args(["/bin/bash", "-c", line]), limit)
    }

    /// All that a list of the HTTP interface has, over all its pages.
    ///
    /// # Panics
    /// When a page is not there.
    #[must_use]
    #[track_caller]
    pub fn pages(&self, path: &str) -> Vec<Value> {
        let mut items = Vec::new();
        let mut token = None::<String>;
        let mark = if path.contains('?') { '&' } else { '?' };
        loop {
            let answer = match &token {
                Some(token) => self.api.get(&format!("{path}{mark}nextToken={token}")),
                None => self.api.get(path),
            };
            let answer = answer.expect(200);
            match answer.json() {
                Value::Array(page) => items.extend(page),
                other => panic!("no list: {other}"),
            }
            token = match answer.header("x-next-token") {
                Some(next) if !next.is_empty() => Some(next.to_owned()),
                _ => return items,
            };
        }
    }

    /// The ids of all sandboxes there are, in whatever state.
    ///
    /// # Panics
    /// When they cannot be listed.
    #[must_use]
    #[track_caller]
    pub fn sandboxes(&self) -> Vec<String> {
        let all = self.store.json(["sandbox", "list"]);
        let all = all.as_array().expect("a list").iter();
        all.map(|sandbox| sandbox["id"].as_str().expect("an id").to_owned())
            .collect()
    }

    /// Kills every sandbox there is.
    ///
    /// # Panics
    /// When one cannot be killed.
    #[track_caller]
    pub fn kill_all(&self) {
        for id in self.sandboxes() {
            self.note(&id);
            let answer = self.api.delete(&format!("/sandboxes/{id}"));
            // One whose time was over just now is gone.
            assert!(matches!(answer.status, 204 | 404), "{answer}");
        }
    }

    /// Where to look for what this store's sandboxes have of the host.
    ///
    /// # Panics
    /// When another thread of the test has failed.
    #[must_use]
    pub fn traces(&self) -> Traces {
        Traces {
            ids: self.ids.lock().expect("no other thread has failed").clone(),
            ..self.traces_whatever_failed()
        }
    }

    fn traces_whatever_failed(&self) -> Traces {
        Traces {
            store_id: self.store_id.clone(),
            store: self.store.store_dir(),
            daemon: self.running.as_ref().map(Child::id),
            ids: BTreeSet::new(),
        }
    }

    /// Asserts that nothing is there but what was before the first sandbox.
    ///
    /// # Panics
    /// When something is left.
    #[track_caller]
    pub fn assert_nothing_left(&self) {
        let left = self.traces().left(&self.before, GONE_LIMIT);
        assert!(left.is_empty(), "left behind: {left:#?}");
    }

    /// Ends the server with SIGKILL, as a crash would.
    ///
    /// # Panics
    /// When it does not run.
    #[track_caller]
    pub fn crash(&mut self) {
        end_now(self.running.take().expect("a running server"));
    }

    /// Ends the server in order. Its sandboxes are stopped, not gone.
    ///
    /// # Panics
    /// When it does not run, does not end, or ends with a failure.
    #[track_caller]
    pub fn stop(&mut self) {
        let mut running = self.running.take().expect("a running server");
        let handle = Handle::of_child(&running);
        handle.terminate();
        let ended = handle.wait_for_end(LIMIT);
        if !ended {
            handle.kill();
        }
        let status = running.wait().expect("its exit status");
        assert!(ended, "the server did not end in {LIMIT:?}\n{}", self.log());
        assert!(
            status.success(),
            "the server ended with {status}\n{}",
            self.log()
        );
    }

    /// What a program of one of the packages printed. It must succeed.
    ///
    /// # Panics
    /// When it fails, with everything it printed and the end of the server's log.
    #[track_caller]
    pub fn client(&self, command: &mut Command, limit: Duration) -> Output {
        for (name, value) in self.environment() {
            command.env(name, value);
        }
        let output = command::run(command, limit);
        for line in output.text().lines() {
            let told: Option<Value> = serde_json::from_str(line).ok();
            if let Some(id) = told.as_ref().and_then(|told| told["sandbox"].as_str()) {
                self.note(id);
            }
        }
        let log = self.log();
        let tail = log.lines().rev().take(60).collect::<Vec<_>>();
        let tail: Vec<_> = tail.into_iter().rev().collect();
        assert!(
            output.code == Some(0),
            "{output}\n--- the server's log\n{}",
            tail.join("\n")
        );
        output
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("--- the server's log\n{}", self.log());
            if let Some(child) = self.running.take() {
                terminate(child, &self.traces_whatever_failed());
            }
            return;
        }
        if self.running.is_none() {
            return;
        }
        self.kill_all();
        self.assert_nothing_left();
        self.store.check();
        self.stop();
        let left = self.traces().left(&self.before, GONE_LIMIT);
        assert!(left.is_empty(), "the server left behind: {left:#?}");
    }
}

/// Waits until something is so; `what` says it in a failure.
///
/// # Panics
/// When it is not in a minute.
#[track_caller]
pub fn eventually(what: &str, mut check: impl FnMut() -> bool) {
    let deadline = Instant::now() + LIMIT;
    while !check() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The lines of a stream as they come, read to its end whether somebody wants them or not.
fn lines_of(output: ChildStdout) -> Receiver<String> {
    let (sender, lines) = channel();
    std::thread::spawn(move || {
        let mut wanted = true;
        for line in BufReader::new(output).lines().map_while(Result::ok) {
            wanted = wanted && sender.send(line).is_ok();
        }
    });
    lines
}

fn end_now(mut child: Child) {
    Handle::of_child(&child).kill();
    child.wait().expect("its exit status");
}

/// For a test that has failed: what its store then does by force, it does to a daemon that is gone.
fn terminate(mut child: Child, traces: &Traces) {
    let handle = Handle::of_child(&child);
    handle.terminate();
    if !handle.wait_for_end(LIMIT) {
        handle.kill();
    }
    if let Err(error) = child.wait() {
        eprintln!("cannot wait for the server: {error}");
    }
    for process in traces.processes().into_iter().filter_map(Handle::open) {
        eprintln!("process {} of a sandbox outlived the server", process.pid());
        process.kill();
    }
}
