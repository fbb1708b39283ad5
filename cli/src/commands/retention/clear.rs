//! `floe retention clear`.

use clap::Args;

use super::print;
use crate::commands::Context;
use crate::error::ApiError;
use crate::wire::ClearRetention;

/// Take a rule back
///
/// For the workspace the store's rule holds again. Without a workspace the store's own rule is taken
/// back, and the default holds.
///
/// Prints the rules as `floe retention show` does.
#[derive(Args, Debug)]
pub(crate) struct Clear {
    /// Workspace, or one that was deleted
    #[arg(value_name = "WS")]
    workspace: Option<String>,
    /// The rule for snapshots that Floe takes by itself
    #[arg(long)]
    automatic: bool,
}

impl Clear {
    /// Carries it out.
    ///
    /// # Errors
    /// When there never was a workspace of that name.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let rules = context.client()?.call(ClearRetention {
            workspace: self.workspace.clone(),
            automatic: self.automatic,
        })?;
        print(&context.output, &rules)
    }
}
