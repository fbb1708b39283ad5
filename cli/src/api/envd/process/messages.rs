//! Messages of the service `process.Process`.
//!
//! Members that a client leaves out have the value that protocol buffers give them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::connect::error::{Code, RpcError};
use super::super::json::Base64;
use crate::agent::{ProcessEvent, ProcessRef, PtySize, StartProcess};

/// A command.
#[derive(Clone, Debug, Default, Deserialize, Serialize, ToSchema)]
pub(super) struct ProcessConfig {
    /// The program: a path, or a name that is looked for in `PATH`.
    #[serde(default)]
    cmd: String,
    /// Its arguments.
    #[serde(default)]
    args: Vec<String>,
    /// Environment of its own.
    #[serde(default)]
    envs: BTreeMap<String, String>,
    /// Its directory; the user's home if nothing is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<String>,
}

/// A terminal.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub(super) struct Pty {
    /// Its size.
    size: Option<Size>,
}

/// The size of a terminal.
#[derive(Clone, Copy, Debug, Default, Deserialize, ToSchema)]
pub(super) struct Size {
    /// Characters in a line.
    #[serde(default)]
    cols: u32,
    /// Lines.
    #[serde(default)]
    rows: u32,
}

impl Pty {
    /// The size, as the sandbox's side takes it.
    pub(super) fn size(self) -> Result<PtySize, RpcError> {
        let side = |length: u32| match length {
            1..=u32::MAX => u16::try_from(length).ok(),
            0 => None,
        };
        let Size { cols, rows } = self.size.unwrap_or(Size { cols: 80, rows: 24 });
        match (side(cols), side(rows)) {
            (Some(cols), Some(rows)) => Ok(PtySize { cols, rows }),
            _ => {
                let what = format!("a terminal cannot have {cols} columns and {rows} rows");
                Err(RpcError::new(Code::InvalidArgument, what))
            }
        }
    }
}

/// A command to start.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct StartRequest {
    /// The command.
    process: Option<ProcessConfig>,
    /// A terminal for it.
    pty: Option<Pty>,
    /// A name to find it by.
    tag: Option<String>,
    /// Whether input will come; so it is unless `false` is said.
    stdin: Option<bool>,
}

impl StartRequest {
    /// The command, as the sandbox's side takes it.
    pub(super) fn into_start(self, user: Option<String>) -> Result<StartProcess, RpcError> {
        let config = self.process.unwrap_or_default();
        if config.cmd.is_empty() {
            return Err(RpcError::new(Code::InvalidArgument, "there is no command"));
        }
        Ok(StartProcess {
            cmd: config.cmd,
            args: config.args,
            env: config.envs,
            cwd: config.cwd.filter(|dir| !dir.is_empty()),
            user,
            stdin: self.stdin != Some(false),
            pty: self.pty.map(Pty::size).transpose()?,
            tag: self.tag.filter(|tag| !tag.is_empty()),
        })
    }
}

/// Names a process: by its id or its tag.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(super) struct ProcessSelector {
    /// Its id.
    pid: Option<u32>,
    /// Its tag.
    tag: Option<String>,
}

impl ProcessSelector {
    /// The process that was meant.
    pub(super) fn process(selector: Option<Self>) -> Result<ProcessRef, RpcError> {
        let selector = selector.unwrap_or_default();
        match (selector.pid, selector.tag) {
            (Some(pid), None) => Ok(ProcessRef::Pid(pid)),
            (None, Some(tag)) => Ok(ProcessRef::Tag(tag)),
            _ => {
                let what = "a process is named by its `pid` or its `tag`";
                Err(RpcError::new(Code::InvalidArgument, what))
            }
        }
    }
}

/// A process to attach to, or to close the input of.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct SelectRequest {
    /// Which.
    pub(super) process: Option<ProcessSelector>,
}

/// Input.
#[derive(Clone, Debug, Default, Deserialize, ToSchema)]
pub(super) struct ProcessInput {
    /// For its standard input.
    stdin: Option<Base64>,
    /// For its terminal.
    pty: Option<Base64>,
}

impl ProcessInput {
    /// The bytes.
    pub(super) fn bytes(input: Option<Self>) -> Result<bytes::Bytes, RpcError> {
        let input = input.unwrap_or_default();
        match (input.stdin, input.pty) {
            (Some(bytes), None) | (None, Some(bytes)) => Ok(bytes.0),
            _ => {
                let what = "input is for `stdin` or for `pty`";
                Err(RpcError::new(Code::InvalidArgument, what))
            }
        }
    }
}

/// Input for a process.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct SendInputRequest {
    /// Which.
    pub(super) process: Option<ProcessSelector>,
    /// The input.
    pub(super) input: Option<ProcessInput>,
}

/// One message of a stream of input.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct StreamInputRequest {
    /// Names the process; the first message.
    pub(super) start: Option<SelectRequest>,
    /// Input for it.
    pub(super) data: Option<InputData>,
    /// The client is there.
    pub(super) keepalive: Option<Nothing>,
}

/// Input in a stream.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct InputData {
    /// The input.
    pub(super) input: Option<ProcessInput>,
}

/// A message without members.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize, ToSchema)]
pub(super) struct Nothing {}

/// A terminal's new size.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct UpdateRequest {
    /// Whose.
    pub(super) process: Option<ProcessSelector>,
    /// The size.
    pub(super) pty: Option<Pty>,
}

/// A signal for a process and its group.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct SendSignalRequest {
    /// Which.
    pub(super) process: Option<ProcessSelector>,
    /// The signal.
    pub(super) signal: Option<Signal>,
}

/// A signal, by its name or its number.
#[derive(Clone, Debug, Deserialize, ToSchema)]
#[serde(untagged)]
pub(super) enum Signal {
    /// `SIGNAL_SIGTERM` or `SIGNAL_SIGKILL`.
    Name(String),
    /// 15 or 9.
    Number(i32),
}

impl Signal {
    /// Its number.
    pub(super) fn number(signal: Option<&Self>) -> Result<i32, RpcError> {
        match signal {
            Some(Self::Name(name)) if name == "SIGNAL_SIGTERM" => Ok(15),
            Some(Self::Name(name)) if name == "SIGNAL_SIGKILL" => Ok(9),
            Some(Self::Number(number @ (15 | 9))) => Ok(*number),
            _ => {
                let what = "the signal is `SIGNAL_SIGTERM` or `SIGNAL_SIGKILL`";
                Err(RpcError::new(Code::InvalidArgument, what))
            }
        }
    }
}

/// Processes that run.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ListResponse {
    /// They.
    processes: Vec<ProcessInfo>,
}

/// A process that runs.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ProcessInfo {
    /// Its command.
    config: ProcessConfig,
    /// Its id.
    pid: u32,
    /// Its tag.
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<String>,
}

impl From<Vec<crate::agent::ProcessInfo>> for ListResponse {
    fn from(found: Vec<crate::agent::ProcessInfo>) -> Self {
        let each = found.into_iter().map(|info| ProcessInfo {
            config: ProcessConfig {
                cmd: info.cmd,
                args: info.args,
                envs: info.env,
                cwd: info.cwd,
            },
            pid: info.pid,
            tag: info.tag,
        });
        Self {
            processes: each.collect(),
        }
    }
}

/// One message of the stream that follows a process.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EventResponse {
    /// What happened.
    event: Event,
}

/// What happened.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Event {
    /// It runs. Always the first.
    Start {
        /// Its id.
        pid: u32,
    },
    /// It wrote something.
    Data(Output),
    /// It ended. Always the last.
    End(End),
    /// Nothing, for a while.
    Keepalive(Nothing),
}

/// What a process wrote, and where.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum Output {
    /// To its standard output.
    Stdout(Base64),
    /// To its standard error.
    Stderr(Base64),
    /// To its terminal.
    Pty(Base64),
}

/// How a process ended.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct End {
    /// Its exit code; -1 if a signal ended it.
    exit_code: i32,
    /// Whether it ended by itself.
    exited: bool,
    /// How, in words.
    status: String,
    /// The same, if it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl From<Event> for EventResponse {
    fn from(event: Event) -> Self {
        Self { event }
    }
}

impl PartialEq for Nothing {
    fn eq(&self, _: &Self) -> bool {
        true
    }
}

impl Eq for Nothing {}

impl Event {
    /// What a client is told of what a process did; `None` of what the protocol has no word for.
    pub(super) fn of(event: ProcessEvent) -> Option<Self> {
        Some(match event {
            ProcessEvent::Stdout(bytes) => Self::Data(Output::Stdout(Base64(bytes))),
            ProcessEvent::Stderr(bytes) => Self::Data(Output::Stderr(Base64(bytes))),
            ProcessEvent::Pty(bytes) => Self::Data(Output::Pty(Base64(bytes))),
            ProcessEvent::End {
                exit_code,
                signal,
                status,
                error,
            } => Self::End(End {
                exit_code,
                exited: signal.is_none(),
                status,
                error,
            }),
            ProcessEvent::Lost { .. } => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn start(message: serde_json::Value) -> Result<StartProcess, Code> {
        let request: StartRequest = serde_json::from_value(message).unwrap();
        request.into_start(None).map_err(|error| error.code)
    }

    #[test]
    fn a_command_is_read_as_clients_write_it() {
        let started = start(json!({
            "process": {"cmd": "/bin/bash", "args": ["-l", "-c", "true"], "envs": {"A": "b"}, "cwd": "/tmp"},
            "stdin": false, "tag": "t", "pty": {"size": {"cols": 80, "rows": 24}},
        }));
        let started = started.unwrap();
        assert_eq!((started.cmd.as_str(), started.args.len()), ("/bin/bash", 3));
        assert_eq!(started.cwd.as_deref(), Some("/tmp"));
        assert_eq!(started.pty, Some(PtySize { cols: 80, rows: 24 }));
        assert!(!started.stdin);
        let plain = start(json!({"process": {"cmd": "true"}})).unwrap();
        assert!(plain.stdin && plain.pty.is_none() && plain.tag.is_none() && plain.cwd.is_none());
    }

    #[test]
    fn what_names_nothing_is_an_invalid_argument() {
        assert_eq!(start(json!({})).unwrap_err(), Code::InvalidArgument);
        for size in [
            json!({"cols": 0, "rows": 1}),
            json!({"cols": 1, "rows": 65536}),
        ] {
            let wrong = start(json!({"process": {"cmd": "x"}, "pty": {"size": size}}));
            assert_eq!(wrong.unwrap_err(), Code::InvalidArgument);
        }
        let both = ProcessSelector {
            pid: Some(1),
            tag: Some("t".to_owned()),
        };
        for selector in [None, Some(ProcessSelector::default()), Some(both)] {
            let error = ProcessSelector::process(selector).unwrap_err();
            assert_eq!(error.code, Code::InvalidArgument);
        }
        assert!(ProcessInput::bytes(None).is_err());
    }

    #[test]
    fn signals_have_names_and_numbers() {
        let number = |signal: serde_json::Value| {
            let request = json!({ "signal": signal });
            let request: SendSignalRequest = serde_json::from_value(request).unwrap();
            Signal::number(request.signal.as_ref()).ok()
        };
        assert_eq!(number(json!("SIGNAL_SIGKILL")), Some(9));
        assert_eq!(number(json!("SIGNAL_SIGTERM")), Some(15));
        assert_eq!(number(json!(9)), Some(9));
        for wrong in [json!("SIGNAL_UNSPECIFIED"), json!(0), json!(1), json!(null)] {
            assert_eq!(number(wrong), None);
        }
    }

    #[test]
    fn events_have_the_form_that_clients_read() {
        let told = |event: Event| serde_json::to_value(EventResponse::from(event)).unwrap();
        assert_eq!(
            told(Event::Start { pid: 7 }),
            json!({"event": {"start": {"pid": 7}}})
        );
        assert_eq!(
            told(Event::Keepalive(Nothing {})),
            json!({"event": {"keepalive": {}}})
        );
        let out = Event::of(ProcessEvent::Stdout("hi".into())).unwrap();
        assert_eq!(told(out), json!({"event": {"data": {"stdout": "aGk="}}}));
        let end = Event::of(ProcessEvent::End {
            exit_code: -1,
            signal: Some(9),
            status: "signal: killed".to_owned(),
            error: Some("signal: killed".to_owned()),
        });
        let expected = json!({"event": {"end": {
            "exitCode": -1, "exited": false, "status": "signal: killed", "error": "signal: killed",
        }}});
        assert_eq!(told(end.unwrap()), expected);
        assert_eq!(Event::of(ProcessEvent::Lost { bytes: 1 }), None);
    }
}
