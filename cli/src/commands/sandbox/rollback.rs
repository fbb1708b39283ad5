//! `floe sandbox rollback`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::output::printable;
use crate::wire::RollbackSandbox;

/// Put a sandbox back on a snapshot
///
/// Its processes are ended, its files become those of the snapshot, and it is started again under its id.
/// The files as they were before are kept in an automatic snapshot, so that this can be undone.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe sandbox rollback sb3f9c 1f3c2aa09b7e6d54
  floe snap list --ws \"$(floe sandbox show sb3f9c --json | jq -r .workspace)\"")]
pub(crate) struct Rollback {
    /// Sandbox (id or its first 4 or more characters)
    #[arg(value_name = "SB")]
    sandbox: String,
    /// Snapshot (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "SNAP")]
    snapshot: String,
}

impl Rollback {
    /// Carries it out.
    ///
    /// # Errors
    /// When a reference fits none, or the sandbox's state forbids it.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let sandbox = context.client()?.call(RollbackSandbox {
            sandbox: self.sandbox.clone(),
            snapshot: self.snapshot.clone(),
        })?;
        if context.output.json {
            return context.output.json(&sandbox);
        }
        let (id, snapshot) = (&sandbox.id, &self.snapshot);
        let what = format!("{id} is on '{snapshot}' now, and was started again");
        context.output.note(&printable(&what));
        Ok(())
    }
}
