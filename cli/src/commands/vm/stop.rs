//! `floe vm stop`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::output::printable;
use crate::wire::{KillSandbox, ShowSandbox};

/// Switch a virtual machine off and remove its root
///
/// Its workspace at /workspace, if it has one, stays as it is, and so do snapshots.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe vm stop sb3f9c

Under --json: the machine as it was.")]
pub(crate) struct Stop {
    /// Virtual machine (id or its first 4 or more characters)
    #[arg(value_name = "VM")]
    vm: String,
}

impl Stop {
    /// Carries it out.
    ///
    /// # Errors
    /// When the reference fits none, or no virtual machine.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        let sandbox = client.call(ShowSandbox {
            sandbox: self.vm.clone(),
        })?;
        super::console::must_be_vm(&sandbox)?;
        let stopped = client.call(KillSandbox {
            sandbox: sandbox.id,
        })?;
        if context.output.json {
            return context.output.json(&stopped);
        }
        let what = format!("stopped {} (of {})", stopped.id, stopped.template);
        context.output.note(&printable(&what));
        Ok(())
    }
}
