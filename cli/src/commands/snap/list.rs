//! `floe snap list`.

use clap::Args;
use jiff::Timestamp;

use super::matching::Matching;
use super::title;
use crate::commands::{Context, at_least_one};
use crate::error::ApiError;
use crate::output::{printable, shortened, table, width};
use crate::time;
use crate::wire::ListSnapshots;
use crate::wire::records::Snapshot;

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
  floe snap list --by-hand --protected
  floe snap list --quiet --name green      only ids")]
pub(crate) struct List {
    #[command(flatten)]
    matching: Matching,
    /// Only those taken since then
    #[arg(long, value_name = "AGE", value_parser = time::long_ago)]
    newer_than: Option<Timestamp>,
    /// Only those that nothing may delete
    #[arg(long)]
    protected: bool,
    /// Only those that Floe took by itself
    #[arg(long, conflicts_with = "by_hand")]
    automatic: bool,
    /// Only those that somebody asked for
    #[arg(long)]
    by_hand: bool,
    /// Only those that bring this back
    #[arg(long, value_name = "WHAT", value_parser = ["filesystem", "filesystem+memory"])]
    fidelity: Option<String>,
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
            workspace: self.matching.ws.clone(),
            name: self.matching.name.clone(),
            labels: self.matching.labels()?,
            protected: self.protected.then_some(true),
            automatic: (self.automatic || self.by_hand).then_some(self.automatic),
            fidelity: self.fidelity.clone(),
            before: self.matching.before(),
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
        let title_max = width().saturating_sub(76).max(24);
        let rows: Vec<Vec<String>> = found
            .iter()
            .map(|one| {
                vec![
                    one.id.clone(),
                    shortened(&one.workspace, 24),
                    time::ago(&one.created_at),
                    if one.durable { "yes" } else { "no" }.to_owned(),
                    kept(one),
                    shortened(&printable(&title(one)), title_max),
                ]
            })
            .collect();
        context.output.text(&table(
            &["ID", "WORKSPACE", "TAKEN", "DURABLE", "KEPT", "TITLE"],
            &rows,
        ))
    }
}

/// How long it stays, if it says so itself.
fn kept(one: &Snapshot) -> String {
    match (&one.expires_at, one.protected) {
        (_, true) => "protected".to_owned(),
        (Some(at), false) => format!("ends {}", time::until(at)),
        (None, false) => "-".to_owned(),
    }
}
