//! The store as a whole.

use crate::daemon::Daemon;
use crate::error::ApiError;
use crate::wire::CheckStore;
use crate::wire::records::Checked;

/// Checks every rule of the format that metadata can show. The store stays in use meanwhile.
///
/// # Errors
/// When the store cannot be read. What is wrong with it is no error, but the answer.
pub fn check_store(daemon: &Daemon, _: &CheckStore) -> Result<Checked, ApiError> {
    Ok(daemon.store.check()?.into())
}
