//! One try: a fork of a snapshot, mounted for as long as a command runs in it.

use std::ffi::OsString;
use std::os::fd::AsFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use super::search::Verdict;
use crate::client::Client;
use crate::commands::{Context, here};
use crate::error::{ApiError, ErrorKind};
use crate::wire::{DeleteWorkspace, Fork, Umount, WirePath};

/// How often it is looked whether a command has ended.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How long an interrupted command may take to end.
const END_WAIT: Duration = Duration::from_secs(5);
/// How long a fork may be in use after its command was ended.
const BUSY_WAIT: Duration = Duration::from_secs(5);
/// The exit code that says that it cannot be told, as for `git bisect run`.
const SKIP: i32 = 125;

/// What runs commands in forks. While it exists, interrupts do not end this process.
pub(super) struct Trials<'a> {
    context: &'a Context,
    client: Client,
    command: &'a [OsString],
    interrupted: Arc<AtomicBool>,
    forks: u32,
}

/// A fork that is there.
pub(super) struct Trial {
    name: String,
    /// The snapshot that it stands on.
    pub(super) snapshot: String,
    dir: PathBuf,
}

impl<'a> Trials<'a> {
    pub(super) fn new(context: &'a Context, command: &'a [OsString]) -> Result<Self, ApiError> {
        let interrupted = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register(signal, interrupted.clone()).map_err(|error| {
                ApiError::new(ErrorKind::Failed, "cannot watch for interrupts").caused_by(&error)
            })?;
        }
        Ok(Self {
            context,
            client: context.client()?,
            command,
            interrupted,
            forks: 0,
        })
    }

    pub(super) fn client(&mut self) -> &mut Client {
        &mut self.client
    }

    /// An error once somebody wants all this to end.
    pub(super) fn go_on(&self) -> Result<(), ApiError> {
        if self.interrupted.load(Ordering::Relaxed) {
            return Err(ApiError::new(ErrorKind::Interrupted, "interrupted"));
        }
        Ok(())
    }

    /// Runs the command in a fork of a snapshot, or of a workspace as it is now. Says which snapshot
    /// that was, what came of it, and with which code the command ended.
    pub(super) fn run(&mut self, of: &str) -> Result<(String, Verdict, i32), ApiError> {
        self.go_on()?;
        self.forks += 1;
        let name = format!("bisect-{}-{}", std::process::id(), self.forks);
        let made = self.client.call(Fork {
            source: of.to_owned(),
            name: name.clone(),
            mount: true,
            ..Fork::default()
        });
        let ran = made.and_then(|forked| {
            let nothing = || ApiError::new(ErrorKind::Internal, "a fork was not mounted");
            let fork = forked.workspaces.into_iter().next().ok_or_else(nothing)?;
            let trial = Trial {
                name: name.clone(),
                snapshot: fork.forked_from.ok_or_else(nothing)?,
                dir: fork.mounts.first().ok_or_else(nothing)?.to_path(),
            };
            let code = self.run_in(&trial)?;
            Ok((trial.snapshot, verdict(code, &self.command[0])?, code))
        });
        // Whatever came of it.
        match (self.remove(&name), ran) {
            (Ok(()), ran) => ran,
            (Err(error), Ok(_)) => Err(error.while_doing(format!("the fork '{name}' stays"))),
            (Err(error), ran) => {
                let note = format!("warning: the fork '{name}' stays: {error}");
                self.context.output.note(&note);
                ran
            }
        }
    }

    fn run_in(&self, trial: &Trial) -> Result<i32, ApiError> {
        here::check(self.client.daemon_pid(), &[&trial.dir])?;
        let failed = |error: std::io::Error| {
            let what = format!("cannot run '{}'", self.command[0].to_string_lossy());
            ApiError::new(ErrorKind::Failed, what).caused_by(&error)
        };
        // What it prints is no answer of this command.
        let out = std::io::stderr()
            .as_fd()
            .try_clone_to_owned()
            .map_err(failed)?;
        let mut child = Command::new(&self.command[0])
            .args(&self.command[1..])
            .current_dir(&trial.dir)
            .env("FLOE_WORKSPACE", &trial.name)
            .env("FLOE_SNAPSHOT", &trial.snapshot)
            .env(crate::store_dir::STORE_VARIABLE, self.context.store.path())
            .stdin(Stdio::null())
            .stdout(out)
            // Of its own, so that whatever it started can be ended with it.
            .process_group(0)
            .spawn()
            .map_err(failed)?;
        let status = self.wait(&mut child).map_err(failed);
        // What it left running would keep the fork in use.
        signal_group(&child, Signal::KILL);
        let status = status?;
        self.go_on()?;
        Ok(code(status))
    }

    fn wait(&self, child: &mut Child) -> std::io::Result<ExitStatus> {
        let mut end_by = None;
        loop {
            if let Some(status) = child.try_wait()? {
                return Ok(status);
            }
            match end_by {
                None if self.interrupted.load(Ordering::Relaxed) => {
                    signal_group(child, Signal::TERM);
                    end_by = Some(Instant::now() + END_WAIT);
                }
                Some(at) if Instant::now() > at => {
                    signal_group(child, Signal::KILL);
                    return child.wait();
                }
                _ => std::thread::sleep(LOOK_EVERY),
            }
        }
    }

    /// Removes a fork, mounted or not, if it is there.
    fn remove(&mut self, name: &str) -> Result<(), ApiError> {
        let give_up = Instant::now() + BUSY_WAIT;
        loop {
            let unmounted = self.client.call(Umount {
                target: name.to_owned(),
                dir: WirePath::default(),
                lazy: Instant::now() > give_up,
            });
            let removed = match unmounted {
                Ok(_) => self
                    .client
                    .call(DeleteWorkspace {
                        name: name.to_owned(),
                        dry_run: false,
                    })
                    .map(drop),
                Err(error) => Err(error),
            };
            match removed {
                Err(error) if error.kind == ErrorKind::NotFound => return Ok(()),
                // Programs that were killed go away in their own time.
                Err(error) if error.kind == ErrorKind::Conflict && Instant::now() < give_up => {
                    std::thread::sleep(LOOK_EVERY);
                }
                other => return other,
            }
        }
    }
}

/// Sends a signal to a command and what it started. Nobody may be left.
fn signal_group(child: &Child, signal: Signal) {
    if let Some(pid) = i32::try_from(child.id()).ok().and_then(Pid::from_raw)
        && let Err(error) = kill_process_group(pid, signal)
    {
        tracing::debug!(%error, "nothing is left to be ended");
    }
}

/// The exit code, as a shell shows it.
fn code(status: ExitStatus) -> i32 {
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

fn verdict(code: i32, command: &OsString) -> Result<Verdict, ApiError> {
    match code {
        0 => Ok(Verdict::Good),
        SKIP => Ok(Verdict::Skip),
        1..128 => Ok(Verdict::Bad),
        _ => {
            let command = command.to_string_lossy();
            let what = format!("'{command}' ended with {code}, which is neither good nor bad");
            Err(ApiError::new(ErrorKind::Failed, what)
                .hint("0 is good, 125 cannot be told, anything else below 128 is bad"))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_codes_mean_what_they_do_for_git() {
        let of = |code| verdict(code, &OsString::from("make")).ok();
        assert_eq!(of(0), Some(Verdict::Good));
        assert_eq!(of(125), Some(Verdict::Skip));
        for bad in [1, 124, 126, 127] {
            assert_eq!(of(bad), Some(Verdict::Bad));
        }
        for aborts in [128, 130, 137, 255] {
            assert_eq!(of(aborts), None);
        }
    }
}
