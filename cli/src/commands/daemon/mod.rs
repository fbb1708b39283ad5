//! `floe daemon ...`.

pub(crate) mod guard;
pub(crate) mod run;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod stop;

use std::process::ExitCode;

use clap::Subcommand;

use super::Context;
use crate::error::ApiError;

/// Commands on the daemon.
#[derive(Debug, Subcommand)]
pub(crate) enum Daemon {
    Start(start::Start),
    Stop(stop::Stop),
    Status(status::Status),
    Run(run::Run),
    #[command(hide = true)]
    Guard(guard::Guard),
}

impl Daemon {
    /// Carries the command out.
    ///
    /// # Errors
    /// What kept it from doing so.
    pub(crate) fn run(&self, context: &Context) -> Result<ExitCode, ApiError> {
        let done = match self {
            Self::Start(command) => command.run(context),
            Self::Stop(command) => command.run(context),
            Self::Status(command) => command.run(context),
            Self::Guard(command) => command.run(),
            Self::Run(command) => return Ok(command.run(context)),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}
