//! `floe gc`.

use clap::Args;

use super::Context;
use crate::error::ApiError;
use crate::output::{counted, size};
use crate::progress::ImportBar;
use crate::time;
use crate::wire::Collect;
use crate::wire::space::Collected;

/// Give back now what nothing needs any more
///
/// Deletes first the snapshots that have expired or that no rule keeps (`floe retention show`). The daemon
/// does both by itself, and gives space back after each delete, a little at a time, so that those who use a
/// workspace notice nothing. This does it at once and says how much it was. Interrupting it leaves
/// the rest to the daemon.
///
/// Under --json: an object with snapshots (deleted, or in a dry run those that would be), layers (removed), merged (into the one that stood on them), objects and
/// bytes (freed on the disk), and elapsed_us.
#[derive(Args, Debug)]
pub(crate) struct Gc {
    /// Only say how many snapshots would be deleted, and what that would free
    #[arg(long)]
    dry_run: bool,
}

impl Gc {
    /// Carries it out.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut bar = ImportBar::new("freeing", !context.output.json && !context.output.quiet);
        let mut client = context.client()?;
        let done = client.call_with_progress(
            Collect {
                dry_run: self.dry_run,
            },
            &mut |progress| bar.update(progress),
        );
        drop(bar);
        let done = done?;
        if context.output.json {
            return context.output.json(&done);
        }
        let number = done.snapshots;
        let snapshots = counted(number, "snapshot");
        let note = match (self.dry_run, done.snapshots) {
            (true, _) => format!(
                "{snapshots} would be deleted, which would free {}",
                size(done.bytes)
            ),
            (false, 0) => told(&done),
            (false, _) => format!("{snapshots} deleted; {}", told(&done)),
        };
        context.output.note(&note);
        Ok(())
    }
}

/// What was given back, in words.
pub(super) fn told(done: &Collected) -> String {
    format!(
        "{} freed: {}, {} removed, {} merged, in {}",
        size(done.bytes),
        counted(done.objects, "object"),
        counted(done.layers, "layer"),
        done.merged,
        time::elapsed(done.elapsed_us)
    )
}
