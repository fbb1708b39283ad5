//! `floe daemon stop`.

use std::time::{Duration, Instant};

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use serde::Serialize;

use crate::client::Client;
use crate::commands::Context;
use crate::daemon::{self, Cleaned};
use crate::error::{ApiError, ErrorKind};
use crate::output::{counted, printable};
use crate::wire::{self, WirePath};

/// How long the daemon may take to unmount everything.
const END_WAIT: Duration = Duration::from_secs(90);
/// How long another process that has the store open, such as a daemon that is starting or ending,
/// is waited for.
const OTHER_WAIT: Duration = Duration::from_secs(10);

/// Unmount everything and end the daemon, and wait until it is gone
///
/// Nothing is lost. What programs still use is detached and ends with them. If no daemon runs, the
/// dead mounts of one that was killed are detached; they are not mounted again later. A mount that
/// something else is mounted over stays, and the command ends with status 4.
#[derive(Args, Debug)]
pub(crate) struct Stop {}

#[derive(Serialize)]
struct Stopped {
    stopped: bool,
    pid: Option<u32>,
    /// Dead mounts that were detached.
    detached: Vec<WirePath>,
}

impl Stop {
    /// Carries it out.
    ///
    /// # Errors
    /// When it runs and does not end, or a mount stays.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let (pid, cleaned) = end(context)?;
        let output = &context.output;
        if let Some(error) = left(&cleaned) {
            return Err(error);
        }
        if output.json {
            return output.json(&Stopped {
                stopped: pid.is_some(),
                pid,
                detached: cleaned.detached.iter().map(|dir| (&**dir).into()).collect(),
            });
        }
        match pid {
            Some(pid) => output.note(&format!("process {pid} ended")),
            None => output.note("it was not running"),
        }
        for dir in &cleaned.detached {
            let dir = printable(&dir.to_string_lossy());
            output.note(&format!("detached the dead mount on {dir}"));
        }
        Ok(())
    }
}

/// Ends the daemon, if one runs, and detaches what is left of it or of one before.
fn end(context: &Context) -> Result<(Option<u32>, Cleaned), ApiError> {
    let give_up = Instant::now() + OTHER_WAIT;
    let mut pid = None;
    loop {
        if let Some(client) = Client::connect_any_version(&context.store)? {
            pid = Some(stop(client)?);
        }
        match daemon::clean(context.store.path()) {
            Ok(cleaned) => return Ok((pid, cleaned)),
            // Somebody starts or ends one at this moment.
            Err(error) if error.kind == ErrorKind::Conflict && Instant::now() < give_up => {
                std::thread::sleep(Duration::from_millis(50));
            }
            Err(error) if error.kind == ErrorKind::Conflict => return Err(error),
            // What cannot be opened has no daemon either.
            Err(error) => {
                let reasons = [vec![error.error], error.causes].concat().join(": ");
                context.output.note(&printable(&format!(
                    "warning: cannot look for mounts that were left: {reasons}"
                )));
                return Ok((pid, Cleaned::default()));
            }
        }
    }
}

/// The error that names all mounts that stay.
fn left(cleaned: &Cleaned) -> Option<ApiError> {
    let (_, first) = cleaned.left.first()?;
    let mounts = counted(cleaned.left.len(), "dead mount");
    let what = format!("the daemon does not run, but {mounts} of it cannot be removed");
    let mut error = ApiError::new(first.kind, what);
    error.causes = cleaned
        .left
        .iter()
        .map(|(_, why)| {
            [vec![why.error.clone()], why.causes.clone()]
                .concat()
                .join(": ")
        })
        .collect();
    error.hint = first
        .hint
        .as_ref()
        .map(|hint| format!("{hint}; then stop again with `floe daemon stop`"));
    Some(error)
}

fn stop(mut client: Client) -> Result<u32, ApiError> {
    let pid = client.daemon_pid();
    // Taken before the request, while the number cannot have passed to another process.
    let process = i32::try_from(pid)
        .ok()
        .and_then(Pid::from_raw)
        .and_then(|pid| rustix::process::pidfd_open(pid, PidfdFlags::empty()).ok());
    client.call(wire::Stop {})?;
    let Some(process) = process else {
        // It ended within this moment, or lives in another process namespace.
        client.wait_for_close();
        return Ok(pid);
    };
    let wait = Timespec {
        tv_sec: END_WAIT.as_secs().try_into().unwrap_or(90),
        tv_nsec: 0,
    };
    let mut fds = [PollFd::new(&process, PollFlags::IN)];
    match rustix::event::poll(&mut fds, Some(&wait)) {
        Ok(0) => {
            let what = format!("the daemon (pid {pid}) does not end");
            Err(ApiError::new(ErrorKind::Failed, what).hint(format!(
                "end it by force, which loses nothing either: `kill -9 {pid}`"
            )))
        }
        Ok(_) => Ok(pid),
        Err(error) => Err(
            ApiError::new(ErrorKind::Failed, "cannot wait for the daemon to end").caused_by(&error),
        ),
    }
}
