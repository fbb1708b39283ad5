//! `floe store init`.

use clap::Args;

use crate::commands::Context;
use crate::error::{ApiError, ErrorKind};

/// Make a store in a new or empty directory
///
/// Other commands do this by themselves; use it to choose the place before.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe store init
  floe store init --store /data/floe
  floe store init --no-dedup")]
pub(crate) struct Init {
    /// Do not store equal contents of snapshots once (see `floe store config`)
    #[arg(long)]
    no_dedup: bool,
}

impl Init {
    /// Carries it out.
    ///
    /// # Errors
    /// When the directory holds something, or cannot be written.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let info = context.store.init()?;
        if self.no_dedup {
            let store = floe_fs::Store::open(context.store.path())?;
            store.set("dedup", Some("off"))?;
            store.settle().map_err(|error| {
                let what = "the store was made, but it may not know that it is without dedup";
                ApiError::new(ErrorKind::Failed, what).caused_by(&error)
            })?;
        }
        if context.output.json {
            return context.output.json(&info);
        }
        context
            .output
            .note(&format!("made the store {}", info.dir.display()));
        Ok(())
    }
}
