//! The thread that starts the processes of sandboxes.
//!
//! bubblewrap ends with its parent (`--die-with-parent`), and to the kernel the parent is the
//! *thread* that started it. So that is one that lives as long as the daemon.

use std::io;
use std::process::{Child, Command};
use std::sync::mpsc::{Sender, channel};

type Job = (Command, Sender<io::Result<Child>>);

/// See the module.
pub(in crate::daemon::sandboxes) struct Spawner {
    jobs: Sender<Job>,
}

impl Spawner {
    /// Starts the thread.
    ///
    /// # Errors
    /// When there can be no thread.
    pub(in crate::daemon::sandboxes) fn start() -> io::Result<Self> {
        let (jobs, received) = channel::<Job>();
        std::thread::Builder::new()
            .name("spawn".into())
            .spawn(move || {
                for (mut command, answer) in received {
                    let child = command.spawn();
                    // What it holds open in the parent is closed before anybody waits for the child.
                    drop(command);
                    if let Err(unheard) = answer.send(child) {
                        tracing::warn!(child = ?unheard.0, "nobody waits for a process any more");
                    }
                }
            })?;
        Ok(Self { jobs })
    }

    /// Starts a process.
    pub(in crate::daemon::sandboxes) fn spawn(&self, command: Command) -> io::Result<Child> {
        let gone = || io::Error::other("the thread that starts processes is gone");
        let (answer, received) = channel();
        self.jobs.send((command, answer)).map_err(|_| gone())?;
        received.recv().map_err(|_| gone())?
    }
}
