//! `floe retention set`.

use std::num::NonZeroU64;

use clap::Args;

use super::print;
use crate::commands::Context;
use crate::error::ApiError;
use crate::time;
use crate::wire::SetRetention;

/// Set how long snapshots are kept
///
/// A snapshot is kept if it is among the newest N of its workspace, or younger than AGE: one of the two is
/// enough. The daemon deletes the others at once, and from then on by itself. It keeps those that are
/// protected (`floe snap protect`), have an expiry of their own, or are in use.
///
/// Without a workspace the rule is for every workspace that has none of its own, deleted ones as well.
/// Without --automatic it is for snapshots taken by hand. By default all of those are kept, and of the
/// automatic ones the newest 32 and those of the last 7 days.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe retention set --keep-last 100 --keep-within 30d
  floe retention set web --automatic --keep-within 1d
  floe retention set main --keep-all
  floe retention apply --dry-run               what would go now

Prints the rules as `floe retention show` does.")]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct Set {
    /// Workspace, or one that was deleted
    #[arg(value_name = "WS")]
    workspace: Option<String>,
    /// For snapshots that Floe takes by itself
    #[arg(long)]
    automatic: bool,
    /// Keep so many of the newest, of each workspace
    #[arg(long, value_name = "N", group = "what")]
    keep_last: Option<NonZeroU64>,
    /// Keep those that are younger: `7d`, `12h`, `1w 2d`
    #[arg(long, value_name = "AGE", value_parser = time::seconds, group = "what")]
    keep_within: Option<u64>,
    /// Keep all
    #[arg(long, group = "what", conflicts_with_all = ["keep_last", "keep_within"])]
    keep_all: bool,
}

impl Set {
    /// Carries it out.
    ///
    /// # Errors
    /// When there never was a workspace of that name.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let rules = context.client()?.call(SetRetention {
            workspace: self.workspace.clone(),
            automatic: self.automatic,
            keep_last: self.keep_last,
            keep_within_s: self.keep_within,
        })?;
        print(&context.output, &rules)
    }
}
