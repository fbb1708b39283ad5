//! `floe sandbox pause`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::wire::PauseSandbox;

/// Freeze the processes of sandboxes
///
/// They keep their memory and use no processor until `floe sandbox resume`. The daemon's end ends
/// them: a sandbox is then stopped, and resuming it starts it anew on its files. Pausing what is paused
/// changes nothing.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe sandbox pause sb3f9c
  floe sandbox pause $(floe sandbox list --quiet --state running)

Under --json: an array of the sandboxes.")]
pub(crate) struct Pause {
    /// Sandboxes (id or its first 4 or more characters)
    #[arg(required = true, value_name = "SB")]
    sandboxes: Vec<String>,
}

impl Pause {
    /// Carries it out.
    ///
    /// # Errors
    /// When a reference fits none, or its state forbids it; those before it are paused then.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        let mut paused = Vec::new();
        for sandbox in &self.sandboxes {
            let sandbox = sandbox.clone();
            let sandbox = client.call(PauseSandbox { sandbox })?;
            let state = sandbox.state.word();
            context.output.note(&format!("{} is {state}", sandbox.id));
            paused.push(sandbox);
        }
        if context.output.json {
            return context.output.json(&paused);
        }
        Ok(())
    }
}
