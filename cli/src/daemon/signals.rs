//! Signals as stop requests.

use std::sync::mpsc::SyncSender;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;
use tracing::info;

use crate::error::{ApiError, ErrorKind};

/// Turns the first SIGTERM, SIGINT or SIGHUP into a stop request; a second one ends the process
/// at once, as nothing acknowledged can be lost by that.
pub(super) fn watch(stop: SyncSender<String>) -> Result<(), ApiError> {
    let mut signals = Signals::new([SIGTERM, SIGINT, SIGHUP]).map_err(|source| {
        ApiError::new(ErrorKind::Failed, "cannot watch for signals").caused_by(&source)
    })?;
    let watch = move || {
        let mut asked = false;
        for signal in signals.forever() {
            let name = signal_hook::low_level::signal_name(signal).unwrap_or("a signal");
            if asked {
                info!(signal = name, "ending at once");
                std::process::exit(130);
            }
            asked = true;
            if stop.try_send(name.to_owned()).is_err() {
                info!(signal = name, "already stopping");
            }
        }
    };
    std::thread::Builder::new()
        .name("signals".into())
        .spawn(watch)
        .map(drop)
        .map_err(|source| {
            ApiError::new(ErrorKind::Failed, "cannot start a thread").caused_by(&source)
        })
}
