//! The store as a whole.

use crate::daemon::Daemon;
use crate::error::ApiError;
use crate::wire::records::Checked;
use crate::wire::space::Setting;
use crate::wire::{CheckStore, StoreConfig};

/// Checks every rule of the format that metadata can show. The store stays in use meanwhile.
///
/// # Errors
/// When the store cannot be read. What is wrong with it is no error, but the answer.
pub fn check_store(daemon: &Daemon, _: &CheckStore) -> Result<Checked, ApiError> {
    Ok(daemon.store.check()?.into())
}

/// Tells settings, or changes one.
///
/// # Errors
/// When there is no such setting, or it cannot have that value.
pub fn store_config(daemon: &Daemon, request: &StoreConfig) -> Result<Vec<Setting>, ApiError> {
    let found = match (&request.name, &request.value) {
        (Some(name), Some(value)) => vec![daemon.store.set(name, Some(value))?],
        (Some(name), None) if request.unset => vec![daemon.store.set(name, None)?],
        (name, _) => daemon.store.settings(name.as_deref())?,
    };
    Ok(found.into_iter().map(Into::into).collect())
}
