//! `floe template ...`: templates.

pub(crate) mod build;
pub(crate) mod delete;
pub(crate) mod list;

use clap::Subcommand;

use super::Context;
use crate::error::ApiError;

/// Commands on templates.
#[derive(Debug, Subcommand)]
pub(crate) enum Template {
    Build(build::Build),
    #[command(visible_alias = "ls")]
    List(list::List),
    #[command(visible_alias = "rm")]
    Delete(delete::Delete),
}

impl Template {
    /// Carries the command out.
    ///
    /// # Errors
    /// What kept it from doing so.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        match self {
            Self::Build(command) => command.run(context),
            Self::List(command) => command.run(context),
            Self::Delete(command) => command.run(context),
        }
    }
}
