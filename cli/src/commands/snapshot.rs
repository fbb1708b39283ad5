//! `floe snapshot`.

use clap::Args;
use jiff::Timestamp;

use super::{Context, label, labels};
use crate::error::ApiError;
use crate::time;
use crate::wire::TakeSnapshot;

/// Freeze the present state of a workspace and print the snapshot's id
///
/// Takes constant time, also while programs write: everything whose write returned before is in
/// it, nothing that begins after it. How long it took goes to stderr.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe snapshot web
  floe snapshot web --name green -m 'all tests pass' --label commit=1f3c2aa
  id=$(floe snapshot web --quiet)")]
pub(crate) struct Snapshot {
    /// Workspace
    #[arg(value_name = "WS")]
    workspace: String,
    /// Name, unique among the snapshots of the workspace
    #[arg(long)]
    name: Option<String>,
    /// Message to keep with it
    #[arg(long, short, value_name = "MSG")]
    message: Option<String>,
    /// Label to keep with it; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Return only once it would survive a power failure
    #[arg(long)]
    durable: bool,
    /// Delete it when so much time is past: `7d`, `12h`, `1w 2d`
    #[arg(long, value_name = "AGE", value_parser = time::from_now)]
    expires: Option<Timestamp>,
    /// Let nothing delete it until `floe snap unprotect`
    #[arg(long)]
    protect: bool,
}

impl Snapshot {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no such workspace, or the name is taken.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let snapshot = context.client()?.call(TakeSnapshot {
            workspace: self.workspace.clone(),
            name: self.name.clone(),
            message: self.message.clone(),
            labels: labels(&self.labels)?,
            durable: self.durable,
            expires_at: self.expires.map(|time| time.to_string()),
            protected: self.protect,
        })?;
        if context.output.json {
            return context.output.json(&snapshot);
        }
        context.output.line(&snapshot.id)?;
        let durable = if snapshot.durable { ", durable" } else { "" };
        let taken = time::elapsed(snapshot.elapsed_us);
        context.output.note(&format!(
            "snapshot of '{}' in {taken}{durable}",
            snapshot.workspace
        ));
        Ok(())
    }
}
