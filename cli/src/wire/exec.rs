//! The lines that a connection carries once a command in a sandbox has begun.
//!
//! ```text
//! client  {"sandbox_exec":{"sandbox":"sb1","cmd":"cat", ...}}
//! daemon  "accepted"
//! daemon  {"ok":{"sandbox":"sb1f0c"}}                            from here on both may send at any time
//! daemon  {"started":{"pid":12}}                                 not if it could not be started
//! client  {"stdin":"text"}  {"stdin":{"base64":"/w=="}}          at most INPUT_CHUNK_MAX bytes
//! daemon  {"taken":{"bytes":4}}                                  so much of it has reached the command
//! client  "close_stdin"  {"signal":2}  {"resize":{"cols":80,"rows":24}}
//! daemon  {"stdout":"text"}  {"stderr":...}  {"terminal":...}    what it prints
//! daemon  {"lost":{"bytes":10}}                                  so much that it printed is not there any more
//! daemon  {"end":{"exit_code":0, ...}}                           the last line
//! ```
//!
//! Nothing piles up anywhere. The client has at most [`INPUT_WINDOW`] bytes of input on the way,
//! so that signals never wait behind input that the command does not read; more is an error that
//! ends the connection. Output waits in the sandbox until the client has read what came before it.
//!
//! A client that goes away before the end hangs up, as a terminal does: the command's process group
//! gets SIGHUP, and goes on only if it minds that not. So does the daemon's own end.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::{Deserialize, Serialize};
use thiserror::Error;

/// Most bytes of input in one line.
pub const INPUT_CHUNK_MAX: usize = 32 << 10;
/// Most bytes of input that a client may have sent without having been told that they were taken.
pub const INPUT_WINDOW: usize = 256 << 10;

/// The answer to [`super::SandboxExec`]: the sandbox was reached.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecBegun {
    /// Its id.
    pub sandbox: String,
}

/// How large a terminal is, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TerminalSize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

/// A line from the client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecInput {
    /// Input for the command.
    Stdin(Payload),
    /// There is no more.
    CloseStdin,
    /// Send its process group this signal.
    Signal(i32),
    /// Its terminal has another size now.
    Resize(TerminalSize),
}

/// A line from the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ExecOutput {
    /// It runs.
    Started {
        /// Its process, as seen in the sandbox.
        pid: u32,
    },
    /// It printed this.
    Stdout(Payload),
    /// It printed this on its standard error.
    Stderr(Payload),
    /// It printed this on its terminal.
    Terminal(Payload),
    /// Something that it printed is not there any more.
    Lost {
        /// So much.
        bytes: u64,
    },
    /// Input that has reached it, so that as much more may be sent.
    Taken {
        /// So much.
        bytes: u64,
    },
    /// It has ended, or could not be started. The last line.
    End(ExecEnd),
}

/// How a command ended.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExecEnd {
    /// Its exit code. 128 and the signal if one ended it, 124 if its time was over, 125 if how it
    /// ended is not known, 126 and 127 if it could not be started.
    pub exit_code: u8,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether it was ended because its time was over.
    pub timed_out: bool,
    /// Why it could not be started, or how it ended is not known.
    pub error: Option<String>,
}

/// Bytes: as text where they are that, in base 64 where they are not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Payload {
    /// The usual form.
    Text(String),
    /// The form for the others.
    Encoded {
        /// Base 64 with padding ([RFC 4648, section 4](https://www.rfc-editor.org/rfc/rfc4648#section-4)).
        base64: String,
    },
}

/// A payload says that it is base 64, and is not.
#[derive(Debug, Error)]
#[error("the bytes are not base 64")]
pub struct PayloadError {
    /// Where it goes wrong.
    #[source]
    source: base64::DecodeError,
}

impl From<&[u8]> for Payload {
    fn from(bytes: &[u8]) -> Self {
        match std::str::from_utf8(bytes) {
            Ok(text) => Self::Text(text.to_owned()),
            Err(_) => Self::Encoded {
                base64: STANDARD.encode(bytes),
            },
        }
    }
}

impl Payload {
    /// The bytes.
    ///
    /// # Errors
    /// When they are not encoded as they should be.
    pub fn into_bytes(self) -> Result<Vec<u8>, PayloadError> {
        match self {
            Self::Text(text) => Ok(text.into_bytes()),
            Self::Encoded { base64 } => STANDARD
                .decode(base64)
                .map_err(|source| PayloadError { source }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_bytes_travel_and_text_stays_readable() {
        for bytes in [
            &b""[..],
            b"plain \"text\"\n",
            "gr\u{fc}n".as_bytes(),
            b"\xff\x00\xfe",
            b"\xc3",
        ] {
            let line = serde_json::to_string(&ExecOutput::Stdout(bytes.into())).unwrap();
            assert!(!line.contains('\n'), "{line}");
            let ExecOutput::Stdout(back) = serde_json::from_str(&line).unwrap() else {
                panic!("{line}");
            };
            assert_eq!(back.into_bytes().unwrap(), bytes);
        }
        let wrong: Payload = serde_json::from_str(r#"{"base64":"/w="}"#).unwrap();
        assert!(wrong.into_bytes().is_err());
    }

    #[test]
    fn the_documented_spelling_is_kept() {
        let text = |value: &ExecInput| serde_json::to_string(value).unwrap();
        let size = TerminalSize { cols: 80, rows: 24 };
        assert_eq!(
            text(&ExecInput::Stdin(b"\xff"[..].into())),
            r#"{"stdin":{"base64":"/w=="}}"#
        );
        assert_eq!(text(&ExecInput::CloseStdin), r#""close_stdin""#);
        assert_eq!(text(&ExecInput::Signal(2)), r#"{"signal":2}"#);
        assert_eq!(
            text(&ExecInput::Resize(size)),
            r#"{"resize":{"cols":80,"rows":24}}"#
        );
        let text = |value: &ExecOutput| serde_json::to_string(value).unwrap();
        assert_eq!(
            text(&ExecOutput::Started { pid: 12 }),
            r#"{"started":{"pid":12}}"#
        );
        assert_eq!(
            text(&ExecOutput::Taken { bytes: 4 }),
            r#"{"taken":{"bytes":4}}"#
        );
        assert_eq!(
            text(&ExecOutput::End(ExecEnd::default())),
            r#"{"end":{"exit_code":0,"signal":null,"timed_out":false,"error":null}}"#
        );
    }
}
