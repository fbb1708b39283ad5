//! `floe vm ...`: virtual machines. Each is a sandbox of the kind `vm`: what `floe sandbox` does with a
//! sandbox it does with these.

pub(crate) mod console;
pub(crate) mod list;
pub(crate) mod monitor;
pub(crate) mod run;
pub(crate) mod stop;

use std::process::ExitCode;

use clap::Subcommand;

use super::Context;
use super::sandbox::show::Show;
use crate::error::ApiError;

/// Commands on virtual machines.
#[derive(Debug, Subcommand)]
pub(crate) enum Vm {
    Run(run::Run),
    #[command(visible_alias = "ls")]
    List(list::List),
    Show(Show),
    Console(console::Console),
    Stop(stop::Stop),
    #[command(hide = true)]
    Monitor(monitor::Monitor),
}

impl Vm {
    /// Carries the command out.
    ///
    /// # Errors
    /// What kept it from doing so.
    pub(crate) fn run(&self, context: &Context) -> Result<ExitCode, ApiError> {
        let done = match self {
            Self::Run(command) => return command.run(context),
            Self::Monitor(command) => return Ok(command.run()),
            Self::List(command) => command.run(context),
            Self::Show(command) => command.run(context),
            Self::Console(command) => command.run(context),
            Self::Stop(command) => command.run(context),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}
