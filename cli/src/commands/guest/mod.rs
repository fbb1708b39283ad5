//! `floe guest ...`: the kernel of virtual machines.

pub(crate) mod install;
pub(crate) mod show;

use clap::Subcommand;

use super::Context;
use crate::error::ApiError;

/// Commands on the kernel of virtual machines.
#[derive(Debug, Subcommand)]
pub(crate) enum Guest {
    Install(install::Install),
    Show(show::Show),
}

impl Guest {
    /// Carries the command out.
    ///
    /// # Errors
    /// What kept it from doing so.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        match self {
            Self::Install(command) => command.run(context),
            Self::Show(command) => command.run(context),
        }
    }
}
