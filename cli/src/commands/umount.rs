//! `floe umount`.

use std::ffi::OsString;
use std::path::Path;

use clap::Args;

use super::{Context, absolute};
use crate::error::ApiError;
use crate::output::printable;
use crate::wire::{self, WirePath};

/// Unmount a directory, or all mounts of a workspace or snapshot
///
/// What the argument means is tried in this order: the name of a workspace, a directory, a
/// snapshot. Unmounting a workspace that is not mounted changes nothing.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe umount web
  floe umount /srv/web
  floe umount --lazy web                   even while programs use it")]
pub(crate) struct Umount {
    /// Workspace, directory or snapshot
    #[arg(value_name = "WS|DIR")]
    target: OsString,
    /// Detach at once; programs that use it keep it until they end
    #[arg(long, short)]
    lazy: bool,
}

impl Umount {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no such thing, or a mount is busy.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let dir = absolute(Path::new(&self.target))?;
        let answer = context.client()?.call(wire::Umount {
            // A name is ASCII: a path that is not Unicode does not become one by this.
            target: self.target.to_string_lossy().into_owned(),
            dir: WirePath::from(&*dir),
            lazy: self.lazy,
        })?;
        if context.output.json {
            return context.output.json(&answer);
        }
        if answer.unmounted.is_empty() {
            context.output.note("it was not mounted");
        }
        for dir in &answer.unmounted {
            context
                .output
                .note(&format!("unmounted {}", printable(&dir.to_string())));
        }
        Ok(())
    }
}
