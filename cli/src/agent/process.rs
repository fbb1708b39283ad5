//! Processes of a sandbox.

use bytes::Bytes;
use floe_guest::frame::MAX_EVENT;
use floe_guest::message::{
    Event, Exit, Outcome, ProcessInfo, ProcessRef, PtySize, Request, StartProcess,
};
use floe_guest::window::FRAME_COST;

use super::channel::{Channel, Step};
use super::error::AgentError;
use super::{Agent, CONTROL, within};

/// How much output may wait for its reader, in bytes.
const OUTPUT_WINDOW: u32 = 256 * 1024;

/// The same for lists of processes. The largest event must fit into half of it: less is not granted
/// again, and then neither side would go on.
const LIST_WINDOW: u32 = 2 * 1024 * 1024;

const _: () = assert!(LIST_WINDOW as usize / 2 > MAX_EVENT + FRAME_COST);

/// Most processes in a list. The agent runs fewer.
const MAX_LISTED: usize = 4096;

/// Most bytes of a list of processes.
const MAX_LIST_BYTES: usize = 16 * 1024 * 1024;

/// What a process does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ProcessEvent {
    /// It wrote to its standard output.
    Stdout(Bytes),
    /// It wrote to its standard error.
    Stderr(Bytes),
    /// It wrote to its terminal.
    Pty(Bytes),
    /// Output before this point that was not kept.
    Lost {
        /// How much.
        bytes: u64,
    },
    /// It ended; the last event.
    End {
        /// Its exit code, -1 if a signal ended it.
        exit_code: i32,
        /// The signal that ended it.
        signal: Option<i32>,
        /// `exit status 0`, `signal: killed`.
        status: String,
        /// The same, if it failed.
        error: Option<String>,
    },
}

/// A process that one is attached to. Dropping this detaches; the process goes on.
///
/// What is not read slows the process down, once the agent and the way to here hold half a mebibyte.
#[derive(Debug)]
pub struct ProcessStream {
    /// Its id in the sandbox.
    pub pid: u32,
    pty: bool,
    channel: Option<Channel>,
    error: Option<AgentError>,
}

impl ProcessStream {
    /// What it does next; `None` after its end, and when the connection has ended before that (see
    /// [`Self::error`]). May be dropped while it waits.
    pub async fn next(&mut self) -> Option<ProcessEvent> {
        let channel = self.channel.as_mut()?;
        let step = channel.next().await;
        let event = match step {
            Ok(Step::Data(bytes)) if self.pty => ProcessEvent::Pty(bytes),
            Ok(Step::Data(bytes)) => ProcessEvent::Stdout(bytes),
            Ok(Step::Stderr(bytes)) if !self.pty => ProcessEvent::Stderr(bytes),
            Ok(Step::Event(Event::Lost { bytes })) => ProcessEvent::Lost { bytes },
            Ok(Step::End(Outcome::Exit(exit))) => {
                self.channel = None;
                ended(&exit)
            }
            Ok(other) => {
                self.error = Some(channel.unexpected(&other));
                self.channel = None;
                return None;
            }
            Err(error) => {
                self.error = Some(error);
                self.channel = None;
                return None;
            }
        };
        Some(event)
    }

    /// Why there was no end: [`AgentError::Gone`] and the like.
    #[must_use]
    pub fn error(&self) -> Option<&AgentError> {
        self.error.as_ref()
    }
}

/// The words are those of Go's `os.ProcessState`, which clients of the API know.
fn ended(exit: &Exit) -> ProcessEvent {
    let (exit_code, status) = match exit.signal {
        Some(signal) => (-1, format!("signal: {}", signal_word(signal))),
        None => (exit.code, format!("exit status {}", exit.code)),
    };
    let failed = exit.signal.is_some() || exit.code != 0;
    ProcessEvent::End {
        exit_code,
        signal: exit.signal,
        error: failed.then(|| status.clone()),
        status,
    }
}

/// Source: <https://pkg.go.dev/syscall#Signal.String> and signal(7) for the numbers.
fn signal_word(signal: i32) -> String {
    let word = match signal {
        1 => "hangup",
        2 => "interrupt",
        3 => "quit",
        4 => "illegal instruction",
        5 => "trace/breakpoint trap",
        6 => "aborted",
        7 => "bus error",
        8 => "floating point exception",
        9 => "killed",
        10 => "user defined signal 1",
        11 => "segmentation fault",
        12 => "user defined signal 2",
        13 => "broken pipe",
        14 => "alarm clock",
        15 => "terminated",
        other => return format!("signal {other}"),
    };
    word.to_owned()
}

impl Agent {
    /// Starts a command and attaches to it. If the caller does not wait for the answer, the command
    /// may run all the same.
    ///
    /// # Errors
    ///
    /// [`AgentError::NotFound`] of the program or the directory, [`AgentError::UnknownUser`],
    /// [`AgentError::PermissionDenied`], [`AgentError::InvalidArgument`],
    /// [`AgentError::Exhausted`] if the sandbox may have no more processes.
    pub async fn start(&self, process: StartProcess) -> Result<ProcessStream, AgentError> {
        self.follow(&Request::Start(process)).await
    }

    /// Attaches to a process: its kept output comes first, then what it does.
    ///
    /// # Errors
    ///
    /// [`AgentError::NoSuchProcess`], also when it ended too long ago.
    pub async fn attach(&self, process: ProcessRef) -> Result<ProcessStream, AgentError> {
        self.follow(&Request::Attach { process }).await
    }

    async fn follow(&self, request: &Request) -> Result<ProcessStream, AgentError> {
        within(CONTROL, async {
            let mut channel = self.open(OUTPUT_WINDOW, request).await?;
            match channel.event().await? {
                Event::Started { pid, pty } => Ok(ProcessStream {
                    pid,
                    pty,
                    channel: Some(channel),
                    error: None,
                }),
                other => Err(channel.unexpected(&Step::Event(other))),
            }
        })
        .await
    }

    /// The processes that were started and run.
    ///
    /// # Errors
    ///
    /// See [`Agent`].
    pub async fn processes(&self) -> Result<Vec<ProcessInfo>, AgentError> {
        within(CONTROL, async {
            let mut channel = self.open(LIST_WINDOW, &Request::Processes).await?;
            let mut all = Vec::new();
            let mut bytes = 0;
            loop {
                match channel.next().await? {
                    Step::Event(Event::Process(info)) => {
                        bytes += weight(&info);
                        all.push(info);
                        if all.len() > MAX_LISTED || bytes > MAX_LIST_BYTES {
                            return Err(AgentError::Exhausted {
                                message: "the list of processes is too long".to_owned(),
                            });
                        }
                    }
                    Step::End(Outcome::Done) => return Ok(all),
                    other => return Err(channel.unexpected(&other)),
                }
            }
        })
        .await
    }

    /// Gives a process input; waits while it does not read and its pipe is full. Several calls are
    /// served in their order. A call that is dropped may have given a part.
    ///
    /// # Errors
    ///
    /// [`AgentError::NoSuchProcess`]; [`AgentError::InvalidArgument`] of one that takes no input (any
    /// more).
    pub async fn stdin(&self, process: &ProcessRef, bytes: Bytes) -> Result<(), AgentError> {
        let process = process.clone();
        let mut channel = self.open(0, &Request::Input { process }).await?;
        let sender = channel.sender();
        let send = async {
            sender.data(bytes).await?;
            sender.eof().await
        };
        // The end may come before all was sent: then it says why.
        tokio::select! {
            biased;
            outcome = channel.outcome() => return self.input_done(&outcome?),
            sent = send => sent?,
        }
        let outcome = channel.outcome().await?;
        self.input_done(&outcome)
    }

    fn input_done(&self, outcome: &Outcome) -> Result<(), AgentError> {
        match outcome {
            Outcome::Done => Ok(()),
            other => Err(self.unexpected(other)),
        }
    }

    /// Ends the input of a process, after all that was given before. Waits for that.
    ///
    /// # Errors
    ///
    /// [`AgentError::NoSuchProcess`]; [`AgentError::InvalidArgument`] of a terminal, whose input ends
    /// when Ctrl-D is typed.
    pub async fn close_stdin(&self, process: &ProcessRef) -> Result<(), AgentError> {
        let process = process.clone();
        let request = Request::CloseInput { process };
        let outcome = self.open(0, &request).await?.outcome().await?;
        self.input_done(&outcome)
    }

    /// Sends a signal to a process and its group.
    ///
    /// # Errors
    ///
    /// [`AgentError::NoSuchProcess`], [`AgentError::InvalidArgument`] of a signal that is none.
    pub async fn signal(&self, process: &ProcessRef, signal: i32) -> Result<(), AgentError> {
        let process = process.clone();
        self.done(&Request::Signal { process, signal }, CONTROL)
            .await
    }

    /// Changes the size of a process's terminal.
    ///
    /// # Errors
    ///
    /// [`AgentError::NoSuchProcess`], [`AgentError::InvalidArgument`] of one without a terminal.
    pub async fn resize(&self, process: &ProcessRef, size: PtySize) -> Result<(), AgentError> {
        let process = process.clone();
        self.done(&Request::Resize { process, size }, CONTROL).await
    }
}

/// About how much memory it takes.
fn weight(info: &ProcessInfo) -> usize {
    let text = |text: &String| text.len() + size_of::<String>();
    let env = |(name, value): (&String, &String)| text(name) + text(value);
    text(&info.cmd)
        + info.args.iter().map(text).sum::<usize>()
        + info.env.iter().map(env).sum::<usize>()
        + info.cwd.as_ref().map_or(0, text)
        + info.tag.as_ref().map_or(0, text)
}

#[cfg(test)]
mod unit {
    use super::*;

    #[test]
    fn the_status_says_how_it_ended() {
        let status = |code, signal| match ended(&Exit { code, signal }) {
            ProcessEvent::End {
                exit_code,
                status,
                error,
                ..
            } => (exit_code, status, error),
            other => panic!("{other:?}"),
        };
        assert_eq!(status(0, None), (0, "exit status 0".to_owned(), None));
        let failed = "exit status 3".to_owned();
        assert_eq!(status(3, None), (3, failed.clone(), Some(failed)));
        let killed = "signal: killed".to_owned();
        assert_eq!(status(77, Some(9)), (-1, killed.clone(), Some(killed)));
        assert_eq!(status(-1, Some(40)).1, "signal: signal 40");
    }
}
