//! What is printed, and where: data on stdout, everything else on stderr; JSON under `--json`.
//!
//! A reader that goes away (`floe snap list | head -1`) is not an error: the command ends with
//! status 0. Text that came from somebody else (messages, labels, paths) has its control
//! characters escaped before it reaches a terminal.

use std::ffi::OsString;
use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use clap::ValueEnum;
use serde::Serialize;

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
        let mut stdout = io::stdout().lock();
        stdout
            .write_all(text.as_bytes())
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
        seen.causes = lines.map(|line| line.trim().to_owned()).collect();
        seen.hint = Some("read the usage with `floe --help`".to_owned());
        stderr_line(&error_json(&seen));
    } else if let Err(failure) = error.print()
        && failure.kind() != io::ErrorKind::BrokenPipe
    {
        return ExitCode::FAILURE;
    }
    ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(1))
}

fn error_json(error: &ApiError) -> String {
    serde_json::to_string(error).unwrap_or_else(|_| r#"{"error":"internal"}"#.to_owned())
}

/// Writes a line to stderr. If that fails there is nowhere left to say so.
fn stderr_line(text: &str) {
    let mut stderr = io::stderr().lock();
    if writeln!(stderr, "{text}").is_err() {
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

/// Escapes control characters, so that a message cannot steer the terminal.
#[must_use]
pub fn printable(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default())
        } else {
            out.push(c)
        }
    }
    out
}

/// Shortens text to a number of characters, showing by `...` that it did.
#[must_use]
pub fn shortened(text: &str, chars_max: usize) -> String {
    if text.chars().count() <= chars_max {
        return text.to_owned();
    }
    let kept: String = text.chars().take(chars_max.saturating_sub(3)).collect();
    format!("{kept}...")
}

/// The width to lay text out for: the terminal's, else that of COLUMNS, else 100.
#[must_use]
pub fn width() -> usize {
    let terminal = rustix::termios::tcgetwinsize(io::stdout())
        .ok()
        .map(|size| size.ws_col);
    let variable = || {
        std::env::var("COLUMNS")
            .ok()
            .and_then(|text| text.parse().ok())
    };
    terminal
        .filter(|&columns| columns > 0)
        .or_else(variable)
        .map_or(100, usize::from)
        .max(40)
}

/// A size in bytes: `0 B`, `17 KiB`, `1.4 GiB`.
#[must_use]
pub fn size(bytes: u64) -> String {
    let units = ["KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut unit = 0;
    let mut whole = bytes;
    while whole >= 1024 * 1024 && unit + 1 < units.len() {
        whole /= 1024;
        unit += 1;
    }
    let tenths = whole * 10 / 1024;
    if tenths < 100 {
        format!("{}.{} {}", tenths / 10, tenths % 10, units[unit])
    } else {
        format!("{} {}", tenths / 10, units[unit])
    }
}

/// Lays rows out in columns, two spaces apart, without trailing spaces.
#[must_use]
pub fn table(head: &[&str], rows: &[Vec<String>]) -> String {
    let mut widths: Vec<usize> = head.iter().map(|cell| cell.len()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let mut out = String::new();
    let head: Vec<String> = head.iter().map(|&cell| cell.to_owned()).collect();
    for row in std::iter::once(&head).chain(rows) {
        let mut line = String::new();
        for (cell, width) in row.iter().zip(&widths) {
            line.push_str(cell);
            line.push_str(&" ".repeat(width - cell.chars().count() + 2));
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_line_up_by_characters() {
        let rows = [
            vec!["a".to_owned(), "1".to_owned()],
            vec!["läng".to_owned(), "22".to_owned()],
        ];
        assert_eq!(table(&["NAME", "N"], &rows), "NAME  N\na     1\nläng  22\n");
        assert_eq!(table(&["NAME"], &[]), "NAME\n");
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

    #[test]
    fn foreign_text_cannot_steer_the_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\nc"), "a\\u{1b}[2Jb\\nc");
        assert_eq!(printable("grün"), "grün");
    }

    #[test]
    fn sizes_have_two_or_three_digits() {
        assert_eq!(size(0), "0 B");
        assert_eq!(size(1023), "1023 B");
        assert_eq!(size(1536), "1.5 KiB");
        assert_eq!(size(17 << 10), "17 KiB");
        assert_eq!(size(3 << 30), "3.0 GiB");
        assert_eq!(size(u64::MAX), "15 EiB");
    }

    #[test]
    fn long_text_is_shortened_visibly() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "abc...");
    }
}
