//! `floe fork`.

use std::path::{Path, PathBuf};

use clap::Args;

use super::{Context, absolute, here};
use crate::error::ApiError;
use crate::output::counted;
use crate::time;
use crate::wire::{self, WirePath};

/// Make a new workspace on a snapshot, or on the present state of a workspace
///
/// Takes constant time. Of a live workspace an automatic snapshot is taken first. With --count
/// the forks are called NEW-1, NEW-2 and so on, and are made all or none. Prints the new names or,
/// with --mount, the directories.
///
/// Under --json: a workspace, or, if --count is given, an array of them.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe fork web try
  floe fork web/green try --mount          mounted inside the store
  floe fork web try --count 3 --mount /tmp/try
                                           on /tmp/try/try-1 to /tmp/try/try-3")]
pub(crate) struct Fork {
    /// Workspace, or snapshot (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "WS|SNAP")]
    source: String,
    /// Name of the new workspace
    #[arg(value_name = "NEW")]
    name: String,
    /// Make this many
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    count: Option<u32>,
    /// Mount what is made; with --count, each below DIR
    #[arg(long, value_name = "DIR", num_args = 0..=1)]
    mount: Option<Option<PathBuf>>,
}

impl Fork {
    /// Carries it out.
    ///
    /// # Errors
    /// When the source does not exist, a name is taken, or a mount fails.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let dir = self
            .mount
            .iter()
            .flatten()
            .next()
            .map(|dir| absolute(dir))
            .transpose()?;
        let mut client = context.client()?;
        let made = client.call(wire::Fork {
            source: self.source.clone(),
            snapshot_only: false,
            name: self.name.clone(),
            count: self.count,
            mount: self.mount.is_some(),
            dir: dir.as_deref().map(WirePath::from),
        })?;
        // What is printed: directories, or else names.
        let named: Vec<PathBuf> = made
            .workspaces
            .iter()
            .map(|made| match made.mounts.first() {
                Some(dir) => dir.to_path(),
                None => PathBuf::from(&made.name),
            })
            .collect();
        if self.mount.is_some() {
            let dirs: Vec<&Path> = named.iter().map(|dir| &**dir).collect();
            here::check(client.daemon_pid(), &dirs)?;
        }
        let output = &context.output;
        if output.json {
            return match made.workspaces.as_slice() {
                [one] if self.count.is_none() => output.json(one),
                all => output.json(&all),
            };
        }
        output.paths(named.iter().map(|it| &**it))?;
        let forks = counted(made.workspaces.len(), "fork");
        output.note(&format!("{forks} in {}", time::elapsed(made.elapsed_us)));
        Ok(())
    }
}
