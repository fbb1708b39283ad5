//! Which snapshots a command is about, by what they have in common.

use std::collections::BTreeMap;

use clap::Args;
use jiff::Timestamp;

use crate::commands::{label, labels};
use crate::error::ApiError;
use crate::time;

/// Conditions, all of which have to hold.
#[derive(Args, Debug)]
pub(super) struct Matching {
    /// Only those of this workspace
    #[arg(long, value_name = "WS")]
    pub(super) ws: Option<String>,
    /// Only those of this name
    #[arg(long)]
    pub(super) name: Option<String>,
    /// Only those with this label; repeated: with all of them
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Only those taken longer ago than this: `7d`, `12h`, `1w 2d`
    #[arg(long, value_name = "AGE", value_parser = time::long_ago)]
    older_than: Option<Timestamp>,
}

impl Matching {
    /// Whether there is any condition.
    pub(super) fn says_anything(&self) -> bool {
        self.ws.is_some()
            || self.name.is_some()
            || !self.labels.is_empty()
            || self.older_than.is_some()
    }

    /// The labels.
    ///
    /// # Errors
    /// When one is there twice.
    pub(super) fn labels(&self) -> Result<BTreeMap<String, String>, ApiError> {
        labels(&self.labels)
    }

    /// The time before which they were taken, RFC 3339.
    pub(super) fn before(&self) -> Option<String> {
        self.older_than.map(|time| time.to_string())
    }
}
