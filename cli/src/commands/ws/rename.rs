//! `floe ws rename`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::wire::RenameWorkspace;

/// Give a workspace another name
///
/// Its mounts stay where they are.
#[derive(Args, Debug)]
pub(crate) struct Rename {
    /// Name so far
    name: String,
    /// New name
    to: String,
}

impl Rename {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no workspace of that name, or the new one is taken.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let request = RenameWorkspace {
            name: self.name.clone(),
            to: self.to.clone(),
        };
        let renamed = context.client()?.call(request)?;
        if context.output.json {
            return context.output.json(&renamed);
        }
        context
            .output
            .note(&format!("renamed '{}' to '{}'", self.name, renamed.name));
        Ok(())
    }
}
