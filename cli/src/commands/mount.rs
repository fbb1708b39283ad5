//! `floe mount`.

use std::path::PathBuf;

use clap::Args;

use super::{Context, absolute, here};
use crate::error::ApiError;
use crate::wire::{self, WirePath};

/// Mount a workspace, or a snapshot read-only, and print the directory
///
/// The directory is made if it is missing. Without one the mount is at STORE/mnt/WORKSPACE, or
/// STORE/mnt/@ID for a snapshot, or beside it if that is taken: a place that only the owner of the
/// store can reach. A mount made by root can be used by every user; name a directory that they can
/// reach.
///
/// Mounting what is mounted there already changes nothing. A workspace may be mounted on several
/// directories. A name that a workspace and a snapshot both have means the workspace.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  cd \"$(floe mount web)\"
  floe mount web /srv/web
  floe mount web/green /mnt/green          a snapshot, read-only")]
pub(crate) struct Mount {
    /// Workspace, or snapshot (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "WS|SNAP")]
    target: String,
    /// Directory to mount on
    dir: Option<PathBuf>,
    /// Only look at a workspace, also while a virtual machine has it
    ///
    /// What others change in it is seen at once. Snapshots are read-only without it.
    #[arg(long)]
    read_only: bool,
}

impl Mount {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no such thing, or it cannot be mounted there.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let dir = self.dir.as_deref().map(absolute).transpose()?;
        let mut client = context.client()?;
        let mounted = client.call(wire::Mount {
            target: self.target.clone(),
            dir: dir.as_deref().map(WirePath::from),
            read_only: self.read_only,
        })?;
        let dir = mounted.dir.to_path();
        here::check(client.daemon_pid(), &[&dir])?;
        if context.output.json {
            return context.output.json(&mounted);
        }
        context.output.paths([&*dir])
    }
}
