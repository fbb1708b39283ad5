//! `floe sandbox logs`.

use clap::Args;

use crate::commands::{Context, at_least_one};
use crate::error::ApiError;
use crate::output::{Output, Paint, padded, printable};
use crate::time;
use crate::wire::SandboxLogs;
use crate::wire::sandbox::SandboxLogLine;

/// Tell what happened in and to a sandbox, oldest first
///
/// How it was made, paused, resumed and snapshotted, what could not be done, and how it ended. What
/// commands print is not in it. Under --json: an array of objects with at, level and message.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe sandbox logs sb3f9c --limit 20")]
pub(crate) struct Logs {
    /// Sandbox (id or its first 4 or more characters)
    #[arg(value_name = "SB")]
    sandbox: String,
    /// At most so many of the newest lines
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
}

impl Logs {
    /// Carries it out.
    ///
    /// # Errors
    /// When the reference fits none.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let lines = context.client()?.call(SandboxLogs {
            sandbox: self.sandbox.clone(),
            limit: self.limit,
        })?;
        if context.output.json {
            return context.output.json(&lines);
        }
        context
            .output
            .text(&drawn(&lines, &context.output, time::local))
    }
}

fn drawn(lines: &[SandboxLogLine], output: &Output, when: impl Fn(&str) -> String) -> String {
    let drawn = |line: &SandboxLogLine| {
        let level = padded(&printable(&line.level), 5);
        let level = match line.level.as_str() {
            "error" => output.paint(Paint::Bad, &level),
            "warn" => output.paint(Paint::Warn, &level),
            _ => output.paint(Paint::Dim, &level),
        };
        format!("{} {level} {}\n", when(&line.at), printable(&line.message))
    };
    lines.iter().map(drawn).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::ColorWhen;

    #[test]
    fn each_line_stays_one_line() {
        let line = |level: &str, message: &str| SandboxLogLine {
            at: "2026-01-02T03:04:05Z".to_owned(),
            level: level.to_owned(),
            message: message.to_owned(),
        };
        let lines = [line("info", "created"), line("error", "a\nb\u{1b}[2J")];
        let output = Output::new(false, false, ColorWhen::Never);
        let text = drawn(&lines, &output, |_| "then".to_owned());
        assert_eq!(text, "then info  created\nthen error a\\nb\\u{1b}[2J\n");
    }
}
