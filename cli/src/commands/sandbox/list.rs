//! `floe sandbox list`.

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};

use super::{by_key, pair};
use crate::commands::{Context, at_least_one};
use crate::error::ApiError;
use crate::output::{columns, printable, shortened, table, width};
use crate::time;
use crate::wire::ListSandboxes;
use crate::wire::sandbox::{OnTimeout, Sandbox, SandboxState};

/// List sandboxes, newest first
///
/// A long list can be read in pages: each sandbox has a cursor (--json shows it), the place right
/// behind it. What is made or killed meanwhile moves nothing else.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe sandbox list --state running --state paused
  floe sandbox list --metadata owner=ann --template python
  floe sandbox list --limit 100 --after 187c9fd3a0f2e1b4.2c
  floe sandbox kill $(floe sandbox list --quiet --state stopped)")]
pub(crate) struct List {
    /// Only those in this state; repeated: in one of them
    #[arg(long = "state", value_name = "STATE", value_parser = state())]
    states: Vec<SandboxState>,
    /// Only those with this; repeated: with all of them
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
    /// Only those started from this, as it was said then
    #[arg(long, value_name = "TEMPLATE|SNAPSHOT")]
    template: Option<String>,
    /// Oldest first
    #[arg(long)]
    reverse: bool,
    /// Only those behind this place
    #[arg(long, value_name = "CURSOR")]
    after: Option<String>,
    /// At most this many
    #[arg(long, value_name = "N", value_parser = at_least_one)]
    limit: Option<usize>,
}

/// Reads the word for a state; for clap.
fn state() -> impl TypedValueParser<Value = SandboxState> {
    PossibleValuesParser::new(SandboxState::ALL.map(SandboxState::word))
        .try_map(|word| SandboxState::parse(&word).ok_or("no state"))
}

impl List {
    /// Carries it out.
    ///
    /// # Errors
    /// When the daemon cannot answer.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let found = context.client()?.call(ListSandboxes {
            states: self.states.clone(),
            metadata: by_key("the metadata key", &self.metadata)?,
            template: self.template.clone(),
            since: None,
            oldest_first: self.reverse,
            after: self.after.clone(),
            limit: self.limit,
        })?;
        print(
            context,
            &found,
            "no sandboxes; make one with: floe sandbox create",
        )
    }
}

/// Prints a list; `none` is said if there is nothing in it.
pub(crate) fn print(context: &Context, found: &[Sandbox], none: &str) -> Result<(), ApiError> {
    if context.output.json {
        return context.output.json(&found);
    }
    if context.output.quiet {
        let ids: String = found.iter().map(|one| format!("{}\n", one.id)).collect();
        return context.output.text(&ids);
    }
    if found.is_empty() {
        context.output.note(none);
        return Ok(());
    }
    context.output.text(&drawn(found, width()))
}

/// The table, in so many columns.
fn drawn(found: &[Sandbox], width: usize) -> String {
    let mut rows: Vec<Vec<String>> = found
        .iter()
        .map(|one| {
            vec![
                one.id.clone(),
                one.state.word().to_owned(),
                shortened(&printable(&one.template), 24),
                time::ago(&one.created_at),
                ends(one),
                printable(&metadata(one)),
            ]
        })
        .collect();
    let widest = |at: usize| rows.iter().map(|row| columns(&row[at])).max().unwrap_or(0);
    let left = width.saturating_sub((0..5).map(|at| widest(at).max(8) + 2).sum());
    for row in &mut rows {
        row[5] = shortened(&row[5], left.max(10));
    }
    table(
        &["ID", "STATE", "TEMPLATE", "CREATED", "ENDS", "METADATA"],
        &rows,
    )
}

/// When its time is over, and whether it is only paused then.
fn ends(one: &Sandbox) -> String {
    match (&one.ends_at, one.on_timeout) {
        (None, _) => "-".to_owned(),
        (Some(at), OnTimeout::Kill) => time::until(at),
        (Some(at), OnTimeout::Pause) => format!("{} (pauses)", time::until(at)),
    }
}

fn metadata(one: &Sandbox) -> String {
    let pairs = one.metadata.iter();
    let pairs: Vec<String> = pairs.map(|(key, value)| format!("{key}={value}")).collect();
    match pairs.as_slice() {
        [] => "-".to_owned(),
        pairs => pairs.join(" "),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::super::samples::sandbox;
    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        list: List,
    }

    #[test]
    fn states_are_read_by_their_words() {
        for state in SandboxState::ALL {
            let line = Line::try_parse_from(["list", "--state", state.word()]).unwrap();
            assert_eq!(line.list.states, [state]);
        }
        assert!(Line::try_parse_from(["list", "--state", "asleep"]).is_err());
        assert!(Line::try_parse_from(["list", "--limit", "0"]).is_err());
    }

    #[test]
    fn what_makers_say_of_sandboxes_stays_in_its_line_and_column() {
        let mut odd = sandbox("sb000002", SandboxState::Paused);
        odd.template = "\u{1b}[31mred".to_owned();
        odd.metadata = [("note", "a\nb\u{202e}"), ("long", &"x".repeat(300))]
            .map(|(key, value)| (key.to_owned(), value.to_owned()))
            .into();
        odd.ends_at = Some("2026-01-02T00:00:00Z".to_owned());
        odd.on_timeout = OnTimeout::Pause;
        let plain = sandbox("sb000001", SandboxState::Running);
        for width in [80, 120, 200] {
            let text = drawn(&[odd.clone(), plain.clone()], width);
            assert_eq!(text.lines().count(), 3, "{text}");
            for line in text.lines() {
                assert!(!line.contains(|c: char| c.is_control() || c == '\u{202e}'));
            }
            let row = text.lines().nth(1).unwrap();
            assert!(row.contains("now (pauses)"), "{row}");
            assert!(columns(row) <= width.max(100), "{row}");
            let row = text.lines().nth(2).unwrap();
            assert!(row.starts_with("sb000001  running  base "), "{row}");
        }
    }
}
