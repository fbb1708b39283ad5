//! A daemon in a process of its own, for what a client sees.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use super::error::{BenchError, Step};
use super::room::complain;
use crate::client::Client;
use crate::store_dir::StoreDir;

const START_WAIT: Duration = Duration::from_secs(10);
const END_WAIT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(5);

/// The daemon. Dropping it ends the process, which unmounts everything.
pub(super) struct Server {
    child: Child,
    program: PathBuf,
    store: StoreDir,
}

impl Server {
    /// Starts a daemon for a store that nobody has open.
    pub(super) fn start(program: &Path, store: &Path) -> Result<Self, BenchError> {
        use std::os::unix::process::CommandExt;
        let dir = StoreDir::locate(Some(store)).step("find the store")?;
        // A process group of its own: an interrupt at the terminal is for the bench, which then
        // ends the daemon.
        let child = Command::new(program)
            .arg("--store")
            .arg(store)
            .args(["daemon", "run"])
            .env("FLOE_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .process_group(0)
            .spawn()
            .step(format!("start {}", program.display()))?;
        let mut server = Self {
            child,
            program: program.to_owned(),
            store: dir,
        };
        let give_up = Instant::now() + START_WAIT;
        while server.client()?.is_none() {
            let ended = server.child.try_wait().step("watch the daemon")?;
            if ended.is_some() || Instant::now() > give_up {
                return Err(BenchError::Wrong {
                    what: "the daemon does not serve".into(),
                });
            }
            std::thread::sleep(PAUSE);
        }
        Ok(server)
    }

    fn client(&self) -> Result<Option<Client>, BenchError> {
        Client::connect(&self.store).step("connect to the daemon")
    }

    /// A connection to it.
    pub(super) fn connect(&self) -> Result<Client, BenchError> {
        self.client()?.ok_or_else(|| BenchError::Wrong {
            what: "the daemon has ended".into(),
        })
    }

    /// A `floe` command on its store.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.arg("--store").arg(self.store.path());
        command.args(arguments);
        command
    }

    fn end(&mut self) -> std::io::Result<()> {
        if self.child.try_wait()?.is_some() {
            return Ok(());
        }
        let pid = Pid::from_child(&self.child);
        kill_process(pid, Signal::TERM)?;
        let give_up = Instant::now() + END_WAIT;
        while Instant::now() < give_up {
            if self.child.try_wait()?.is_some() {
                return Ok(());
            }
            std::thread::sleep(PAUSE);
        }
        self.child.kill()?;
        self.child.wait()?;
        Err(std::io::Error::other("it had to be killed"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Err(error) = self.end() {
            complain(&format!("the daemon did not end: {error}"));
        }
    }
}
