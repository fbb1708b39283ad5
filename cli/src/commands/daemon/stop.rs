//! `floe daemon stop`.

use std::time::Duration;

use clap::Args;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};
use serde::Serialize;

use crate::client::Client;
use crate::commands::Context;
use crate::error::{ApiError, ErrorKind};
use crate::wire;

/// How long the daemon may take to unmount everything.
const END_WAIT: Duration = Duration::from_secs(90);

/// Unmount everything and end the daemon, and wait until it is gone
///
/// Nothing is lost. What programs still use is detached and ends with them. If no daemon runs
/// there is nothing to do.
#[derive(Args, Debug)]
pub(crate) struct Stop {}

#[derive(Serialize)]
struct Stopped {
    stopped: bool,
    pid: Option<u32>,
}

impl Stop {
    /// Carries it out.
    ///
    /// # Errors
    /// When it runs and does not end.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let pid = match Client::connect_any_version(&context.store)? {
            Some(client) => Some(stop(client)?),
            None => None,
        };
        if context.output.json {
            return context.output.json(&Stopped {
                stopped: pid.is_some(),
                pid,
            });
        }
        match pid {
            Some(pid) => context.output.note(&format!("process {pid} ended")),
            None => context.output.note("it was not running"),
        }
        Ok(())
    }
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
