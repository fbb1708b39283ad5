//! The background thread of a store: work that no caller waits for.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender, unbounded};

use crate::background::Background;
use crate::core::{Chore, Core};
use crate::engine::{self, View};
use crate::id::{Ino, ObjectId};

/// Inodes reclaimed in one transaction: enough to make `rm -r` cheap, few enough that the writer
/// is free again within a fraction of a millisecond.
const REAP_BATCH: usize = 32;

/// Files removed after one sync of the catalog.
const REMOVE_BATCH: usize = 1024;
/// How long removals wait for others.
const DELAY: Duration = Duration::from_millis(20);
/// How often what nobody wakes this thread for is done.
const TICK: Duration = Duration::from_secs(1);

/// Starts the thread. Before it ends it does what is queued.
pub(super) fn start(core: &Arc<Core>) -> io::Result<Background> {
    let (send, receive): (Sender<Chore>, _) = unbounded();
    let started = Background::start(
        core,
        "floe-chores",
        move |core| run(core, &receive),
        |core| *core.chores.lock() = None,
    )?;
    *core.chores.lock() = Some(send);
    Ok(started)
}

/// A panic costs what is at work then, which opening the store finds again; the thread goes on.
fn run(core: &Core, receive: &Receiver<Chore>) {
    while catch_unwind(AssertUnwindSafe(|| work(core, receive))).is_err() {
        tracing::error!("panic in the background");
    }
}

fn work(core: &Core, receive: &Receiver<Chore>) {
    let mut held = None;
    // What waits for more of its kind: one sync serves many.
    let mut unused = Vec::new();
    loop {
        let next = match held.take() {
            Some(chore) => Ok(chore),
            None if unused.is_empty() => receive.recv_timeout(TICK),
            None => receive.recv_timeout(DELAY),
        };
        let more = matches!(next, Ok(Chore::Reap(..)));
        if !more || unused.len() >= REMOVE_BATCH {
            remove_unused(core, &mut unused);
        }
        match next {
            Ok(Chore::Reap(view, ino)) => held = reap(&view, ino, receive, &mut unused),
            Ok(Chore::Tell(done)) => {
                note_elapsed(core);
                if done.send(()).is_err() {
                    tracing::debug!("nobody waits for the background thread any more");
                }
            }
            Ok(Chore::NoteElapsed) | Err(RecvTimeoutError::Timeout) => note_elapsed(core),
            Err(RecvTimeoutError::Disconnected) => {
                note_elapsed(core);
                return;
            }
        }
    }
}

fn note_elapsed(core: &Core) {
    let change = core.elapsed.change();
    if let Err(error) = core.catalog.apply(&change) {
        tracing::warn!(%error, "how long some snapshots took is not known exactly");
    }
    core.elapsed.written(&change);
}

fn remove_unused(core: &Core, unused: &mut Vec<(Ino, ObjectId)>) {
    if let Err(error) = engine::remove(core, std::mem::take(unused)) {
        // They stay given up in the catalog; opening the store tries again.
        tracing::warn!(%error, "files of removed files stay on disk");
    }
}

/// Reclaims an inode together with those that wait behind it; returns what came after them.
fn reap(
    view: &Arc<View>,
    ino: Ino,
    receive: &Receiver<Chore>,
    unused: &mut Vec<(Ino, ObjectId)>,
) -> Option<Chore> {
    let mut inos = vec![ino];
    let mut other = None;
    while inos.len() < REAP_BATCH && other.is_none() {
        match receive.try_recv() {
            Ok(Chore::Reap(next, ino)) if Arc::ptr_eq(&next, view) => inos.push(ino),
            Ok(next) => other = Some(next),
            Err(_) => break,
        }
    }
    match view.reap(&inos) {
        Ok(objects) => unused.extend(objects),
        Err(error) => {
            // They stay unlinked in the catalog; opening the store tries again.
            tracing::warn!(%error, count = inos.len(), "unlinked files were not reclaimed");
        }
    }
    other
}
