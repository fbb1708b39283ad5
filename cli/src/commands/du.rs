//! `floe du`.

use clap::Args;

use super::Context;
use crate::error::ApiError;
use crate::output::{counted, printable, size, table};
use crate::wire::SnapshotSizes;
use crate::wire::space::SnapshotSize;

/// Show how much space deleting a snapshot would free, and who holds the rest
///
/// What a snapshot shares with a workspace or another snapshot is not freed with it. The bytes are
/// those of files' contents on the disk; the catalog's rows come on top, about a kilobyte for each
/// file that was changed. To see what deleting several together would free: `floe snap delete
/// --dry-run`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe du web/green
  floe du $(floe snap list --ws web --quiet)

Under --json: an array of snapshots (as of `floe snap show`), each with frees (bytes) and held_by:
workspaces by name, snapshots by id.")]
pub(crate) struct Du {
    /// Snapshots (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "SNAP", required = true)]
    snapshots: Vec<String>,
}

impl Du {
    /// Carries it out.
    ///
    /// # Errors
    /// When a snapshot is not found.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let sizes = context.client()?.call(SnapshotSizes {
            snapshots: self.snapshots.clone(),
        })?;
        if context.output.json {
            return context.output.json(&sizes);
        }
        let rows: Vec<Vec<String>> = sizes.iter().map(row).collect();
        context
            .output
            .text(&table(&["ID", "WORKSPACE", "FREES", "HELD BY"], &rows))
    }
}

fn row(one: &SnapshotSize) -> Vec<String> {
    let held = match one.held_by.split_first() {
        None => "-".to_owned(),
        Some((first, [])) => printable(first),
        Some((first, others)) => {
            format!(
                "{} and {}",
                printable(first),
                counted(others.len(), "other")
            )
        }
    };
    let snapshot = &one.snapshot;
    vec![
        snapshot.id.clone(),
        printable(&snapshot.workspace),
        size(one.frees),
        held,
    ]
}
