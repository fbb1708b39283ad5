//! `floe snap label`.

use clap::Args;

use crate::commands::{Context, label, labels};
use crate::error::ApiError;
use crate::output::printable;
use crate::wire::{EditSnapshots, ShowSnapshot};

/// Show and change the labels of a snapshot
///
/// A label that it has already gets the new value. Prints all labels that it has then.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe snap label web/green                      only prints them
  floe snap label web/green ci=passed owner=ann
  floe snap label web/green --remove ci

Prints KEY=VALUE lines. Under --json: the snapshot, as of `floe snap show`.")]
pub(crate) struct Label {
    /// Snapshot (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "SNAP")]
    snapshot: String,
    /// Labels that it gets
    #[arg(value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// A label that it loses; may be repeated
    #[arg(long = "remove", value_name = "KEY")]
    without: Vec<String>,
}

impl Label {
    /// Carries it out.
    ///
    /// # Errors
    /// When the snapshot is not found, or there are too many labels.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let labels = labels(&self.labels)?;
        let mut client = context.client()?;
        let shown = if labels.is_empty() && self.without.is_empty() {
            Some(client.call(ShowSnapshot {
                snapshot: self.snapshot.clone(),
            })?)
        } else {
            let changed = client.call(EditSnapshots {
                snapshots: vec![self.snapshot.clone()],
                labels,
                without: self.without.clone(),
                ..EditSnapshots::default()
            })?;
            changed.into_iter().next()
        };
        if context.output.json {
            return context.output.json(&shown);
        }
        let labels = shown.map(|one| one.labels).unwrap_or_default();
        let lines = labels
            .iter()
            .map(|(key, value)| printable(&format!("{key}={value}")) + "\n");
        context.output.text(&lines.collect::<String>())
    }
}
