//! `floe snap list`.

use clap::Args;

use super::title;
use crate::commands::{Context, at_least_one, label, labels};
use crate::error::ApiError;
use crate::output::{printable, shortened, table, width};
use crate::time;
use crate::wire::ListSnapshots;

/// List snapshots, newest first
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe snap list --ws web --limit 10
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
