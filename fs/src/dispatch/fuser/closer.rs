//! Closing descriptors away from the threads that serve requests.

use std::os::fd::OwnedFd;
use std::sync::{Arc, OnceLock};

use crossbeam_channel::{Sender, unbounded};

/// Closes a descriptor in a thread that serves nothing: closing may write back, and then waits for
/// an answer.
pub(super) fn close_elsewhere(fd: Arc<OwnedFd>) {
    static CLOSER: OnceLock<Option<Sender<Arc<OwnedFd>>>> = OnceLock::new();
    let closer = CLOSER.get_or_init(|| {
        let (send, receive) = unbounded::<Arc<OwnedFd>>();
        let spawned = std::thread::Builder::new()
            .name("floe-closer".to_owned())
            .spawn(move || receive.into_iter().for_each(drop));
        match spawned {
            Ok(_) => Some(send),
            Err(error) => {
                tracing::error!(%error, "no thread to close files in");
                None
            }
        }
    });
    match closer {
        Some(closer) => drop(closer.send(fd)),
        // Leaking it only delays the end of the mount; closing it here could stop the session.
        None => std::mem::forget(fd),
    }
}
