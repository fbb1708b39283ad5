//! `floe daemon guard`, which the daemon starts for itself.

use clap::Args;

use crate::daemon;
use crate::error::ApiError;

/// End the connections of a daemon's mounts when it was killed
#[derive(Args, Debug)]
pub(crate) struct Guard {
    /// The daemon's process
    #[arg(long)]
    parent: u32,
}

impl Guard {
    /// Waits for the daemon's end.
    ///
    /// # Errors
    /// When it cannot be waited for, or the connections cannot be ended.
    pub(crate) fn run(&self) -> Result<(), ApiError> {
        daemon::guard::guard(self.parent)
    }
}
