//! `floe vm list`.

use clap::Args;

use crate::commands::Context;
use crate::commands::sandbox::list::print;
use crate::error::ApiError;
use crate::wire::ListSandboxes;

/// List virtual machines, newest first
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe vm list
  floe vm list --json | jq -r '.[].id'")]
pub(crate) struct List {}

impl List {
    /// Carries it out.
    ///
    /// # Errors
    /// When the daemon cannot answer.
    #[expect(clippy::unused_self, reason = "as all commands")]
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut found = context.client()?.call(ListSandboxes::default())?;
        found.retain(|sandbox| sandbox.kind == "vm");
        let none = "no virtual machines; start one with: floe vm run";
        print(context, &found, none)
    }
}
