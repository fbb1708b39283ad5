//! `floe daemon start`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::wire;

/// Start the daemon unless it runs
///
/// Other commands do this by themselves. Its log is STORE/run/daemon.log.
#[derive(Args, Debug)]
pub(crate) struct Start {}

impl Start {
    /// Carries it out.
    ///
    /// # Errors
    /// What keeps the daemon from starting.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let status = context.client()?.call(wire::Status {})?;
        if context.output.json {
            return context.output.json(&status);
        }
        context
            .output
            .note(&format!("running as process {}", status.pid));
        Ok(())
    }
}
