//! Between a command in a sandbox and the client that waits for it: the lines of
//! [`crate::wire::exec`], both ways.
//!
//! Six things go on at once, none of which may keep another waiting for longer than it must:
//!
//! ```text
//! client -> steer -+-> feed  input, as fast as the command takes it
//!                  +-> act   signals and sizes, whatever waits in `feed`
//! print  -> write -> client  what it prints, as fast as the client reads
//! feed   -> write            what was taken, so that the client sends more
//! limit                      ends the command when its time is over
//! ```
//!
//! What they keep is bounded: [`INPUT_WINDOW`] bytes of input (more ends the connection),
//! [`LINES_MAX`] lines of output, [`ACTS_MAX`] signals and sizes.

use std::cell::Cell;
use std::io;
use std::pin::pin;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use rustix::process::Signal;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::sync::mpsc::{Receiver, Sender, UnboundedReceiver, UnboundedSender};
use tokio::sync::mpsc::{channel, unbounded_channel};
use tokio_util::codec::{FramedRead, LinesCodec, LinesCodecError};
use tracing::debug;

use crate::wire::exec::{
    ExecEnd, ExecInput, ExecOutput, INPUT_CHUNK_MAX, INPUT_WINDOW, TerminalSize,
};

/// Longest line from the client: in JSON one byte may take six.
const LINE_BYTES_MAX: usize = 6 * INPUT_CHUNK_MAX + 1024;
/// Most lines that wait for the client to read.
const LINES_MAX: usize = 4;
/// Most signals and sizes that wait for the command.
const ACTS_MAX: usize = 64;
/// How long a command whose time is over has to end by itself.
const TERM_WAIT: Duration = Duration::from_secs(5);
/// How long a sandbox may take to hear that the client is gone, and the client to hear of the end.
const FAREWELL_WAIT: Duration = Duration::from_secs(2);

/// What a command prints, and how it ends.
pub(super) trait Command {
    /// The next thing. After [`ExecOutput::End`] there is none; without one it is not known how the
    /// command ended.
    async fn next(&mut self) -> Option<ExecOutput>;
}

/// What can be done to a command.
pub(super) trait Controls {
    /// Why it was not done.
    type Error: std::error::Error;
    /// Hands it input; returns once it is taken.
    async fn input(&self, bytes: Bytes) -> Result<(), Self::Error>;
    /// Says that there is no more.
    async fn close_input(&self) -> Result<(), Self::Error>;
    /// Sends its process group a signal.
    async fn signal(&self, signal: i32) -> Result<(), Self::Error>;
    /// Gives its terminal another size.
    async fn resize(&self, size: TerminalSize) -> Result<(), Self::Error>;
}

/// Why a connection ended before the command did.
#[derive(Debug, Error)]
pub(super) enum Gone {
    /// The client is not there any more, or the daemon ends.
    #[error("the connection was closed")]
    Closed,
    /// The client does not keep to the protocol.
    #[error("the client sent what it must not: {what}")]
    Broken {
        /// What that was.
        what: String,
    },
    /// The connection failed.
    #[error("the connection failed")]
    Failed(#[source] io::Error),
}

/// Runs until the command ends and the client has been told, or one of them is gone. A command whose
/// client is gone gets SIGHUP.
pub(super) async fn bridge<C: Controls>(
    command: &mut impl Command,
    controls: &C,
    timeout: Option<Duration>,
    input: impl AsyncRead + Unpin,
    output: impl AsyncWrite + Unpin,
) -> Result<(), Gone> {
    let (lines, waiting) = channel(LINES_MAX);
    let (fed, to_feed) = unbounded_channel();
    let (acts, to_act) = channel(ACTS_MAX);
    let (untaken, timed_out) = (Cell::new(0), Cell::new(false));

    let mut write = pin!(write(waiting, output));
    let ended = {
        let at_work = async {
            tokio::join!(
                print(command, &timed_out, &lines),
                feed(to_feed, controls, &untaken, &lines),
                act(to_act, controls),
                limit(timeout, controls, &timed_out),
            );
            std::future::pending::<()>().await;
        };
        tokio::select! {
            written = &mut write => written,
            gone = steer(input, &fed, &acts, &untaken) => Err(gone),
            () = at_work => Ok(()),
        }
    };
    let Err(gone) = ended else {
        return Ok(());
    };
    hang_up(controls).await;
    if !matches!(gone, Gone::Failed(_)) {
        // If it is the daemon that ends, the client is still there.
        let farewell = async {
            let end = ExecEnd {
                exit_code: UNKNOWN_END,
                error: Some("the connection ended before the command did".to_owned()),
                ..ExecEnd::default()
            };
            if lines.send(ExecOutput::End(end)).await.is_ok() {
                write.await
            } else {
                Ok(())
            }
        };
        match tokio::time::timeout(FAREWELL_WAIT, farewell).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => debug!(%error, "the client did not wait for the end"),
            Err(_) => debug!("the client does not read"),
        }
    }
    Err(gone)
}

/// The exit code that says that how a command ended is not known.
pub(super) const UNKNOWN_END: u8 = 125;
/// The exit code of a command whose time was over.
const TIMED_OUT: u8 = 124;

/// What the client has sent for the command to read.
enum Fed {
    Bytes(Bytes),
    End,
}

enum Act {
    Signal(i32),
    Resize(TerminalSize),
}

/// Reads what the client sends, until it is gone.
async fn steer(
    input: impl AsyncRead + Unpin,
    fed: &UnboundedSender<Fed>,
    acts: &Sender<Act>,
    untaken: &Cell<usize>,
) -> Gone {
    let broken = |what: &str| Gone::Broken {
        what: what.to_owned(),
    };
    let mut lines = FramedRead::new(input, LinesCodec::new_with_max_length(LINE_BYTES_MAX));
    let mut at_end = false;
    loop {
        let line = match lines.next().await {
            Some(Ok(line)) => line,
            Some(Err(LinesCodecError::MaxLineLengthExceeded)) => return broken("a long line"),
            Some(Err(LinesCodecError::Io(error))) => return Gone::Failed(error),
            None => return Gone::Closed,
        };
        let handed_on = match serde_json::from_str(&line) {
            Ok(ExecInput::Stdin(payload)) => {
                let Ok(bytes) = payload.into_bytes() else {
                    return broken("bytes that are not base64");
                };
                let after = untaken.get().saturating_add(bytes.len());
                if bytes.len() > INPUT_CHUNK_MAX || after > INPUT_WINDOW {
                    return broken("more input than it may");
                }
                if at_end && !bytes.is_empty() {
                    return broken("input after its end");
                }
                untaken.set(after);
                // Nothing is not worth a place in the queue, which the window alone bounds.
                bytes.is_empty() || fed.send(Fed::Bytes(bytes.into())).is_ok()
            }
            Ok(ExecInput::CloseStdin) => {
                std::mem::replace(&mut at_end, true) || fed.send(Fed::End).is_ok()
            }
            Ok(ExecInput::Signal(signal)) => match Signal::from_named_raw(signal) {
                Some(_) => acts.try_send(Act::Signal(signal)).is_ok(),
                None => return broken("a signal that there is not"),
            },
            Ok(ExecInput::Resize(size)) => acts.try_send(Act::Resize(size)).is_ok(),
            Err(error) => {
                return Gone::Broken {
                    what: error.to_string(),
                };
            }
        };
        if !handed_on {
            // A sandbox that is frozen, for so many signals: it must still be seen if the client goes.
            debug!("more than can wait for the command");
        }
    }
}

/// Hands input on, and says how much was taken. What a command does not want is thrown away, as a
/// closed pipe would.
async fn feed<C: Controls>(
    mut queue: UnboundedReceiver<Fed>,
    controls: &C,
    untaken: &Cell<usize>,
    lines: &Sender<ExecOutput>,
) {
    while let Some(fed) = queue.recv().await {
        let done = match fed {
            Fed::Bytes(bytes) => {
                let len = bytes.len();
                let done = controls.input(bytes).await;
                untaken.set(untaken.get().saturating_sub(len));
                let bytes = u64::try_from(len).unwrap_or(u64::MAX);
                if lines.send(ExecOutput::Taken { bytes }).await.is_err() {
                    return;
                }
                done
            }
            Fed::End => controls.close_input().await,
        };
        if let Err(error) = done {
            debug!(%error, "the command takes no input");
        }
    }
}

async fn act<C: Controls>(mut queue: Receiver<Act>, controls: &C) {
    while let Some(act) = queue.recv().await {
        let done = match act {
            Act::Signal(signal) => controls.signal(signal).await,
            Act::Resize(size) => controls.resize(size).await,
        };
        if let Err(error) = done {
            debug!(%error, "the command could not be steered");
        }
    }
}

/// Ends the command when its time is over, by force if it must be.
async fn limit<C: Controls>(timeout: Option<Duration>, controls: &C, timed_out: &Cell<bool>) {
    let Some(timeout) = timeout else { return };
    tokio::time::sleep(timeout).await;
    timed_out.set(true);
    for signal in [Signal::TERM, Signal::KILL] {
        if let Err(error) = controls.signal(signal.as_raw()).await {
            debug!(%error, "the command could not be ended");
        }
        tokio::time::sleep(TERM_WAIT).await;
    }
}

/// Takes what the command prints, up to its end.
async fn print(command: &mut impl Command, timed_out: &Cell<bool>, lines: &Sender<ExecOutput>) {
    loop {
        let mut output = command.next().await.unwrap_or_else(|| {
            ExecOutput::End(ExecEnd {
                exit_code: UNKNOWN_END,
                error: Some("the sandbox ended, or was started anew".to_owned()),
                ..ExecEnd::default()
            })
        });
        let is_end = match &mut output {
            ExecOutput::End(end) => {
                end.timed_out = timed_out.get();
                if end.timed_out {
                    end.exit_code = TIMED_OUT;
                }
                true
            }
            _ => false,
        };
        if lines.send(output).await.is_err() || is_end {
            return;
        }
    }
}

/// Writes lines up to the end.
async fn write(
    mut lines: Receiver<ExecOutput>,
    mut output: impl AsyncWrite + Unpin,
) -> Result<(), Gone> {
    while let Some(line) = lines.recv().await {
        let mut text = serde_json::to_vec(&line).map_err(|error| Gone::Failed(error.into()))?;
        text.push(b'\n');
        output.write_all(&text).await.map_err(Gone::Failed)?;
        if matches!(line, ExecOutput::End(_)) {
            break;
        }
    }
    output.flush().await.map_err(Gone::Failed)
}

/// Tells a command that whoever waited for it is gone.
async fn hang_up<C: Controls>(controls: &C) {
    let farewell = async {
        if let Err(error) = controls.signal(Signal::HUP.as_raw()).await {
            debug!(%error, "the command could not be told that its client is gone");
        }
        if let Err(error) = controls.close_input().await {
            debug!(%error, "the command's input could not be closed");
        }
    };
    if tokio::time::timeout(FAREWELL_WAIT, farewell).await.is_err() {
        debug!("the sandbox does not answer");
    }
}
