//! `floe rollback`.

use clap::Args;

use super::Context;
use crate::error::ApiError;
use crate::time;
use crate::wire;

/// Put a workspace back on an older snapshot, in place
///
/// Where it is mounted, names and contents change at once; open files keep working or fail with
/// ESTALE. The state before is kept as an automatic snapshot, whose id is printed, so that a
/// rollback can be undone by another. Refused while something is mounted inside the workspace.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe rollback web green
  kept=$(floe rollback web green) && floe rollback web \"$kept\"     there and back")]
pub(crate) struct Rollback {
    /// Workspace
    #[arg(value_name = "WS")]
    workspace: String,
    /// Snapshot (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "SNAP")]
    snapshot: String,
}

impl Rollback {
    /// Carries it out.
    ///
    /// # Errors
    /// When the workspace or the snapshot does not exist, or something is mounted inside.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let done = context.client()?.call(wire::Rollback {
            workspace: self.workspace.clone(),
            snapshot: self.snapshot.clone(),
        })?;
        if context.output.json {
            return context.output.json(&done);
        }
        context.output.line(&done.kept)?;
        context.output.note(&format!(
            "'{}' is on {} now, in {}; the state before is kept in the snapshot above",
            done.workspace.name,
            done.to,
            time::elapsed(done.elapsed_us)
        ));
        Ok(())
    }
}
