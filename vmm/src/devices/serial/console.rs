//! The console: what the guest wrote to its serial port, within limits.
//!
//! Three readers: a ring of the last [`KEPT_BYTES`], which a failure report quotes; a log file,
//! which never grows past its limit (when it would, it starts anew with the end of what it had);
//! and attached clients, which lose what they do not read in time, so that a slow terminal cannot
//! stop a guest. Invariant: everything here is bounded, whatever the guest writes.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Seek, SeekFrom, Write};
use std::os::unix::net::UnixStream;

use crate::devices::sockets::hung_up;

/// Bytes of console output that are kept in memory.
pub const KEPT_BYTES: usize = 64 * 1024;
/// Least size limit of a log file, in bytes.
pub const LOG_LIMIT_MIN: u64 = 2 * KEPT_BYTES as u64;
/// Most clients attached at once.
pub const CLIENTS_MAX: usize = 8;

const LINE_MAX: usize = 512;
/// How Linux begins the line that tells why it gave up (`kernel/panic.c`).
const PANIC: &[u8] = b"Kernel panic - not syncing";

struct LogFile {
    file: File,
    limit: u64,
    written: u64,
    unwritten: Vec<u8>,
}

/// The console of one machine.
#[derive(Default)]
pub struct Console {
    kept: VecDeque<u8>,
    line: Vec<u8>,
    panic: Option<String>,
    log: Option<LogFile>,
    clients: Vec<UnixStream>,
}

impl std::fmt::Debug for Console {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Console")
            .field("kept", &self.kept.len())
            .field("panic", &self.panic)
            .field("clients", &self.clients.len())
            .finish_non_exhaustive()
    }
}

impl Console {
    /// A console that also writes to `file`, which is emptied and never grows past `limit` bytes
    /// (at least [`LOG_LIMIT_MIN`]).
    ///
    /// # Errors
    /// When the file cannot be emptied.
    pub fn with_log(mut file: File, limit: u64) -> io::Result<Self> {
        file.set_len(0)?;
        file.seek(SeekFrom::Start(0))?;
        let log = LogFile {
            file,
            limit: limit.max(LOG_LIMIT_MIN),
            written: 0,
            unwritten: Vec::new(),
        };
        let mut console = Self::default();
        console.log = Some(log);
        Ok(console)
    }

    /// Sends what comes from now on to `client` as well, after what is kept in memory.
    ///
    /// # Errors
    /// When there are [`CLIENTS_MAX`] already, or the socket cannot be made non-blocking.
    pub fn attach(&mut self, mut client: UnixStream) -> io::Result<()> {
        // A client that went away is noticed only when something is printed.
        self.clients.retain(|client| !hung_up(client));
        if self.clients.len() >= CLIENTS_MAX {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        client.set_nonblocking(true)?;
        let (front, back) = self.kept.as_slices();
        for part in [front, back] {
            if !deliver(&mut client, part) {
                return Ok(());
            }
        }
        self.clients.push(client);
        Ok(())
    }

    /// The line with which the guest's kernel gave up, if it did.
    #[must_use]
    pub fn panic(&self) -> Option<&str> {
        self.panic.as_deref()
    }

    /// The last `count` lines, with whatever a guest may print made harmless to a terminal.
    #[must_use]
    pub fn last_lines(&self, count: usize) -> Vec<String> {
        let bytes: Vec<u8> = self.kept.iter().copied().collect();
        let lines: Vec<&[u8]> = bytes
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.trim_ascii().is_empty())
            .collect();
        let first = lines.len().saturating_sub(count);
        lines[first..].iter().map(|line| printable(line)).collect()
    }

    /// Writes what waits for the end of a line to the log file.
    pub fn flush(&mut self) {
        let Some(log) = &mut self.log else { return };
        if let Err(error) = log.flush(&self.kept) {
            tracing::warn!(%error, "the console log ends: it cannot be written");
            self.log = None;
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.kept.extend(bytes);
        let excess = self.kept.len().saturating_sub(KEPT_BYTES);
        self.kept.drain(..excess);
        self.clients.retain_mut(|client| deliver(client, bytes));
        self.watch(bytes);
        if let Some(log) = &mut self.log {
            log.unwritten.extend(bytes);
            if bytes.contains(&b'\n') || log.unwritten.len() >= 4096 {
                self.flush();
            }
        }
    }

    fn watch(&mut self, bytes: &[u8]) {
        for byte in bytes {
            if *byte == b'\n' {
                if self.panic.is_none() && contains(&self.line, PANIC) {
                    self.panic = Some(printable(&self.line));
                }
                self.line.clear();
            } else if self.line.len() < LINE_MAX {
                self.line.push(*byte);
            }
        }
    }
}

impl Write for Console {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.push(bytes);
        Ok(bytes.len())
    }

    /// Does nothing: the serial port asks for it after every byte.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for Console {
    fn drop(&mut self) {
        Console::flush(self);
    }
}

impl LogFile {
    fn flush(&mut self, kept: &VecDeque<u8>) -> io::Result<()> {
        let len = self.unwritten.len() as u64;
        if self.written + len > self.limit {
            // What is kept in memory ends with what is unwritten.
            self.file.set_len(0)?;
            self.file.seek(SeekFrom::Start(0))?;
            let (front, back) = kept.as_slices();
            self.file.write_all(front)?;
            self.file.write_all(back)?;
            self.written = kept.len() as u64;
        } else {
            self.file.write_all(&self.unwritten)?;
            self.written += len;
        }
        self.unwritten.clear();
        Ok(())
    }
}

/// Whether the client is still there.
fn deliver(client: &mut UnixStream, bytes: &[u8]) -> bool {
    // What a full socket does not take is lost to this client.
    match client.write_all(bytes) {
        Ok(()) => true,
        Err(error) => matches!(
            error.kind(),
            io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted
        ),
    }
}

fn contains(line: &[u8], word: &[u8]) -> bool {
    line.windows(word.len()).any(|window| window == word)
}

fn printable(line: &[u8]) -> String {
    String::from_utf8_lossy(line)
        .chars()
        .filter(|char| !char.is_control() || *char == '\t')
        .collect()
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[test]
    fn a_panic_is_found_and_the_last_lines_are_harmless() {
        let mut console = Console::default();
        console
            .write_all(b"one\r\n\x1b[31mKernel panic - not syncing: VFS\r\nlast")
            .unwrap();
        assert_eq!(console.panic(), Some("[31mKernel panic - not syncing: VFS"));
        assert_eq!(
            console.last_lines(2),
            ["[31mKernel panic - not syncing: VFS", "last"]
        );
    }

    #[test]
    fn memory_and_log_stay_within_their_limits() {
        let mut log = tempfile::tempfile().unwrap();
        let mut console = Console::with_log(log.try_clone().unwrap(), 0).unwrap();
        let line = [b'x'; 1023];
        for number in 0..1000u32 {
            console.write_all(&line).unwrap();
            console
                .write_all(format!("\n{number}\n").as_bytes())
                .unwrap();
            assert!(log.metadata().unwrap().len() <= LOG_LIMIT_MIN);
            assert!(console.kept.len() <= KEPT_BYTES);
        }
        drop(console);
        let mut text = String::new();
        log.seek(SeekFrom::Start(0)).unwrap();
        log.read_to_string(&mut text).unwrap();
        assert!(text.len() >= KEPT_BYTES / 2);
        assert!(text.ends_with("x\n999\n"), "ends with the newest line");
    }

    #[test]
    fn endless_lines_are_bounded() {
        let mut console = Console::default();
        for _ in 0..100 {
            console.write_all(&[b'y'; 4096]).unwrap();
        }
        assert_eq!(console.line.len(), LINE_MAX);
    }

    #[test]
    fn a_client_gets_history_first_and_cannot_hold_up_the_guest() {
        let (mut near, far) = UnixStream::pair().unwrap();
        let mut console = Console::default();
        console.write_all(b"before ").unwrap();
        console.attach(far).unwrap();
        console.write_all(b"after").unwrap();
        let mut got = [0; 12];
        near.read_exact(&mut got).unwrap();
        assert_eq!(&got, b"before after");
        for _ in 0..10_000 {
            console.write_all(&[b'z'; 1000]).unwrap();
        }
        drop(near);
        console.write_all(b"gone").unwrap();
        assert!(console.clients.is_empty());
    }

    #[test]
    fn clients_are_limited_and_those_that_went_away_make_room() {
        let mut console = Console::default();
        let mut near = Vec::new();
        for _ in 0..CLIENTS_MAX {
            let (one, other) = UnixStream::pair().unwrap();
            console.attach(other).unwrap();
            near.push(one);
        }
        assert!(console.attach(UnixStream::pair().unwrap().1).is_err());
        near.pop();
        let (_kept, other) = UnixStream::pair().unwrap();
        console.attach(other).unwrap();
    }
}
