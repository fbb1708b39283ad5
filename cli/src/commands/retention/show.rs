//! `floe retention show`.

use clap::Args;

use super::print;
use crate::commands::Context;
use crate::error::ApiError;
use crate::wire::ShowRetention;

/// Show how long snapshots are kept
///
/// Without a workspace: the rules of the store, and those that workspaces have of their own. With one:
/// the rules that hold for it. SET BY says whose they are: the workspace's, the store's, or the default.
///
/// By default all snapshots taken by hand are kept, and of the automatic ones (before a fork, a rollback or a
/// landing), in each workspace, the newest 32 and those of the last 7 days.
///
/// Under --json: a list of objects with workspace (null: each without a rule of its own), class (by_hand or
/// automatic), keep_last, keep_within_s (seconds; both null: all are kept), and source (default, store or
/// workspace).
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// Workspace, or one that was deleted
    #[arg(value_name = "WS")]
    workspace: Option<String>,
}

impl Show {
    /// Carries it out.
    ///
    /// # Errors
    /// When there never was a workspace of that name.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let rules = context.client()?.call(ShowRetention {
            workspace: self.workspace.clone(),
        })?;
        print(&context.output, &rules)
    }
}
