//! What is printed, and where: data on stdout, everything else on stderr; JSON under `--json`.
//!
//! A reader that goes away (`floe snap list | head -1`) is not an error: the command ends with
//! status 0. Text that came from somebody else (messages, labels, paths) has its control
//! characters escaped before it reaches a terminal.

mod layout;

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;

pub use layout::{columns, counted, first_line, padded, printable, shortened, size, table, width};

use crate::error::{ApiError, ErrorKind, shell_word};

/// When to colour.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum ColorWhen {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// A colour by its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Paint {
    /// Something went well.
    Good,
    /// Something failed.
    Bad,
    /// Something wants attention.
    Warn,
    /// Advice, or the name of a thing.
    Hint,
    /// Of lesser interest.
    Dim,
}

impl Paint {
    fn code(self) -> &'static str {
        match self {
            Self::Good => "32",
            Self::Bad => "1;31",
            Self::Warn => "33",
            Self::Hint => "36",
            Self::Dim => "2",
        }
    }
}

/// Where and how a command prints.
#[derive(Clone, Copy, Debug)]
pub struct Output {
    /// JSON instead of text.
    pub json: bool,
    /// Only names in lists; no notes.
    pub quiet: bool,
    color_stdout: bool,
    color_stderr: bool,
}

impl Output {
    /// Output as the global flags ask for.
    #[must_use]
    pub fn new(json: bool, quiet: bool, color: ColorWhen) -> Self {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
        let use_color = |terminal: bool| match color {
            ColorWhen::Always => true,
            ColorWhen::Never => false,
            ColorWhen::Auto => terminal && !no_color,
        };
        Self {
            json,
            quiet,
            color_stdout: use_color(io::stdout().is_terminal()),
            color_stderr: use_color(io::stderr().is_terminal()),
        }
    }

    /// Output without colour, for errors before the flags are known.
    #[must_use]
    pub fn plain(json: bool) -> Self {
        Self::new(json, false, ColorWhen::Never)
    }

    /// Prints data on stdout.
    ///
    /// # Errors
    /// When stdout cannot be written; [`ErrorKind::OutputClosed`] when its reader went away.
    pub fn text(&self, text: &str) -> Result<(), ApiError> {
        self.bytes(text.as_bytes())
    }

    /// Prints paths on stdout, one a line: as they are, so that `cd "$(floe mount web)"` works
    /// whatever they are called; on a terminal with control characters escaped.
    ///
    /// # Errors
    /// As [`Output::text`].
    pub fn paths<'a>(&self, paths: impl IntoIterator<Item = &'a Path>) -> Result<(), ApiError> {
        let terminal = io::stdout().is_terminal();
        let mut bytes = Vec::new();
        for path in paths {
            bytes.extend(shown_path(path, terminal));
            bytes.push(b'\n');
        }
        self.bytes(&bytes)
    }

    /// Prints bytes on stdout as they are; on a terminal with control characters escaped, but for
    /// ends of lines and tabs.
    ///
    /// # Errors
    /// As [`Output::text`].
    pub fn raw(&self, bytes: &[u8]) -> Result<(), ApiError> {
        if !io::stdout().is_terminal() {
            return self.bytes(bytes);
        }
        let text = String::from_utf8_lossy(bytes);
        let lines = text.split_inclusive(['\n', '\t']);
        let shown: String = lines
            .map(|part| match part.strip_suffix(['\n', '\t']) {
                Some(inner) => format!("{}{}", printable(inner), &part[inner.len()..]),
                None => printable(part),
            })
            .collect();
        self.text(&shown)
    }

    fn bytes(&self, bytes: &[u8]) -> Result<(), ApiError> {
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(bytes)
            .and_then(|()| stdout.flush())
            .map_err(|error| {
                let kind = match error.kind() {
                    io::ErrorKind::BrokenPipe => ErrorKind::OutputClosed,
                    _ => ErrorKind::Failed,
                };
                ApiError::new(kind, "cannot write to standard output").caused_by(&error)
            })
    }

    /// Prints one line of data on stdout.
    ///
    /// # Errors
    /// As [`Output::text`].
    pub fn line(&self, line: impl AsRef<str>) -> Result<(), ApiError> {
        self.text(&format!("{}\n", line.as_ref()))
    }

    /// Prints a value as JSON on stdout: one line, or indented on a terminal.
    ///
    /// # Errors
    /// As [`Output::text`].
    pub fn json(&self, value: &impl Serialize) -> Result<(), ApiError> {
        let text = if io::stdout().is_terminal() {
            serde_json::to_string_pretty(value)
        } else {
            serde_json::to_string(value)
        };
        let text = text.map_err(|error| {
            ApiError::new(ErrorKind::Internal, "cannot encode the answer").caused_by(&error)
        })?;
        self.line(text)
    }

    /// Says something about what was done, on stderr; nothing under `--quiet` or `--json`.
    pub fn note(&self, text: &str) {
        if !self.quiet && !self.json {
            stderr_line(text);
        }
    }

    /// Whether stderr is coloured.
    #[must_use]
    pub fn colors_stderr(&self) -> bool {
        self.color_stderr
    }

    /// Colours text for stdout, if stdout is coloured.
    #[must_use]
    pub fn paint(&self, paint: Paint, text: &str) -> String {
        painted(self.color_stdout, paint, text)
    }

    /// Prints an error and returns the status to end with. Commands in the hint are completed
    /// with `--store`, if the user named the store by it.
    pub fn report(&self, error: &ApiError, store_flag: Option<&Path>) -> ExitCode {
        let mut error = error.clone();
        error.hint = error.hint.map(|hint| complete_hint(&hint, store_flag));
        if error.kind == ErrorKind::OutputClosed {
            return ExitCode::from(error.kind.exit_code());
        }
        if self.json {
            stderr_line(&error_json(&error));
        } else {
            let label = |paint, text| painted(self.color_stderr, paint, text);
            let kind = if error.kind == ErrorKind::Internal {
                "internal error"
            } else {
                "error"
            };
            let mut text = format!("{}: {}", label(Paint::Bad, kind), printable(&error.error));
            for cause in &error.causes {
                text.push_str(&format!(
                    "\n{}: {}",
                    label(Paint::Dim, "caused by"),
                    printable(cause)
                ));
            }
            if let Some(hint) = &error.hint {
                text.push_str(&format!(
                    "\n{}: {}",
                    label(Paint::Hint, "hint"),
                    printable(hint)
                ));
            }
            stderr_line(&text);
        }
        ExitCode::from(error.kind.exit_code())
    }
}

/// Prints what clap has to say: help and version on stdout, a usage error on stderr, as JSON if
/// `--json` is among the arguments.
#[must_use]
pub fn report_usage(error: &clap::Error, arguments: &[OsString]) -> ExitCode {
    let json = arguments
        .iter()
        .take_while(|word| *word != "--")
        .any(|word| word == "--json");
    if error.use_stderr() && json {
        let rendered = error.to_string();
        let mut lines = rendered.lines().filter(|line| !line.trim().is_empty());
        let first = lines.next().unwrap_or_default();
        let mut seen = ApiError::new(
            ErrorKind::Usage,
            first.strip_prefix("error: ").unwrap_or(first),
        );
        // Without a command clap shows its help, which says nothing about a cause.
        if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
            seen.error = "a command is missing".to_owned();
        } else {
            seen.causes = lines.map(|line| line.trim().to_owned()).collect();
        }
        seen.hint = Some("read the usage with `floe --help`".to_owned());
        stderr_line(&error_json(&seen));
    } else if let Err(failure) = error.print()
        && failure.kind() != io::ErrorKind::BrokenPipe
    {
        return ExitCode::FAILURE;
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
}

fn shown_path(path: &Path, terminal: bool) -> Vec<u8> {
    if terminal {
        printable(&path.to_string_lossy()).into_bytes()
    } else {
        path.as_os_str().as_bytes().to_vec()
    }
}

fn error_json(error: &ApiError) -> String {
    serde_json::to_string(error).unwrap_or_else(|_| r#"{"error":"internal"}"#.to_owned())
}

/// Writes a line to stderr. If that fails there is nowhere left to say so.
fn stderr_line(text: &str) {
    // One call, so that lines of commands that run side by side stay whole.
    if io::stderr()
        .lock()
        .write_all(format!("{text}\n").as_bytes())
        .is_err()
    {
        tracing::debug!("standard error cannot be written");
    }
}

fn painted(color: bool, paint: Paint, text: &str) -> String {
    if color {
        format!("\x1b[{}m{text}\x1b[0m", paint.code())
    } else {
        text.to_owned()
    }
}

fn complete_hint(hint: &str, store_flag: Option<&Path>) -> String {
    match store_flag {
        Some(dir) => {
            let dir = shell_word(&dir.to_string_lossy());
            hint.replace("`floe ", &format!("`floe --store {dir} "))
        }
        None => hint.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_escaped_for_a_terminal_only() {
        let path = Path::new(std::ffi::OsStr::from_bytes(b"/a\n\xff"));
        assert_eq!(shown_path(path, false), b"/a\n\xff");
        assert_eq!(shown_path(path, true), "/a\\n\u{fffd}".as_bytes());
    }

    #[test]
    fn hints_name_the_store_only_if_the_user_had_to() {
        let hint = "see `floe ws list` or `ps -fp 1`";
        assert_eq!(complete_hint(hint, None), hint);
        assert_eq!(
            complete_hint(hint, Some(Path::new("/my store"))),
            "see `floe --store '/my store' ws list` or `ps -fp 1`"
        );
    }
}
