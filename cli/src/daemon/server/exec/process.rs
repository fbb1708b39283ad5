//! A process of a sandbox as the bridge wants it.

use std::sync::Arc;

use bytes::Bytes;

use super::bridge::{Command, Controls, UNKNOWN_END};
use super::pty_size;
use crate::agent::{Agent, AgentError, ProcessEvent, ProcessRef, ProcessStream};
use crate::daemon::sandboxes::Sandboxes;
use crate::wire::exec::{ExecEnd, ExecOutput, TerminalSize};

/// What is typed to say that there is no more: Ctrl-D.
const END_OF_INPUT: u8 = 4;

/// What a process prints.
pub(super) struct Process {
    pub(super) events: ProcessStream,
    /// Where it runs.
    pub(super) sandbox: String,
    pub(super) agent: Agent,
    pub(super) sandboxes: Arc<Sandboxes>,
}

impl Command for Process {
    async fn next(&mut self) -> Option<ExecOutput> {
        if let Some(event) = self.events.next().await {
            return Some(output(event));
        }
        // Its sandbox is gone. Why, is known for as long as that is not removed.
        let (sandbox, agent) = (self.sandbox.clone(), self.agent.clone());
        let sandboxes = Arc::clone(&self.sandboxes);
        let why = tokio::task::spawn_blocking(move || sandboxes.why_ended(&sandbox, &agent));
        let why = why.await.ok().flatten()?;
        Some(ExecOutput::End(ExecEnd {
            exit_code: UNKNOWN_END,
            error: Some(why),
            ..ExecEnd::default()
        }))
    }
}

fn output(event: ProcessEvent) -> ExecOutput {
    match event {
        ProcessEvent::Stdout(bytes) => ExecOutput::Stdout((&*bytes).into()),
        ProcessEvent::Stderr(bytes) => ExecOutput::Stderr((&*bytes).into()),
        ProcessEvent::Pty(bytes) => ExecOutput::Terminal((&*bytes).into()),
        ProcessEvent::Lost { bytes } => ExecOutput::Lost { bytes },
        ProcessEvent::End {
            exit_code, signal, ..
        } => ExecOutput::End(ExecEnd {
            exit_code: status(exit_code, signal),
            signal,
            ..ExecEnd::default()
        }),
    }
}

/// The exit code, or 128 and the signal, as in a shell.
fn status(exit_code: i32, signal: Option<i32>) -> u8 {
    let status = match signal {
        Some(signal) => signal.saturating_add(128),
        None => exit_code,
    };
    // The agent may say anything.
    u8::try_from(status).unwrap_or(UNKNOWN_END)
}

/// How a process is steered.
pub(super) struct Steered {
    agent: Agent,
    process: ProcessRef,
    has_terminal: bool,
}

impl Steered {
    pub(super) fn new(agent: Agent, pid: u32, has_terminal: bool) -> Self {
        Self {
            agent,
            process: ProcessRef::Pid(pid),
            has_terminal,
        }
    }
}

impl Controls for Steered {
    type Error = AgentError;

    async fn input(&self, bytes: Bytes) -> Result<(), AgentError> {
        self.agent.stdin(&self.process, bytes).await
    }

    async fn close_input(&self) -> Result<(), AgentError> {
        if self.has_terminal {
            return self.input(Bytes::from_static(&[END_OF_INPUT])).await;
        }
        self.agent.close_stdin(&self.process).await
    }

    async fn signal(&self, signal: i32) -> Result<(), AgentError> {
        self.agent.signal(&self.process, signal).await
    }

    async fn resize(&self, size: TerminalSize) -> Result<(), AgentError> {
        self.agent.resize(&self.process, pty_size(size)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signal_is_a_status_as_in_a_shell_and_nonsense_is_not_known() {
        for (code, signal, expected) in [
            (0, None, 0),
            (255, None, 255),
            (-1, Some(9), 137),
            (-1, Some(2), 130),
            (-1, None, 125),
            (256, None, 125),
            (-1, Some(i32::MAX), 125),
            (-1, Some(-300), 125),
        ] {
            assert_eq!(status(code, signal), expected, "{code} {signal:?}");
        }
    }
}
