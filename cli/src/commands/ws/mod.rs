//! `floe ws ...`: workspaces.

pub(crate) mod adopt;
pub(crate) mod create;
pub(crate) mod delete;
pub(crate) mod list;
pub(crate) mod quota;
pub(crate) mod rename;
pub(crate) mod show;

use clap::Subcommand;

use super::Context;
use crate::error::ApiError;

/// Commands on workspaces.
#[derive(Debug, Subcommand)]
pub(crate) enum Ws {
    Create(create::Create),
    #[command(visible_alias = "ls")]
    List(list::List),
    Show(show::Show),
    Adopt(adopt::Adopt),
    Quota(quota::Quota),
    Rename(rename::Rename),
    #[command(visible_alias = "rm")]
    Delete(delete::Delete),
}

impl Ws {
    /// Carries the command out.
    ///
    /// # Errors
    /// What kept it from doing so.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        match self {
            Self::Create(command) => command.run(context),
            Self::List(command) => command.run(context),
            Self::Show(command) => command.run(context),
            Self::Adopt(command) => command.run(context),
            Self::Quota(command) => command.run(context),
            Self::Rename(command) => command.run(context),
            Self::Delete(command) => command.run(context),
        }
    }
}
