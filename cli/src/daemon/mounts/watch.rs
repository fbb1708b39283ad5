//! Noticing what others do to the mounts: `umount` by hand, an aborted connection.
//!
//! Two sources feed one channel: a session's own end, and the kernel's table of mounts, which
//! reports every change to whoever polls it. One thread receives, so that no callback ever takes
//! a lock.

use std::collections::HashSet;
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use floe_fs::MountTarget;
use rustix::event::{PollFd, PollFlags};
use tracing::{debug, warn};

use super::Mounts;
use super::slot::Key;
use crate::error::{ApiError, ErrorKind};

/// Changes of the table that come within this time are looked at together.
const GATHER: Duration = Duration::from_millis(20);

/// Something happened.
pub(super) enum Event {
    /// The session of that number ended.
    SessionEnded(MountTarget, u64),
    /// Something was mounted or unmounted, by anybody.
    TableChanged,
}

/// Starts both threads. They end when the registry is gone.
pub(super) fn start(
    mounts: Weak<Mounts>,
    events: Sender<Event>,
    received: Receiver<Event>,
) -> Result<(), ApiError> {
    let failed = |source: std::io::Error| {
        ApiError::new(ErrorKind::Failed, "cannot watch the mounts").caused_by(&source)
    };
    let table = File::open("/proc/self/mountinfo").map_err(failed)?;
    std::thread::Builder::new()
        .name("mount table".into())
        .spawn(move || poll_table(&table, &events))
        .map_err(failed)?;
    std::thread::Builder::new()
        .name("mount events".into())
        .spawn(move || receive(&mounts, &received))
        .map_err(failed)?;
    Ok(())
}

fn poll_table(table: &File, events: &Sender<Event>) {
    loop {
        let mut fds = [PollFd::from_borrowed_fd(table.as_fd(), PollFlags::PRI)];
        match rustix::event::poll(&mut fds, None) {
            Ok(_) if events.send(Event::TableChanged).is_err() => return,
            Ok(_) => std::thread::sleep(GATHER),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => {
                warn!(%error, "unmounts by hand will not be noticed at once");
                return;
            }
        }
    }
}

fn receive(mounts: &Weak<Mounts>, received: &Receiver<Event>) {
    for event in received {
        let Some(mounts) = mounts.upgrade() else {
            return;
        };
        match event {
            Event::SessionEnded(target, number) => {
                let slot = mounts.slots.lock().get(&Key::from(&target)).cloned();
                if let Some(slot) = slot {
                    debug!(number, "a session ended");
                    slot.session_ended(&mounts, number);
                    mounts.prune(&slot);
                }
            }
            Event::TableChanged => reconcile(&mounts),
        }
    }
}

fn reconcile(mounts: &Mounts) {
    let found: HashSet<PathBuf> = match floe_fs::dispatch::fuser::floe_mounts(mounts.store.id()) {
        Ok(found) => found.into_iter().map(|mount| mount.dir).collect(),
        Err(error) => {
            warn!(%error, "cannot read the table of mounts");
            return;
        }
    };
    for slot in mounts.every_slot() {
        slot.reconcile(mounts, &|dir: &Path| found.contains(dir));
    }
}
