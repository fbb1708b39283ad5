//! `floe completions`.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{Cli, Context};
use crate::error::ApiError;

/// Print a completion script for a shell
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe completions bash > /etc/bash_completion.d/floe
  floe completions zsh > \"${fpath[1]}/_floe\"
  floe completions fish > ~/.config/fish/completions/floe.fish")]
pub(crate) struct Completions {
    /// Shell
    shell: Shell,
}

impl Completions {
    /// Carries it out.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "floe", &mut script);
        context.output.text(&String::from_utf8_lossy(&script))
    }
}
