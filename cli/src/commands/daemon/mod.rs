//! `floe daemon ...`.

pub(crate) mod guard;
pub(crate) mod run;
pub(crate) mod start;
pub(crate) mod status;
pub(crate) mod stop;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Subcommand};

use super::Context;
use crate::config::LogFormat;
use crate::daemon::RunOptions;
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

/// Flags of whatever runs the daemon in the foreground.
#[derive(Args, Debug)]
pub(crate) struct DaemonFlags {
    /// Configuration file [default: $FLOE_CONFIG, else config.toml in the store if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// How log lines look [default: as configured, else human]
    #[arg(long, value_name = "FORMAT")]
    log_format: Option<LogFormat>,
}

impl DaemonFlags {
    /// What they say of how to run it.
    pub(crate) fn options(&self) -> RunOptions {
        RunOptions {
            config: self.config.clone(),
            log_format: self.log_format,
            ..RunOptions::default()
        }
    }
}
