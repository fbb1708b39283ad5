//! An agent of one's own for each test, with a limit of time for all that is done with it.

use std::fs;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use command_fds::{CommandFdExt, FdMapping};
use tempfile::TempDir;

use super::LIMIT;
use crate::agent::{Agent, ProcessEvent, ProcessStream, StartProcess, image};

/// The descriptor on which the agent finds its connection.
const SOCKET_FD: i32 = 3;

/// Between two looks at something that changes by itself.
const PAUSE: Duration = Duration::from_millis(5);

/// An agent, and a directory to work in.
pub(super) struct Guest {
    pub(super) agent: Agent,
    /// Who runs the tests, and so the agent.
    pub(super) user: String,
    /// The id of the agent's process.
    pub(super) pid: u32,
    dir: TempDir,
}

/// The agent's process. It ends when its connection does.
pub(super) struct AgentProcess {
    child: Child,
}

/// All that a process did.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Ran {
    pub(super) stdout: Vec<u8>,
    pub(super) stderr: Vec<u8>,
    pub(super) lost: u64,
    pub(super) exit_code: i32,
    pub(super) signal: Option<i32>,
    pub(super) status: String,
}

pub(super) fn root_runs_the_tests() -> bool {
    rustix::process::geteuid().is_root()
}

/// Runs a test with an agent of its own. Afterwards the agent must end by itself and in peace.
pub(super) fn guest(test: impl AsyncFnOnce(&Guest)) {
    let (status, said) = guest_to_its_end(test);
    assert!(status.success() && said.is_empty(), "{status}: {said}");
}

/// The same without that. How the agent ended, and what it complained of.
pub(super) fn guest_to_its_end(test: impl AsyncFnOnce(&Guest)) -> (ExitStatus, String) {
    // Dropped in the end: it is the connection's end that ends the agent.
    let (mut process, socket, dir) = start();
    let runtime = runtime();
    runtime.block_on(async {
        let done = tokio::time::timeout(LIMIT, async {
            let guest = Guest {
                agent: connect(socket).await,
                user: user(),
                pid: process.child.id(),
                dir,
            };
            test(&guest).await;
        });
        done.await.expect("the test takes too long");
    });
    drop(runtime);
    process.end()
}

/// The same with the bare connection, for what the client never sends. It has limits of time, too.
pub(super) fn raw_guest() -> (AgentProcess, UnixStream) {
    let (process, socket, _) = start();
    socket.set_read_timeout(Some(LIMIT)).unwrap();
    socket.set_write_timeout(Some(LIMIT)).unwrap();
    (process, socket)
}

/// Runs a test without an agent.
pub(super) fn within_limit(test: impl Future<Output = ()>) {
    within(LIMIT, test);
}

/// The same with another limit, for a clock that does not go by the time that passes.
pub(super) fn within(limit: Duration, test: impl Future<Output = ()>) {
    runtime().block_on(async {
        let done = tokio::time::timeout(limit, test).await;
        done.expect("the test takes too long");
    });
}

/// The client, on a bare connection.
pub(super) async fn connect(socket: UnixStream) -> Agent {
    socket.set_nonblocking(true).unwrap();
    let socket = tokio::net::UnixStream::from_std(socket).unwrap();
    Agent::connect(socket).await.unwrap()
}

fn runtime() -> tokio::runtime::Runtime {
    // On this thread: the agent ends with the thread that started it.
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap()
}

fn start() -> (AgentProcess, UnixStream, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let program = dir.path().join("floe-guest");
    fs::write(&program, image::IMAGE).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let (ours, theirs) = UnixStream::pair().unwrap();
    let started = Instant::now();
    let child = loop {
        let mut command = Command::new(&program);
        command
            .current_dir("/")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .fd_mappings(vec![FdMapping {
                parent_fd: theirs.try_clone().unwrap().into(),
                child_fd: SOCKET_FD,
            }])
            .unwrap();
        match command.spawn() {
            Ok(child) => break child,
            // Another test has forked while the program was written here, and its child has not
            // executed anything yet.
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                assert!(started.elapsed() < LIMIT, "the program stays busy");
                std::thread::sleep(PAUSE);
            }
            Err(error) => panic!("cannot start the agent: {error}"),
        }
    };
    (AgentProcess { child }, ours, dir)
}

/// The name of who runs the tests.
pub(super) fn user() -> String {
    let uid = rustix::process::geteuid().as_raw().to_string();
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    let mut lines = passwd
        .lines()
        .map(|line| line.split(':').collect::<Vec<_>>());
    let line = lines.find(|line| line.get(2) == Some(&uid.as_str()));
    line.expect("who runs the tests has a name")[0].to_owned()
}

impl AgentProcess {
    /// Waits until it has ended. How it did, and what it complained of.
    pub(super) fn end(&mut self) -> (ExitStatus, String) {
        let started = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().unwrap() {
                break status;
            }
            assert!(started.elapsed() < LIMIT, "the agent does not end");
            std::thread::sleep(PAUSE);
        };
        let mut said = String::new();
        let mut stderr = self.child.stderr.take().unwrap();
        stderr.read_to_string(&mut said).unwrap();
        (status, said)
    }
}

impl Drop for AgentProcess {
    fn drop(&mut self) {
        // After a failed test it gets the time to end what it has started.
        let started = Instant::now();
        while std::thread::panicking() && started.elapsed() < LIMIT / 3 {
            if let Ok(Some(_)) = self.child.try_wait() {
                return;
            }
            std::thread::sleep(PAUSE);
        }
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait()) {
            eprintln!("an agent stays: {error}");
        }
    }
}

impl Guest {
    /// Where the test may leave files.
    pub(super) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A path in there, for requests.
    pub(super) fn path(&self, name: &str) -> String {
        let path: PathBuf = self.dir().join(name);
        path.to_str().unwrap().to_owned()
    }

    /// Whom requests are made for.
    pub(super) fn user(&self) -> Option<&str> {
        Some(&self.user)
    }

    /// A program to start in there.
    pub(super) fn command(&self, cmd: &str, args: &[&str]) -> StartProcess {
        StartProcess {
            cmd: cmd.to_owned(),
            args: args.iter().map(|arg| (*arg).to_owned()).collect(),
            cwd: Some(self.path("")),
            user: Some(self.user.clone()),
            ..StartProcess::default()
        }
    }

    /// A shell script to start in there.
    pub(super) fn script(&self, script: &str) -> StartProcess {
        self.command("/bin/sh", &["-c", script])
    }

    pub(super) async fn start(&self, process: StartProcess) -> ProcessStream {
        self.agent.start(process).await.unwrap()
    }

    /// Starts a process and waits for its end.
    pub(super) async fn run(&self, process: StartProcess) -> Ran {
        all(&mut self.start(process).await).await
    }

    /// What a script writes to its standard output.
    pub(super) async fn output(&self, script: &str) -> String {
        let ran = self.run(self.script(script)).await;
        assert_eq!(ran.exit_code, 0, "{ran:?}");
        text(&ran.stdout)
    }
}

/// All that a process does until its end.
pub(super) async fn all(stream: &mut ProcessStream) -> Ran {
    let mut ran = Ran::default();
    while let Some(event) = stream.next().await {
        match event {
            ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes) => ran.stdout.extend(bytes),
            ProcessEvent::Stderr(bytes) => ran.stderr.extend(bytes),
            ProcessEvent::Lost { bytes } => ran.lost += bytes,
            ProcessEvent::End {
                exit_code,
                signal,
                status,
                ..
            } => {
                assert_eq!(stream.next().await, None);
                return Ran {
                    exit_code,
                    signal,
                    status,
                    ..ran
                };
            }
        }
    }
    panic!("no end, after {ran:?}: {:?}", stream.error());
}

/// Reads a process's output until it contains that text; all of it so far.
pub(super) async fn until(stream: &mut ProcessStream, wanted: &str) -> String {
    let mut found = String::new();
    while !found.contains(wanted) {
        match stream.next().await {
            Some(ProcessEvent::Stdout(bytes) | ProcessEvent::Pty(bytes)) => {
                found.push_str(&text(&bytes));
            }
            other => panic!("{other:?} after {found:?}, which has no {wanted:?}"),
        }
    }
    found
}

pub(super) fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Waits until something is so. The limit of the test applies.
pub(super) async fn poll_until(mut so: impl FnMut() -> bool) {
    while !so() {
        tokio::time::sleep(PAUSE).await;
    }
}

/// Whether a process is there; one that nobody has reaped is.
pub(super) fn is_there(pid: &str) -> bool {
    Path::new("/proc").join(pid.trim()).exists()
}
