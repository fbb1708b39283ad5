//! `floe snap list`.

use clap::Args;
use jiff::Timestamp;

use super::title;
use crate::commands::{Context, at_least_one, label, labels};
use crate::error::ApiError;
use crate::output::{printable, shortened, table, width};
use crate::time;
use crate::wire::ListSnapshots;

/// List snapshots, newest first
///
/// A long list can be read in pages: each snapshot has a cursor (--json shows it), the place right behind
/// it. What is taken or deleted meanwhile moves nothing else.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe snap list --ws web --limit 10
  floe snap list --newer-than 1d --reverse
  floe snap list --limit 100 --after 187c9fd3a0f2e1b4.2c
  floe snap list --label commit=1f3c2aa
  floe snap list --quiet --name green      only ids")]
pub(crate) struct List {
    /// Only those of this workspace
    #[arg(long, value_name = "WS")]
    ws: Option<String>,
    /// Only those of this name
    #[arg(long)]
    name: Option<String>,
    /// Only those with this label; repeated: with all of them
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Only those taken longer ago than this: `7d`, `12h`, `1w 2d`
    #[arg(long, value_name = "AGE", value_parser = time::long_ago)]
    older_than: Option<Timestamp>,
    /// Only those taken since then
    #[arg(long, value_name = "AGE", value_parser = time::long_ago)]
    newer_than: Option<Timestamp>,
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

impl List {
    /// Carries it out.
    ///
    /// # Errors
    /// When the daemon cannot answer.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let found = context.client()?.call(ListSnapshots {
            workspace: self.ws.clone(),
            name: self.name.clone(),
            labels: labels(&self.labels)?,
            before: self.older_than.map(|time| time.to_string()),
            since: self.newer_than.map(|time| time.to_string()),
            oldest_first: self.reverse,
            after: self.after.clone(),
            limit: self.limit,
        })?;
        if context.output.json {
            return context.output.json(&found);
        }
        if context.output.quiet {
            let ids: String = found.iter().map(|one| format!("{}\n", one.id)).collect();
            return context.output.text(&ids);
        }
        if found.is_empty() {
            context.output.note("no snapshots");
            return Ok(());
        }
        let title_max = width().saturating_sub(64).max(24);
        let rows: Vec<Vec<String>> = found
            .iter()
            .map(|one| {
                vec![
                    one.id.clone(),
                    shortened(&one.workspace, 24),
                    time::ago(&one.created_at),
                    if one.durable { "yes" } else { "no" }.to_owned(),
                    shortened(&printable(&title(one)), title_max),
                ]
            })
            .collect();
        context.output.text(&table(
            &["ID", "WORKSPACE", "TAKEN", "DURABLE", "TITLE"],
            &rows,
        ))
    }
}
