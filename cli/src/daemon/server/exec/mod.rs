//! A command in a sandbox, run for a client of the socket. [`mod@bridge`] is what happens once it runs,
//! [`process`] what it then is.

mod bridge;
mod process;
#[cfg(test)]
mod tests;

use std::io::{self, BufReader, Cursor};
use std::os::unix::net::UnixStream;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use tokio::io::AsyncReadExt;
use tracing::{Instrument, Span, debug, error};

use super::answer;
use crate::agent::{Agent, AgentError, EntryKind, PtySize, StartProcess};
use crate::daemon::{Daemon, handlers};
use crate::error::{ApiError, ErrorKind};
use crate::wire::exec::{ExecBegun, ExecEnd, ExecOutput, TerminalSize};
use crate::wire::{Reply, SandboxExec, line};
use bridge::UNKNOWN_END;
use process::{Process, Steered};

/// The exit code of a command that is there but cannot be run, as in a shell.
const CANNOT_RUN: u8 = 126;
/// The exit code of a command that is not there, as in a shell.
const NOT_THERE: u8 = 127;

/// What becomes of a connection.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// It carries the next request.
    Next,
    /// It is used up.
    Ended,
}

/// Runs the command that a client asks for and carries what it prints, until it ends or the client is
/// gone. `begins` is called once the connection carries lines.
pub(super) fn serve(
    daemon: &Daemon,
    request: SandboxExec,
    reader: &BufReader<UnixStream>,
    stream: &mut UnixStream,
    begins: &dyn Fn(),
) -> io::Result<Then> {
    let reached = catch_unwind(AssertUnwindSafe(|| reach(daemon, &request)));
    let (sandbox, agent) = match reached {
        Ok(Ok(reached)) => reached,
        Ok(Err(refused)) => {
            line::write(stream, &Reply::<ExecBegun>::Error(refused))?;
            return Ok(Then::Next);
        }
        Err(_) => {
            answer::panicked(stream)?;
            return Ok(Then::Next);
        }
    };
    debug!(sandbox, cmd = request.cmd, "a command in a sandbox");
    let _ends = request.ends_sandbox.then(|| Ends {
        daemon,
        sandbox: sandbox.clone(),
    });
    if request.ends_sandbox
        && let Err(refused) = daemon.sandboxes.end_never(&sandbox)
    {
        line::write(stream, &Reply::<ExecBegun>::Error(refused))?;
        return Ok(Then::Next);
    }
    let begun = ExecBegun {
        sandbox: sandbox.clone(),
    };
    line::write(stream, &Reply::Ok(begun))?;
    begins();
    // What was read with the request is the beginning of what follows.
    let early = reader.buffer().to_vec();
    let run = catch_unwind(AssertUnwindSafe(|| {
        run(daemon, request, (sandbox, &agent), early, stream)
    }));
    match run {
        Ok(run) => run.map(|()| Then::Ended),
        // The client sees the connection end.
        Err(_) => {
            error!("running a command panicked; see above");
            Ok(Then::Ended)
        }
    }
}

/// A sandbox that ends with its command, whatever becomes of that.
struct Ends<'a> {
    daemon: &'a Daemon,
    sandbox: String,
}

impl Drop for Ends<'_> {
    fn drop(&mut self) {
        if let Err(error) = self.daemon.sandboxes.kill(&self.sandbox)
            && error.kind != ErrorKind::NotFound
        {
            let sandbox = &self.sandbox;
            error!(
                sandbox,
                error = error.error,
                "a sandbox stays when its command has ended"
            );
        }
    }
}

/// Finds the sandbox and its agent; one that is paused goes on, if it is to.
fn reach(daemon: &Daemon, request: &SandboxExec) -> Result<(String, Agent), ApiError> {
    check(request)?;
    let id = handlers::find_id(daemon, &request.sandbox)?;
    let agent = daemon.runtime.block_on(daemon.sandboxes.agent(&id))?;
    Ok((id, agent))
}

fn check(request: &SandboxExec) -> Result<(), ApiError> {
    let usage = |what: &str| Err(ApiError::new(ErrorKind::Usage, what));
    let mut words = std::iter::once(&request.cmd)
        .chain(&request.args)
        .chain(&request.cwd)
        .chain(&request.user);
    if request.cmd.is_empty() {
        return usage("a command is missing");
    }
    if words.any(|word| word.contains('\0')) {
        return usage("a command cannot have NUL in it");
    }
    if request
        .terminal
        .is_some_and(|size| size.cols == 0 || size.rows == 0)
    {
        return usage("a terminal has at least a column and a row");
    }
    let impossible = |(name, value): (&String, &String)| {
        name.is_empty() || name.contains(['=', '\0']) || value.contains('\0')
    };
    if request.env.iter().any(impossible) {
        return usage("an environment variable has a name without '=', and no NUL in its value");
    }
    match request.timeout_s {
        Some(0) => usage("a command needs more time than none"),
        _ => Ok(()),
    }
}

fn run(
    daemon: &Daemon,
    request: SandboxExec,
    (sandbox, agent): (String, &Agent),
    early: Vec<u8>,
    stream: &mut UnixStream,
) -> io::Result<()> {
    let timeout = request.timeout_s.map(Duration::from_secs);
    let has_terminal = request.terminal.is_some();
    let place = request.cwd.clone().map(|cwd| (cwd, request.user.clone()));
    let started = daemon
        .runtime
        .block_on(agent.start(command(request)).in_current_span());
    let events = match started {
        Ok(events) => events,
        Err(error) => {
            let is_there = daemon.runtime.block_on(is_directory(agent, place));
            return line::write(stream, &ExecOutput::End(not_started(&error, is_there)));
        }
    };
    line::write(stream, &ExecOutput::Started { pid: events.pid })?;
    let steered = Steered::new(agent.clone(), events.pid, has_terminal);
    let mut process = Process {
        events,
        sandbox,
        agent: agent.clone(),
        sandboxes: Arc::clone(&daemon.sandboxes),
    };
    let connection = stream.try_clone()?;
    connection.set_nonblocking(true)?;
    let bridged = async {
        let connection = tokio::net::UnixStream::from_std(connection)?;
        let (input, output) = connection.into_split();
        let input = Cursor::new(early).chain(input);
        Ok(bridge::bridge(&mut process, &steered, timeout, input, output).await)
    };
    match daemon.runtime.block_on(bridged.instrument(Span::current())) {
        Ok(Ok(())) => Ok(()),
        Ok(Err(gone)) => {
            let reason = std::error::Error::source(&gone).map(ToString::to_string);
            debug!(%gone, reason, "a client did not wait for its command");
            Ok(())
        }
        Err(error) => Err(error),
    }
}

fn command(request: SandboxExec) -> StartProcess {
    StartProcess {
        cmd: request.cmd,
        args: request.args,
        env: request.env,
        cwd: request.cwd,
        user: request.user,
        stdin: request.stdin,
        pty: request.terminal.map(pty_size),
        tag: None,
    }
}

fn pty_size(size: TerminalSize) -> PtySize {
    PtySize {
        cols: size.cols,
        rows: size.rows,
    }
}

/// Whether the directory that a command was to run in may be one; otherwise it is that which is wrong.
async fn is_directory(agent: &Agent, place: Option<(String, Option<String>)>) -> bool {
    let Some((path, user)) = place else {
        return true;
    };
    match agent.stat(&path, user.as_deref()).await {
        // A link is as good as what it leads to, which is not looked at.
        Ok(entry) => matches!(entry.kind, EntryKind::Directory | EntryKind::Symlink),
        Err(_) => false,
    }
}

/// The end of a command that did not begin.
fn not_started(error: &AgentError, has_place: bool) -> ExecEnd {
    let exit_code = match error {
        _ if !has_place => UNKNOWN_END,
        AgentError::NotFound { .. } => NOT_THERE,
        AgentError::PermissionDenied { .. }
        | AgentError::IsADirectory { .. }
        | AgentError::NotADirectory { .. } => CANNOT_RUN,
        _ => UNKNOWN_END,
    };
    ExecEnd {
        exit_code,
        error: Some(error.to_string()),
        ..ExecEnd::default()
    }
}
