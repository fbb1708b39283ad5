//! Reading and writing the lines: bounded, because a line comes from another process.

use std::io::{self, BufRead, Read, Write};

use serde::Serialize;
use serde::de::DeserializeOwned;
use thiserror::Error;

/// Longest line a daemon accepts.
pub const REQUEST_BYTES_MAX: usize = 1 << 20;
/// Longest line a client accepts: a list of about half a million snapshots.
pub const REPLY_BYTES_MAX: usize = 256 << 20;

/// Why a line could not be read.
#[derive(Debug, Error)]
pub enum LineError {
    /// The peer closed the connection between two lines.
    #[error("the connection was closed")]
    Closed,
    /// The peer closed the connection within a line.
    #[error("the connection was closed in the middle of a line")]
    Torn,
    /// The line is too long.
    #[error("the line is longer than {max} bytes")]
    TooLong {
        /// The bound.
        max: usize,
    },
    /// The line is not what was expected.
    #[error("the line cannot be understood")]
    Malformed {
        /// The first thing wrong with it.
        #[source]
        source: serde_json::Error,
    },
    /// The connection failed.
    #[error("the connection failed")]
    Io {
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// Reads the next line into `buffer` and decodes it.
///
/// # Errors
/// [`LineError`]; after [`LineError::Malformed`] the next line can still be read, after any other
/// the connection is of no more use.
pub fn read<T: DeserializeOwned>(
    reader: &mut impl BufRead,
    buffer: &mut Vec<u8>,
    max: usize,
) -> Result<T, LineError> {
    buffer.clear();
    let bound = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    reader
        .take(bound)
        .read_until(b'\n', buffer)
        .map_err(|source| LineError::Io { source })?;
    match buffer.last() {
        None => Err(LineError::Closed),
        Some(b'\n') => serde_json::from_slice(&buffer[..buffer.len() - 1])
            .map_err(|source| LineError::Malformed { source }),
        Some(_) if buffer.len() > max => Err(LineError::TooLong { max }),
        Some(_) => Err(LineError::Torn),
    }
}

/// Encodes a value and writes it as one line with one call.
///
/// # Errors
/// When the connection fails, or the value cannot be encoded.
pub fn write(writer: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(value)?;
    line.push(b'\n');
    writer.write_all(&line)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::Request;
    use std::io::BufReader;

    fn read_all(input: &[u8], max: usize) -> Vec<Result<Request, LineError>> {
        let mut reader = BufReader::with_capacity(7, input);
        let mut buffer = Vec::new();
        let mut seen = Vec::new();
        loop {
            let line = read(&mut reader, &mut buffer, max);
            let last = !matches!(line, Ok(_) | Err(LineError::Malformed { .. }));
            seen.push(line);
            if last {
                return seen;
            }
        }
    }

    #[test]
    fn a_malformed_line_leaves_the_next_one_readable() {
        let nested = "[".repeat(100_000);
        let hostile = [
            "",
            "nonsense",
            "{}",
            r#"{"status":{"extra":1}}"#,
            r#"{"unknown":{}}"#,
            r#"{"stop":{},"status":{}}"#,
            "\u{0}\u{7}",
            &nested,
        ];
        for line in hostile {
            let input = format!("{line}\n{{\"status\":{{}}}}\n");
            let seen = read_all(input.as_bytes(), REQUEST_BYTES_MAX);
            assert!(
                matches!(seen[0], Err(LineError::Malformed { .. })),
                "{:.40}",
                line
            );
            assert!(matches!(seen[1], Ok(Request::Status(_))), "{:.40}", line);
            assert!(matches!(seen[2], Err(LineError::Closed)), "{:.40}", line);
        }
        let seen = read_all(b"\"\xff\"\n", REQUEST_BYTES_MAX);
        assert!(matches!(seen[0], Err(LineError::Malformed { .. })));
    }

    #[test]
    fn long_and_torn_lines_end_the_connection() {
        let seen = read_all(&[b'x'; 65], 64);
        assert!(matches!(seen[0], Err(LineError::TooLong { max: 64 })));
        let seen = read_all(br#"{"status":"#, 64);
        assert!(matches!(seen[0], Err(LineError::Torn)));
        let mut fits = vec![b' '; 64];
        fits.push(b'\n');
        assert!(matches!(
            read_all(&fits, 64)[0],
            Err(LineError::Malformed { .. })
        ));
    }
}
