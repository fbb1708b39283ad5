//! Threads for what may take long: they serve no requests, so that a mount does not stand still
//! while a disk writes.

use std::sync::OnceLock;

use crossbeam_channel::{Sender, unbounded};

/// Threads of the process. More syncs than these at once wait for each other, and nobody else does.
const THREADS: usize = 8;

type Job = Box<dyn FnOnce() + Send>;

static JOBS: OnceLock<Option<Sender<Job>>> = OnceLock::new();

fn start() -> Option<Sender<Job>> {
    let (send, receive) = unbounded::<Job>();
    let mut started = 0;
    for _ in 0..THREADS {
        let receive = receive.clone();
        let thread = std::thread::Builder::new()
            .name("floe-sync".to_owned())
            .spawn(move || receive.iter().for_each(|job| job()));
        match thread {
            Ok(_) => started += 1,
            Err(error) => tracing::warn!(%error, "no thread for syncing"),
        }
    }
    (started > 0).then_some(send)
}

/// Does something on one of the threads; on the caller's own if there are none.
pub(super) fn later(job: impl FnOnce() + Send + 'static) {
    match JOBS.get_or_init(start) {
        Some(jobs) => {
            if let Err(unsent) = jobs.send(Box::new(job)) {
                (unsent.0)();
            }
        }
        None => job(),
    }
}
