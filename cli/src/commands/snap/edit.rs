//! `floe snap edit`.

use clap::Args;
use jiff::Timestamp;

use crate::commands::Context;
use crate::error::ApiError;
use crate::time;
use crate::wire::EditSnapshots;

/// Change the name, message or expiry of a snapshot
///
/// What it shows never changes.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe snap edit 1f3c --name green -m 'all tests pass'
  floe snap edit web/green --no-name
  floe snap edit web/green --expires 7d
  floe snap edit web/green --expires never

Prints the id. Under --json: the snapshot, as of `floe snap show`.")]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct Edit {
    /// Snapshot (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "SNAP")]
    snapshot: String,
    /// Name, unique among the snapshots of its workspace
    #[arg(long, group = "what")]
    name: Option<String>,
    /// Take its name away
    #[arg(long, group = "what", conflicts_with = "name")]
    no_name: bool,
    /// Message; an empty one takes it away
    #[arg(long, short, value_name = "MSG", group = "what")]
    message: Option<String>,
    /// Delete it when so much time is past from now on (`7d`, `12h`, `1w 2d`), or `never`
    #[arg(long, value_name = "AGE", value_parser = expiry, group = "what")]
    expires: Option<Expiry>,
}

/// What `--expires` says.
#[derive(Clone, Copy, Debug)]
enum Expiry {
    Never,
    At(Timestamp),
}

fn expiry(text: &str) -> Result<Expiry, String> {
    match text {
        "never" => Ok(Expiry::Never),
        text => time::from_now(text).map(Expiry::At),
    }
}

impl Edit {
    /// Carries it out.
    ///
    /// # Errors
    /// When the snapshot is not found, or the name is taken.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let changed = context.client()?.call(EditSnapshots {
            snapshots: vec![self.snapshot.clone()],
            name: self.name.clone(),
            no_name: self.no_name,
            message: self.message.clone(),
            expires_at: match self.expires {
                Some(Expiry::At(time)) => Some(time.to_string()),
                _ => None,
            },
            never_expires: matches!(self.expires, Some(Expiry::Never)),
            ..EditSnapshots::default()
        })?;
        if context.output.json {
            return context.output.json(&changed.first());
        }
        changed
            .iter()
            .try_for_each(|one| context.output.line(&one.id))
    }
}
