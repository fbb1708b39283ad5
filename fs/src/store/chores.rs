//! The background thread of a store: work that no caller waits for.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::core::{Chore, Core};
use crate::engine::View;
use crate::id::Ino;

/// Inodes reclaimed in one transaction: enough to make `rm -r` cheap, few enough that the writer
/// is free again within a fraction of a millisecond.
const REAP_BATCH: usize = 32;

/// Corrections written in one transaction.
const APPLY_BATCH: usize = 32;

/// The running thread. Dropping it finishes what is queued.
pub(super) struct Chores {
    core: Arc<Core>,
    thread: Option<JoinHandle<()>>,
}

impl Chores {
    pub(super) fn start(core: &Arc<Core>) -> io::Result<Self> {
        let (send, receive): (Sender<Chore>, _) = unbounded();
        let thread = std::thread::Builder::new()
            .name("floe-chores".to_owned())
            .spawn({
                let core = core.clone();
                move || run(&core, &receive)
            })?;
        *core.chores.lock() = Some(send);
        Ok(Self {
            core: core.clone(),
            thread: Some(thread),
        })
    }
}

impl Drop for Chores {
    fn drop(&mut self) {
        *self.core.chores.lock() = None;
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the background thread panicked");
        }
    }
}

fn run(core: &Core, receive: &Receiver<Chore>) {
    let mut held = None;
    while let Some(chore) = held.take().or_else(|| receive.recv().ok()) {
        match chore {
            Chore::Apply(mut change) => {
                while change.len() < APPLY_BATCH {
                    match receive.try_recv() {
                        Ok(Chore::Apply(next)) => change.append(next),
                        Ok(other) => {
                            held = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                if let Err(error) = core.catalog.apply(&change) {
                    tracing::warn!(%error, "a correction in the background was not written");
                }
            }
            Chore::Tell(done) => {
                if done.send(()).is_err() {
                    tracing::debug!("nobody waits for the background thread any more");
                }
            }
            Chore::Reap(view, ino) => {
                let mut inos = vec![ino];
                while inos.len() < REAP_BATCH {
                    match receive.try_recv() {
                        Ok(Chore::Reap(next, ino)) if Arc::ptr_eq(&next, &view) => inos.push(ino),
                        Ok(other) => {
                            held = Some(other);
                            break;
                        }
                        Err(_) => break,
                    }
                }
                reap(&view, &inos);
            }
        }
    }
}

fn reap(view: &View, inos: &[Ino]) {
    if let Err(error) = view.reap(inos) {
        // They stay unlinked in the catalog; opening the store tries again.
        tracing::warn!(%error, count = inos.len(), "unlinked files were not reclaimed");
    }
}
