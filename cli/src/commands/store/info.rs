//! `floe store info`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;

/// Show what is in the store
///
/// Reads only, and needs no daemon.
#[derive(Args, Debug)]
pub(crate) struct Info {}

impl Info {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no store, or it cannot be read.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let info = floe_fs::Store::inspect(context.store.path())?;
        super::show(context, &info)
    }
}
