//! Runs a program to its end, within a time limit, and keeps what it printed.
//!
//! Output goes to unnamed files, not pipes: a daemon that a command starts and that wrongly keeps
//! its caller's stdout must not make the test wait for the daemon's end.

use std::ffi::OsStr;
use std::fmt;
use std::fs::File;
use std::io::{Read, Seek};
use std::path::Path;
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::process::Handle;

/// What a finished program left behind.
#[derive(Clone, Debug)]
pub struct Output {
    /// The command line, for messages.
    pub command: String,
    /// Exit code; `None` when a signal ended the program.
    pub code: Option<i32>,
    /// How it ended, as the system says it.
    pub status: ExitStatus,
    /// Standard output.
    pub stdout: Vec<u8>,
    /// Standard error.
    pub stderr: Vec<u8>,
    /// Wall-clock time from start to end.
    pub elapsed: Duration,
    /// The program was ended because its time was up.
    pub timed_out: bool,
}

impl Output {
    /// Standard output as text without trailing white space.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).trim_end().to_owned()
    }

    /// Standard error as text without trailing white space.
    #[must_use]
    pub fn errors(&self) -> String {
        String::from_utf8_lossy(&self.stderr).trim_end().to_owned()
    }

    /// Standard output as JSON.
    ///
    /// # Panics
    /// When it is not exactly one JSON value.
    #[must_use]
    #[track_caller]
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stdout)
            .unwrap_or_else(|error| panic!("stdout is not JSON ({error})\n{self}"))
    }

    /// The JSON object that a failed `--json` command prints on standard error.
    ///
    /// # Panics
    /// When standard error holds anything else.
    #[must_use]
    #[track_caller]
    pub fn json_error(&self) -> serde_json::Value {
        serde_json::from_slice(&self.stderr)
            .unwrap_or_else(|error| panic!("stderr is not JSON ({error})\n{self}"))
    }

    /// Returns itself if the program exited with `code`.
    ///
    /// # Panics
    /// Otherwise, with everything it printed.
    #[track_caller]
    pub fn expect_code(self, code: i32) -> Self {
        assert!(self.code == Some(code), "expected exit code {code}\n{self}");
        self
    }
}

impl fmt::Display for Output {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "$ {}", self.command)?;
        writeln!(
            f,
            "{}{} after {:?}",
            if self.timed_out { "timed out, " } else { "" },
            self.status,
            self.elapsed
        )?;
        writeln!(f, "--- stdout\n{}", String::from_utf8_lossy(&self.stdout))?;
        write!(f, "--- stderr\n{}", String::from_utf8_lossy(&self.stderr))
    }
}

/// A program to be run in `dir`, without what cargo put into this test's environment.
#[must_use]
pub fn program(name: impl AsRef<OsStr>, dir: &Path) -> Command {
    let mut command = Command::new(name);
    command.env_clear().current_dir(dir);
    for kept in [
        "PATH",
        "HOME",
        "CARGO_HOME",
        "RUSTUP_HOME",
        "RUSTUP_TOOLCHAIN",
    ] {
        if let Some(value) = std::env::var_os(kept) {
            command.env(kept, value);
        }
    }
    command.env("LC_ALL", "C");
    command
}

/// Runs `command` with no standard input and ends it (SIGKILL) once `limit` has passed.
///
/// # Panics
/// When it cannot be started or waited for.
#[must_use]
#[track_caller]
pub fn run(command: &mut Command, limit: Duration) -> Output {
    let text = format!("{command:?}");
    let mut stdout = tempfile::tempfile().expect("a file for stdout");
    let mut stderr = tempfile::tempfile().expect("a file for stderr");
    let start = Instant::now();
    let mut child = command
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().expect("a second descriptor of stdout"))
        .stderr(stderr.try_clone().expect("a second descriptor of stderr"))
        .spawn()
        .unwrap_or_else(|error| panic!("cannot start {text}: {error}"));
    let handle = Handle::of_child(&child);
    let timed_out = !handle.wait_for_end(limit);
    if timed_out {
        handle.kill();
    }
    let status = child
        .wait()
        .unwrap_or_else(|error| panic!("cannot wait for {text}: {error}"));
    Output {
        command: text,
        code: status.code(),
        status,
        elapsed: start.elapsed(),
        stdout: contents(&mut stdout),
        stderr: contents(&mut stderr),
        timed_out,
    }
}

fn contents(file: &mut File) -> Vec<u8> {
    let mut bytes = Vec::new();
    file.rewind()
        .and_then(|()| file.read_to_end(&mut bytes))
        .expect("reading back the output");
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limit: Duration) -> Output {
        run(Command::new("sh").args(["-c", script]), limit)
    }

    #[test]
    fn streams_and_code_are_kept_apart() {
        let output = sh("echo out; echo err >&2; exit 3", Duration::from_secs(10)).expect_code(3);
        assert_eq!(
            (output.text(), output.errors()),
            ("out".to_owned(), "err".to_owned())
        );
    }

    #[test]
    fn a_program_past_its_limit_is_ended() {
        let output = sh("exec sleep 60", Duration::from_millis(50));
        assert!(output.timed_out && output.code.is_none());
        assert!(output.elapsed < Duration::from_secs(30));
    }

    #[test]
    fn a_daemon_that_keeps_stdout_open_does_not_hold_the_caller() {
        let output = sh("sleep 5 & echo started", Duration::from_secs(4)).expect_code(0);
        assert_eq!(output.text(), "started");
    }
}
