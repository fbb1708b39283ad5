//! `floe dedup`.

use clap::Args;

use super::Context;
use crate::error::ApiError;
use crate::output::{counted, size};
use crate::progress::ImportBar;
use crate::time;
use crate::wire::HashNow;

/// Store equal contents of snapshots once, now
///
/// The daemon does it by itself, a little at a time: it hashes what a snapshot has frozen, and stores
/// files that are equal byte by byte once, whatever they are called and wherever they came from. This
/// does all that is left at once, and says how much it saves. What is written in workspaces is looked at
/// once a snapshot has it. Interrupting it leaves the rest to the daemon.
///
/// Under --json: an object with objects (hashed), bytes (read), shared (objects stored with an equal one
/// now), saved (bytes on the disk; where the disk shares extents, at most), failed (objects that could
/// not be read: see `floe check`), and elapsed_us.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe dedup
  floe store config dedup off      never store anything once
  floe store config hash-rate 16M  hash less of it in a second, in the background")]
pub(crate) struct Dedup {}

impl Dedup {
    /// Carries it out.
    ///
    /// # Errors
    /// When the store fails.
    #[expect(clippy::unused_self, reason = "every command has one")]
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut bar = ImportBar::new("hashing", !context.output.json && !context.output.quiet);
        let mut client = context.client()?;
        let done = client.call_with_progress(HashNow {}, &mut |progress| bar.update(progress));
        drop(bar);
        let done = done?;
        if context.output.json {
            return context.output.json(&done);
        }
        context.output.note(&format!(
            "{} saved: {} hashed, {} stored once, {} read in {}",
            size(done.saved),
            counted(done.objects, "object"),
            done.shared,
            size(done.bytes),
            time::elapsed(done.elapsed_us)
        ));
        if done.failed > 0 {
            context.output.note(&format!(
                "warning: {} could not be read; see the daemon's log",
                counted(done.failed, "object")
            ));
        }
        Ok(())
    }
}
