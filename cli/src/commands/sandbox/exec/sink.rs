//! Where what a command prints goes: to the same descriptors here, or into lines of JSON.

use std::io;
use std::os::fd::{AsFd, BorrowedFd};

use super::descriptors::write_fully;
use crate::error::{ApiError, ErrorKind};
use crate::output::Output;
use crate::wire::exec::{ExecEnd, ExecOutput};

/// Which stream something was printed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stream {
    /// Standard output, or the terminal.
    Out,
    /// Standard error.
    Err,
}

/// Takes what a command prints.
pub(super) trait Sink {
    /// It printed something.
    ///
    /// # Errors
    /// When it cannot be written; [`ErrorKind::OutputClosed`] if nobody reads.
    fn printed(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), ApiError>;
    /// Something that it printed is lost.
    ///
    /// # Errors
    /// When it cannot be written.
    fn lost(&mut self, bytes: u64) -> Result<(), ApiError>;
    /// It ended.
    ///
    /// # Errors
    /// When it cannot be written.
    fn ended(&mut self, end: &ExecEnd) -> Result<(), ApiError>;
}

/// The sink for how output was asked for.
pub(super) fn to(output: &Output) -> Box<dyn Sink> {
    match output.json {
        true => Box::new(Lines {
            output: *output,
            tails: [Vec::new(), Vec::new()],
        }),
        false => Box::new(Plain { output: *output }),
    }
}

/// To stdout and stderr, as it is.
struct Plain {
    output: Output,
}

impl Sink for Plain {
    fn printed(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), ApiError> {
        match stream {
            Stream::Out => write(io::stdout().as_fd(), "standard output", bytes),
            Stream::Err => write(io::stderr().as_fd(), "standard error", bytes),
        }
    }

    fn lost(&mut self, bytes: u64) -> Result<(), ApiError> {
        let what = format!("warning: {bytes} bytes of the output are lost");
        self.output.note(&what);
        Ok(())
    }

    fn ended(&mut self, _: &ExecEnd) -> Result<(), ApiError> {
        Ok(())
    }
}

fn write(to: BorrowedFd<'_>, name: &str, bytes: &[u8]) -> Result<(), ApiError> {
    write_fully(to, bytes).map_err(|error| {
        let kind = match error.kind() {
            io::ErrorKind::BrokenPipe => ErrorKind::OutputClosed,
            _ => ErrorKind::Failed,
        };
        ApiError::new(kind, format!("cannot write to {name}")).caused_by(&error)
    })
}

/// Lines of JSON on stdout. A character whose bytes came in two pieces is kept whole, so that what is
/// text stays text.
struct Lines {
    output: Output,
    /// The beginning of a character, of either stream.
    tails: [Vec<u8>; 2],
}

impl Lines {
    fn line(&self, line: &ExecOutput) -> Result<(), ApiError> {
        let text = serde_json::to_string(line).map_err(|error| {
            ApiError::new(ErrorKind::Internal, "cannot encode the output").caused_by(&error)
        })?;
        self.output.line(text)
    }
}

impl Sink for Lines {
    fn printed(&mut self, stream: Stream, bytes: &[u8]) -> Result<(), ApiError> {
        let tail = &mut self.tails[usize::from(stream == Stream::Err)];
        let mut whole = std::mem::take(tail);
        whole.extend_from_slice(bytes);
        *tail = whole.split_off(whole.len() - unfinished(&whole));
        if whole.is_empty() {
            return Ok(());
        }
        let whole = whole.as_slice().into();
        self.line(&match stream {
            Stream::Out => ExecOutput::Stdout(whole),
            Stream::Err => ExecOutput::Stderr(whole),
        })
    }

    fn lost(&mut self, bytes: u64) -> Result<(), ApiError> {
        self.line(&ExecOutput::Lost { bytes })
    }

    fn ended(&mut self, end: &ExecEnd) -> Result<(), ApiError> {
        let [out, err] = std::mem::take(&mut self.tails);
        if !out.is_empty() {
            self.line(&ExecOutput::Stdout(out.as_slice().into()))?;
        }
        if !err.is_empty() {
            self.line(&ExecOutput::Stderr(err.as_slice().into()))?;
        }
        self.line(&ExecOutput::End(end.clone()))
    }
}

/// How many bytes at the end are the beginning of a character, if all before them is text.
fn unfinished(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => bytes.len() - error.valid_up_to(),
        _ => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_beginning_of_a_character_is_kept_back() {
        for (bytes, kept) in [
            (&b"plain"[..], 0),
            (b"", 0),
            (b"gr\xc3", 1),
            (b"\xf0\x9f\x98", 3),
            (b"\xf0\x9f\x98\x80", 0),
            // Not text anyway.
            (b"\xff", 0),
            (b"\xff\xc3", 0),
            (b"\xc3(", 0),
        ] {
            assert_eq!(unfinished(bytes), kept, "{bytes:?}");
        }
    }
}
