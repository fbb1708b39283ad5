//! `floe log`.

use clap::Args;

use super::{Context, at_least_one};
use crate::error::ApiError;
use crate::output::{columns, first_line, printable, shortened, table, width};
use crate::time;
use crate::wire;
use crate::wire::records::LogEntry;

/// Tell what happened to a workspace, newest first
///
/// How it was made, its snapshots, what was forked from them, rollbacks and landings. What happened
/// to a fork before it was forked is in the log of the workspace that its first line names. A
/// workspace that was deleted has its log still.
///
/// Under --json: an array of objects with `at`, `kind` (`created`, `snapshot`, `fork`, `rollback`,
/// `land`, `landed`, `undo`, `adopt`, `deleted`; there may be more), the `snapshot` it is about and
/// that one's `name`, the other `workspace` it is about and `workspace_deleted`, `message`, and
/// `automatic`. Under --quiet: the ids of its snapshots.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe log web --limit 20
  floe log web --json | jq -r '.[] | select(.kind == \"fork\") | .workspace'")]
pub(crate) struct Log {
    /// Workspace
    #[arg(value_name = "WS")]
    workspace: String,
    /// At most this many entries
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
}

impl Log {
    /// Carries it out.
    ///
    /// # Errors
    /// When the daemon cannot answer, or there never was such a workspace.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let entries = context.client()?.call(wire::Log {
            workspace: self.workspace.clone(),
            limit: self.limit,
        })?;
        if context.output.json {
            return context.output.json(&entries);
        }
        if context.output.quiet {
            let taken = entries.iter().filter(|entry| entry.kind == "snapshot");
            let ids = taken.filter_map(|entry| entry.snapshot.as_ref());
            let ids: String = ids.map(|id| format!("{id}\n")).collect();
            return context.output.text(&ids);
        }
        context.output.text(&drawn(&entries, width(), time::local))
    }
}

/// The table, in so many columns.
fn drawn(entries: &[LogEntry], width: usize, when: impl Fn(&str) -> String) -> String {
    let mut rows: Vec<Vec<String>> = entries
        .iter()
        .map(|entry| {
            let snapshot = entry.snapshot.as_deref().unwrap_or("-");
            vec![
                when(&entry.at),
                entry.kind.clone(),
                snapshot.to_owned(),
                printable(&details(entry)),
            ]
        })
        .collect();
    let widest = |at: usize| rows.iter().map(|row| columns(&row[at])).max().unwrap_or(0);
    let left = width.saturating_sub((0..3).map(|at| widest(at) + 2).sum());
    for row in &mut rows {
        row[3] = shortened(&row[3], left);
    }
    table(&["WHEN", "WHAT", "SNAPSHOT", "DETAILS"], &rows)
}

/// What its own column does not say.
fn details(entry: &LogEntry) -> String {
    let other = entry.workspace.as_ref().map(|name| {
        let since = if entry.workspace_deleted {
            " (deleted)"
        } else {
            ""
        };
        format!("'{name}'{since}")
    });
    let named = entry.name.clone();
    let message = entry.message.as_deref().map(first_line).map(str::to_owned);
    let [what, more] = match entry.kind.as_str() {
        "created" => [other.map(|other| format!("forked from {other}")), named],
        "fork" => [other, named.map(|name| format!("from {name}"))],
        "rollback" => [named.map(|name| format!("to {name}")), message],
        "land" => [other.map(|other| format!("onto {other}")), message],
        "landed" => [other.map(|other| format!("from {other}")), message],
        "snapshot" => [named, message.or_else(|| reason(entry))],
        _ => [other.or(named), message],
    };
    match (what, more) {
        (Some(what), Some(more)) => format!("{what}: {more}"),
        (Some(one), None) | (None, Some(one)) => one,
        (None, None) => "-".to_owned(),
    }
}

fn reason(entry: &LogEntry) -> Option<String> {
    let reason = entry.automatic.as_ref()?;
    Some(format!("(automatic, before a {reason})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: &str) -> LogEntry {
        LogEntry {
            at: "2026-01-02T03:04:05.000006Z".to_owned(),
            kind: kind.to_owned(),
            snapshot: None,
            name: None,
            workspace: None,
            workspace_deleted: false,
            message: None,
            automatic: None,
        }
    }

    #[test]
    fn each_kind_says_what_it_was_about() {
        let text = |text: &str| Some(text.to_owned());
        let cases = [
            (entry("created"), "-"),
            (
                LogEntry {
                    workspace: text("web"),
                    workspace_deleted: true,
                    name: text("green"),
                    ..entry("created")
                },
                "forked from 'web' (deleted): green",
            ),
            (
                LogEntry {
                    name: text("n"),
                    message: text("\n  why\nmore"),
                    ..entry("snapshot")
                },
                "n: why",
            ),
            (
                LogEntry {
                    automatic: text("fork"),
                    ..entry("snapshot")
                },
                "(automatic, before a fork)",
            ),
            (
                LogEntry {
                    workspace: text("try"),
                    ..entry("fork")
                },
                "'try'",
            ),
            (
                LogEntry {
                    name: text("green"),
                    ..entry("rollback")
                },
                "to green",
            ),
            (
                LogEntry {
                    workspace: text("main"),
                    message: text("3 files"),
                    ..entry("land")
                },
                "onto 'main': 3 files",
            ),
            (
                LogEntry {
                    message: text("/srv/app"),
                    ..entry("land")
                },
                "/srv/app",
            ),
        ];
        for (entry, expected) in cases {
            assert_eq!(details(&entry), expected, "{entry:?}");
        }
    }

    #[test]
    fn long_and_hostile_messages_stay_in_their_line() {
        let entries: Vec<_> = ["plain", "\u{1b}[31mred\r\tx", &"日本語 ".repeat(50), ""]
            .iter()
            .map(|message| LogEntry {
                snapshot: Some("0123456789abcdef".to_owned()),
                message: Some((*message).to_owned()),
                ..entry("snapshot")
            })
            .collect();
        for width in [60, 100, 200] {
            let text = drawn(&entries, width, |_| "2026-01-02 03:04:05".to_owned());
            assert_eq!(text.lines().count(), 5, "{text}");
            for line in text.lines() {
                assert!(columns(line) <= width, "{line}");
                assert!(!line.contains(char::is_control), "{line:?}");
            }
        }
    }
}
