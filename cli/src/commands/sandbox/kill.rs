//! `floe sandbox kill`.

use clap::Args;

use crate::commands::Context;
use crate::error::{ApiError, ErrorKind};
use crate::output::printable;
use crate::wire::{KillSandbox, ShowSandbox};

/// End sandboxes and remove their files; their snapshots stay
///
/// What was changed since the last snapshot of a sandbox is lost with it.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe sandbox kill sb3f9c sb77d0
  floe sandbox kill --if-exists \"$id\"

Under --json: an array of the sandboxes as they were.")]
pub(crate) struct Kill {
    /// Sandboxes (id or its first 4 or more characters)
    #[arg(required = true, value_name = "SB")]
    sandboxes: Vec<String>,
    /// Pass over those that do not exist
    #[arg(long)]
    if_exists: bool,
}

impl Kill {
    /// Carries it out.
    ///
    /// # Errors
    /// When a reference fits none: then none is killed. One that ends by itself meanwhile does not keep
    /// those before it.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        let passed_over = |error: &ApiError| self.if_exists && error.kind == ErrorKind::NotFound;
        // By full ids from here on: one killed must not make another's reference fit.
        let mut ids: Vec<String> = Vec::new();
        for sandbox in &self.sandboxes {
            let sandbox = sandbox.clone();
            match client.call(ShowSandbox { sandbox }) {
                Ok(sandbox) if ids.contains(&sandbox.id) => {}
                Ok(sandbox) => ids.push(sandbox.id),
                Err(error) if passed_over(&error) => {}
                Err(error) => return Err(error),
            }
        }
        let mut killed = Vec::new();
        for sandbox in ids {
            match client.call(KillSandbox { sandbox }) {
                Ok(sandbox) => {
                    let what = format!("killed {} (of {})", sandbox.id, sandbox.template);
                    context.output.note(&printable(&what));
                    killed.push(sandbox);
                }
                Err(error) if passed_over(&error) => {}
                Err(error) => return Err(error),
            }
        }
        if context.output.json {
            return context.output.json(&killed);
        }
        Ok(())
    }
}
