//! The log of a sandbox: what happened to it and in it, a line of JSON each.
//!
//! `run/sandboxes/<id>.log` in the store; what bubblewrap and the agent complain of is in
//! `<id>.errors` beside it. A log that has grown is set aside once, as `<id>.log.1`, so that it is bounded.

use std::fs::{self, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::wire::sandbox::SandboxLogLine;

/// A log of this size is set aside; a console's has so much at most.
pub(super) const BYTES_MAX: u64 = 1 << 20;
/// Longest message that is kept.
const MESSAGE_MAX: usize = 4096;

/// The logs of all sandboxes.
#[derive(Debug)]
pub(super) struct Logs {
    dir: PathBuf,
}

impl Logs {
    /// Logs below a directory, which is there.
    pub(super) fn new(dir: &Path) -> Self {
        Self {
            dir: dir.to_owned(),
        }
    }

    fn path(&self, id: &str, ending: &str) -> PathBuf {
        self.dir.join(format!("{id}.{ending}"))
    }

    /// Where a sandbox's processes write complaints.
    pub(super) fn errors(&self, id: &str) -> PathBuf {
        self.path(id, "errors")
    }

    /// Where the console of a virtual machine is kept.
    pub(super) fn console(&self, id: &str) -> PathBuf {
        self.path(id, "console")
    }

    /// What a console said from a place on, and where to read on: not behind a character whose rest is
    /// still to come. One that was begun anew since is read from its beginning.
    pub(super) fn read_console(&self, id: &str, offset: u64) -> io::Result<(String, u64)> {
        let mut file = match fs::File::open(self.console(id)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok((String::new(), 0)),
            other => other?,
        };
        let len = file.metadata()?.len();
        let from = if offset > len { 0 } else { offset };
        file.seek(io::SeekFrom::Start(from))?;
        let mut bytes = Vec::new();
        file.take(BYTES_MAX).read_to_end(&mut bytes)?;
        bytes.truncate(whole_characters(&bytes));
        let read = u64::try_from(bytes.len()).unwrap_or(0);
        Ok((String::from_utf8_lossy(&bytes).into_owned(), from + read))
    }

    /// Notes something. A note that cannot be written goes to the daemon's log.
    pub(super) fn note(&self, id: &str, level: &str, message: &str) {
        let line = SandboxLogLine {
            at: jiff::Timestamp::now().to_string(),
            level: level.to_owned(),
            message: shortened(message),
        };
        if let Err(error) = self.write(id, &line) {
            tracing::warn!(sandbox = id, message, %error, "cannot write to a sandbox's log");
        }
    }

    fn write(&self, id: &str, line: &SandboxLogLine) -> io::Result<()> {
        let path = self.path(id, "log");
        if fs::metadata(&path).is_ok_and(|meta| meta.len() > BYTES_MAX) {
            fs::rename(&path, self.path(id, "log.1"))?;
        }
        let mut text = serde_json::to_string(line)?;
        text.push('\n');
        // Whole lines: appending writers do not mix.
        let mut file = OpenOptions::new()
            .create(true)
            .append(true)
            .mode(0o600)
            .open(path)?;
        file.write_all(text.as_bytes())
    }

    /// The newest lines, oldest first. A line that a crash cut off is left out.
    pub(super) fn read(&self, id: &str, limit: usize) -> io::Result<Vec<SandboxLogLine>> {
        let mut lines = Vec::new();
        for ending in ["log.1", "log"] {
            match fs::read_to_string(self.path(id, ending)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
                Ok(text) => {
                    lines.extend(
                        text.lines()
                            .filter_map(|line| serde_json::from_str(line).ok()),
                    );
                }
            }
        }
        Ok(lines.split_off(lines.len().saturating_sub(limit)))
    }

    /// Removes the logs of all sandboxes but some. A crash may come between the end of a sandbox and that
    /// of its logs, and then no row tells of them.
    pub(super) fn remove_but(&self, is_kept: impl Fn(&str) -> bool) {
        let files = match fs::read_dir(&self.dir) {
            Ok(files) => files,
            Err(error) => {
                return tracing::warn!(dir = %self.dir.display(), %error, "cannot look for old logs");
            }
        };
        for file in files.flatten() {
            let name = file.file_name();
            // Nothing else is written here.
            let id = name.to_str().and_then(|name| Some(name.split_once('.')?.0));
            if let Some(id) = id.filter(|id| !is_kept(id)) {
                self.remove(id);
            }
        }
    }

    /// Removes the logs of a sandbox.
    pub(super) fn remove(&self, id: &str) {
        for ending in ["log", "log.1", "errors", "console"] {
            let path = self.path(id, ending);
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "a sandbox's log stays");
                }
                _ => {}
            }
        }
    }
}

fn shortened(message: &str) -> String {
    let mut end = message.len().min(MESSAGE_MAX);
    while !message.is_char_boundary(end) {
        end -= 1;
    }
    message[..end].to_owned()
}

/// How many of the bytes are before a character that is cut off at their end.
fn whole_characters(bytes: &[u8]) -> usize {
    let rest = bytes
        .utf8_chunks()
        .last()
        .map_or(&[][..], |last| last.invalid());
    let is_cut = std::str::from_utf8(rest).is_err_and(|error| error.error_len().is_none());
    match is_cut {
        true => bytes.len() - rest.len(),
        false => bytes.len(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logs_that_a_crash_left_of_killed_sandboxes_go() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path());
        for id in ["kept", "gone"] {
            logs.note(id, "info", "x");
            fs::write(logs.errors(id), "y").unwrap();
        }
        fs::write(logs.path("old", "log.1"), "z").unwrap();
        logs.remove_but(|id| id == "kept");
        let files = fs::read_dir(dir.path()).unwrap();
        let mut names: Vec<_> = files.map(|file| file.unwrap().file_name()).collect();
        names.sort();
        assert_eq!(names, ["kept.errors", "kept.log"]);
    }

    #[test]
    fn a_console_is_read_in_pieces_that_cut_no_character() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path());
        assert_eq!(logs.read_console("a", 0).unwrap(), (String::new(), 0));
        let all = "a\u{e9}\u{20ac}\u{1f600}".as_bytes();
        let (mut read, mut at) = (String::new(), 0);
        for end in 1..=all.len() {
            fs::write(logs.console("a"), &all[..end]).unwrap();
            let (text, next) = logs.read_console("a", at).unwrap();
            read.push_str(&text);
            at = next;
        }
        assert_eq!(read.as_bytes(), all);
        // What is no text is replaced, and does not keep what follows from being read.
        fs::write(logs.console("a"), b"\xff\xe2\x82x\xc3").unwrap();
        assert_eq!(
            logs.read_console("a", 0).unwrap(),
            ("\u{fffd}\u{fffd}x".to_owned(), 4)
        );
    }

    #[test]
    fn the_newest_lines_are_told_oldest_first_and_a_log_does_not_grow_for_ever() {
        let dir = tempfile::tempdir().unwrap();
        let logs = Logs::new(dir.path());
        assert!(logs.read("a", 5).unwrap().is_empty());
        for number in 0..600 {
            logs.note("a", "info", &format!("{number} {}", "x".repeat(8000)));
        }
        logs.note("b", "warn", "other");
        let told = logs.read("a", 3).unwrap();
        let numbers: Vec<_> = told
            .iter()
            .map(|line| line.message.split(' ').next().unwrap())
            .collect();
        assert_eq!(numbers, ["597", "598", "599"]);
        let kept: u64 = ["a.log", "a.log.1"]
            .map(|name| fs::metadata(dir.path().join(name)).unwrap().len())
            .iter()
            .sum();
        assert!(kept < 3 * BYTES_MAX);
        logs.remove("a");
        assert!(logs.read("a", 3).unwrap().is_empty());
        assert_eq!(logs.read("b", 3).unwrap().len(), 1);
    }
}
