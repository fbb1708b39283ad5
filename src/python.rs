//! A Python process that a test tells what to do, line by line.
//!
//! It is for what needs a process of its own (record locks, a second SQLite connection, a fault
//! that must not end the test) or memory mappings, which safe Rust cannot make. Each value is one
//! process; variables stay between calls, so that a file can be opened in one and used in another.
//!
//! Dropping it ends the process with SIGKILL, which is also how a test lets go of its files.

use std::fmt;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::process::Handle;

/// Longest time for one answer; more is a hang.
const LIMIT: Duration = Duration::from_secs(120);

/// Reads one JSON string a line, runs it, and answers with one JSON object a line.
const LOOP: &str = r#"
import errno, fcntl, json, mmap, os, signal, sqlite3, struct, sys
names = dict(globals())
for line in sys.stdin:
    names.pop('result', None)
    try:
        exec(json.loads(line), names)
        answer = {'result': names.get('result')}
    except Exception as error:
        answer = {'error': repr(error), 'errno': getattr(error, 'errno', None)}
    out = answer.get('result')
    if isinstance(out, (bytes, bytearray)):
        answer['result'] = bytes(out).decode('latin-1')
    print(json.dumps(answer), flush=True)
"#;

/// Why a piece of code gave no result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Failure {
    /// An exception.
    Raised {
        /// The exception as Python shows it.
        text: String,
        /// The error number of an `OSError`.
        errno: Option<i32>,
    },
    /// A signal ended the process (SIGBUS on a lost page of a mapping).
    Signal(i32),
    /// The process ended otherwise.
    Ended,
}

impl Failure {
    /// The error number, if it was an `OSError`.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Raised { errno, .. } => *errno,
            Self::Signal(_) | Self::Ended => None,
        }
    }
}

/// A Python process under the test's control. `os`, `mmap`, `fcntl`, `struct`, `signal`, `errno`
/// and `sqlite3` are imported.
pub struct Python {
    child: Child,
    input: ChildStdin,
    answers: Receiver<String>,
}

impl Default for Python {
    fn default() -> Self {
        Self::start()
    }
}

impl Python {
    /// Starts the process.
    ///
    /// # Panics
    /// When there is no `python3`.
    #[must_use]
    #[track_caller]
    pub fn start() -> Self {
        let mut child = Command::new("python3")
            .args(["-c", LOOP])
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("python3 (Debian package python3)");
        let input = child.stdin.take().expect("its standard input");
        let output = child.stdout.take().expect("its standard output");
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(output).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Self {
            child,
            input,
            answers,
        }
    }

    /// Runs code. What it assigns to `result` is returned; bytes come as one character each.
    ///
    /// # Errors
    /// What kept it from ending.
    ///
    /// # Panics
    /// When it takes two minutes.
    #[track_caller]
    pub fn run(&mut self, code: &str) -> Result<Value, Failure> {
        // The process may have died of a signal since; then its end is the answer.
        if writeln!(self.input, "{}", Value::from(code)).is_err() {
            return Err(self.end());
        }
        let line = match self.answers.recv_timeout(LIMIT) {
            Ok(line) => line,
            Err(RecvTimeoutError::Disconnected) => return Err(self.end()),
            Err(RecvTimeoutError::Timeout) => panic!("no answer in {LIMIT:?}: {code}"),
        };
        let mut answer: Value = serde_json::from_str(&line).expect("one JSON object a line");
        match answer.get("error").and_then(Value::as_str) {
            Some(text) => Err(Failure::Raised {
                text: text.to_owned(),
                errno: answer["errno"]
                    .as_i64()
                    .and_then(|number| i32::try_from(number).ok()),
            }),
            None => Ok(answer["result"].take()),
        }
    }

    /// Runs code that must succeed.
    ///
    /// # Panics
    /// When it fails.
    #[track_caller]
    pub fn ok(&mut self, code: &str) -> Value {
        match self.run(code) {
            Ok(value) => value,
            Err(failure) => panic!("{failure:?}\nin: {code}"),
        }
    }

    /// Runs code that must succeed and result in bytes or a string, of which each character is a
    /// byte.
    ///
    /// # Panics
    /// When it fails or results in something else.
    #[track_caller]
    pub fn text(&mut self, code: &str) -> String {
        match self.ok(code) {
            Value::String(text) => text,
            other => panic!("no text: {other}\nin: {code}"),
        }
    }

    /// Runs code that must raise an `OSError` and returns its number.
    ///
    /// # Panics
    /// When it succeeds or fails otherwise.
    #[track_caller]
    pub fn errno(&mut self, code: &str) -> i32 {
        match self.run(code) {
            Err(Failure::Raised {
                errno: Some(errno), ..
            }) => errno,
            other => panic!("no OSError but {other:?}\nin: {code}"),
        }
    }

    fn end(&mut self) -> Failure {
        match self.child.wait() {
            Ok(status) => status.signal().map_or(Failure::Ended, Failure::Signal),
            Err(_) => Failure::Ended,
        }
    }
}

impl Drop for Python {
    fn drop(&mut self) {
        if matches!(self.child.try_wait(), Ok(None)) {
            Handle::of_child(&self.child).kill();
        }
        if let Err(error) = self.child.wait() {
            eprintln!("cannot wait for a helper process: {error}");
        }
    }
}

impl fmt::Debug for Python {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Python(process {})", self.child.id())
    }
}

/// A path as a Python expression.
#[must_use]
pub fn path(path: &Path) -> String {
    format!("b\"{}\"", path.as_os_str().as_bytes().escape_ascii())
}

/// A JSON value as a Python expression, for numbers and strings.
#[must_use]
pub fn literal(value: impl Into<Value>) -> String {
    json!(value.into()).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_errors_and_deaths_are_told_apart() {
        let mut python = Python::start();
        assert_eq!(python.ok("x = 6; result = x * 7"), 42);
        assert_eq!(python.ok("pass"), Value::Null);
        assert_eq!(python.text("result = b'a\\xff'"), "a\u{ff}");
        assert_eq!(python.errno("os.open('/nonexistent', 0)"), 2);
        assert!(matches!(
            python.run("x = 1 / 0"),
            Err(Failure::Raised { errno: None, .. })
        ));
        assert_eq!(python.ok("result = x"), 6, "variables stay");
        assert_eq!(
            python.run("os.kill(os.getpid(), signal.SIGBUS)"),
            Err(Failure::Signal(7))
        );
    }

    #[test]
    fn odd_paths_are_the_same_in_python() {
        let dir = tempfile::tempdir().unwrap();
        let odd = dir
            .path()
            .join(std::ffi::OsStr::from_bytes(b"a\n'\"\\\xff b"));
        Python::start().ok(&format!("open({}, 'w').close()", path(&odd)));
        assert!(odd.exists());
    }
}
