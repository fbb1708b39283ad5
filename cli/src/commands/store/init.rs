//! `floe store init`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;

/// Make a store in a new or empty directory
///
/// Other commands do this by themselves; use it to choose the place before.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe store init
  floe store init --store /data/floe")]
pub(crate) struct Init {}

impl Init {
    /// Carries it out.
    ///
    /// # Errors
    /// When the directory holds something, or cannot be written.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let info = context.store.init()?;
        if context.output.json {
            return context.output.json(&info);
        }
        context
            .output
            .note(&format!("made the store {}", info.dir.display()));
        Ok(())
    }
}
