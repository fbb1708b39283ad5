//! `floe sandbox resume`.

use clap::Args;

use super::create::told;
use crate::commands::Context;
use crate::config::values;
use crate::error::ApiError;
use crate::wire::ResumeSandbox;

/// Have a paused sandbox go on, or start a stopped one
///
/// What was paused goes on where it was. What is stopped has no processes any more: it is started anew on
/// its files. One that runs goes on running.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe sandbox resume sb3f9c --timeout 30m
  floe sandbox resume sb3f9c --cold

Under --json: the sandbox, and attached: how it came to run.")]
pub(crate) struct Resume {
    /// Sandbox (id or its first 4 or more characters)
    #[arg(value_name = "SB")]
    sandbox: String,
    /// End its processes and start it anew, on its files as they are
    #[arg(long)]
    cold: bool,
    /// Its time from now: `90s`, `10m`, `2h`; of one that runs it is only ever made longer
    #[arg(long, value_name = "TIME", value_parser = values::length)]
    timeout: Option<u64>,
}

impl Resume {
    /// Carries it out.
    ///
    /// # Errors
    /// When the reference fits none, or it cannot be started.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let resumed = context.client()?.call(ResumeSandbox {
            sandbox: self.sandbox.clone(),
            timeout_s: self.timeout,
            cold: self.cold,
        })?;
        if context.output.json {
            return context.output.json(&resumed);
        }
        context.output.note(&told(&resumed));
        Ok(())
    }
}
