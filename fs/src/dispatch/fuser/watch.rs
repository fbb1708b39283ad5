//! Notices when a mount is gone, whoever unmounted it.
//!
//! Each mount keeps a private clone of itself open (see `cache.rs`), which keeps the file system
//! alive after the last visible mount is gone. One thread of the process watches the kernel's table
//! of mounts (poll(2) reports its changes) and lets such clones go; the session ends then.

use std::fs::File;
use std::io;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};

use super::cache::FuseCache;
use super::table;

struct Watched {
    /// Whether the thread is there.
    running: bool,
    /// Mounts that were visible when they were added.
    caches: Vec<Weak<FuseCache>>,
}

static WATCHED: Mutex<Watched> = Mutex::new(Watched {
    running: false,
    caches: Vec::new(),
});

/// Watches a mount that is visible now.
pub(super) fn watch(cache: &Arc<FuseCache>) -> io::Result<()> {
    {
        let mut watched = WATCHED.lock();
        if !watched.running {
            let table = File::open(table::MOUNTINFO)?;
            std::thread::Builder::new()
                .name("floe-mounts".to_owned())
                .spawn(move || run(&table))?;
            watched.running = true;
        }
        watched.caches.push(Arc::downgrade(cache));
    }
    // It may have gone before it was watched.
    check();
    Ok(())
}

fn run(table: &File) {
    loop {
        let mut fds = [PollFd::new(table, PollFlags::PRI | PollFlags::ERR)];
        match poll(&mut fds, None) {
            Ok(_) => check(),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "mounts are not watched any more");
                WATCHED.lock().running = false;
                return;
            }
        }
    }
}

/// Lets the private clones of invisible mounts go.
pub(super) fn check() {
    let mut gone = Vec::new();
    {
        let mut watched = WATCHED.lock();
        // Read under the lock: an older table would lack a mount that was added meanwhile.
        let mounts = match table::all() {
            Ok(mounts) => mounts,
            Err(error) => {
                tracing::error!(%error, "cannot read the table of mounts");
                return;
            }
        };
        watched.caches.retain(|cache| {
            let Some(cache) = cache.upgrade() else {
                return false;
            };
            let device = cache.device();
            let visible = mounts.iter().any(|mount| mount.device == device);
            if !visible {
                gone.push(cache);
            }
            visible
        });
    }
    // Outside the lock: closing may write back and wait for the session.
    for cache in gone {
        cache.let_go();
    }
}
