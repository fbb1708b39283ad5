//! `floe ws quota`.

use clap::Args;
use floe_fs::units;

use super::show::quota_lines;
use crate::commands::{Context, facts};
use crate::error::ApiError;
use crate::wire::{SetQuota, ShowWorkspace};

/// Show or set how much a workspace may hold
///
/// What counts is what is seen in the workspace: what it shares with its snapshots counts once, what only
/// older snapshots still have does not. In a workspace over directories of the host, what
/// began there counts by what it has grown since. Names and attributes do not count as bytes. Beyond the quota writes fail with EDQUOT ("Disk quota exceeded"),
/// df(1) shows it as the size of the disk, and what is there can be changed and removed. Forks begin
/// with the quota of what they are forked from.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe ws quota web
  floe ws quota web --bytes 10G --inodes 200000
  floe ws quota web --bytes none")]
pub(crate) struct Quota {
    /// Name
    name: String,
    /// Bytes (`512M`, `10GiB`, `10GB`), or `none`
    #[arg(long, value_name = "SIZE", value_parser = Limit::bytes)]
    bytes: Option<Limit>,
    /// Files of any kind, directories included, or `none`
    #[arg(long, value_name = "COUNT", value_parser = Limit::count)]
    inodes: Option<Limit>,
}

/// A limit as typed; none: any number.
#[derive(Clone, Copy, Debug)]
struct Limit(Option<u64>);

impl Limit {
    fn bytes(text: &str) -> Result<Self, String> {
        units::bytes_or_none(text).map(Self)
    }

    fn count(text: &str) -> Result<Self, String> {
        units::count_or_none(text).map(Self)
    }
}

impl Quota {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no workspace of that name.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        let name = self.name.clone();
        let shown = match (self.bytes, self.inodes) {
            (None, None) => client.call(ShowWorkspace { name })?,
            (bytes, inodes) => client.call(SetQuota {
                name,
                bytes: bytes.and_then(|limit| limit.0),
                any_bytes: bytes.is_some_and(|limit| limit.0.is_none()),
                inodes: inodes.and_then(|limit| limit.0),
                any_inodes: inodes.is_some_and(|limit| limit.0.is_none()),
            })?,
        };
        if context.output.json {
            return context.output.json(&shown);
        }
        context.output.text(&facts(&quota_lines(&shown)))
    }
}
