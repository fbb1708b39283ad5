//! `floe bench`.

use std::path::PathBuf;

use clap::Args;

use super::Context;
use crate::bench::{self, Options};
use crate::error::ApiError;

/// Measure snapshots, forks, long chains, copy-up, bases, diff, land and virtual machines here
///
/// Makes temporary stores, mounts them in this process, and removes everything at the end, also
/// when interrupted. It needs a few minutes, 30 GiB of free disk for the largest sizes (they are
/// left out where there is less), and a machine that does nothing else.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe bench
  floe bench snapshot --quick
  floe bench depth --json > depth.json")]
pub(crate) struct Bench {
    /// What to measure; everything if nothing is named
    #[arg(value_name = "NAME", value_enum)]
    benches: Vec<bench::Bench>,
    /// Small sizes and few samples: shows that it works, not how fast
    #[arg(long)]
    quick: bool,
    /// Where the temporary stores go [default: $TMPDIR or /var/tmp]
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

impl Bench {
    /// Carries it out.
    ///
    /// # Errors
    /// When something cannot be made or mounted, or it was interrupted.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let options = Options {
            benches: self.benches.clone(),
            quick: self.quick,
            dir: self.dir.clone(),
            floe: std::env::current_exe().ok(),
        };
        bench::run(&options, &context.output).map(drop)
    }
}
