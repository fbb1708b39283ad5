//! `floe daemon run`.

use std::process::ExitCode;

use clap::Args;

use super::DaemonFlags;
use crate::commands::Context;
use crate::daemon::{self, RunOptions};

/// Run the daemon in the foreground, logging to stderr
///
/// It ends on SIGTERM or SIGINT, after unmounting everything; a second signal ends it at once. For
/// a service manager; other commands start a daemon by themselves. With the HTTP API: `floe serve`.
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// Started by another command: report on stdout how that went and leave the terminal
    #[arg(long, hide = true)]
    detached: bool,
    #[command(flatten)]
    flags: DaemonFlags,
}

impl Run {
    /// Runs until the daemon is told to end.
    #[must_use]
    pub(crate) fn run(&self, context: &Context) -> ExitCode {
        let options = RunOptions {
            detached: self.detached,
            ..self.flags.options()
        };
        daemon::run(&context.store, &options, &context.output)
    }
}
