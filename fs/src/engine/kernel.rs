//! What the transports hold of a view: lookup references, files open for writing, caches.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::View;
use crate::dispatch::{KernelCache, OpenMode, Writers};
use crate::id::Ino;
use crate::lock::{Mutex, rank};

const SHARDS: usize = 16;

fn shard(ino: Ino) -> usize {
    usize::try_from(ino.0 % SHARDS as u64).unwrap_or(0)
}

/// Lookup references of some inodes.
#[derive(Default)]
struct Lookups {
    counts: HashMap<Ino, u64>,
    /// Who holds some of them beside the transport that [`KernelRefs::clear`] is for. Here, and not once for
    /// all, so that whoever is counted is before whatever they hold.
    onlookers: usize,
}

/// References by inode number. They outlive a rollback, as the kernel's do.
#[derive(Default)]
pub(super) struct KernelRefs {
    lookups: [Mutex<{ rank::LEAF }, Lookups>; SHARDS],
    /// Files open for writing, apart from the rest: a snapshot asks for them, and must not look at
    /// every inode that the kernel knows.
    writers: Mutex<{ rank::LEAF }, Writers>,
}

/// Takes `count` away; true when nothing is left.
fn give_back(counts: &mut HashMap<Ino, u64>, ino: Ino, count: u64) -> bool {
    match counts.get_mut(&ino) {
        Some(left) if *left > count => {
            *left -= count;
            false
        }
        _ => {
            counts.remove(&ino);
            true
        }
    }
}

impl KernelRefs {
    pub(super) fn looked_up(&self, ino: Ino) {
        self.referenced(ino, 1);
    }

    /// Counts references that were taken.
    pub(super) fn referenced(&self, ino: Ino, count: u64) {
        let mut lookups = self.lookups[shard(ino)].lock();
        let held = lookups.counts.entry(ino).or_default();
        *held = held.saturating_add(count);
    }

    /// Returns references; true when none is left.
    pub(super) fn forget(&self, ino: Ino, count: u64) -> bool {
        give_back(&mut self.lookups[shard(ino)].lock().counts, ino, count)
    }

    pub(super) fn opened(&self, ino: Ino, mode: OpenMode) {
        // Most are opened for reading: they need not meet at this lock.
        if mode.writes() {
            self.writers.lock().opened(ino, mode);
        }
    }

    /// A descriptor was closed; true when it was the last for writing.
    pub(super) fn closed(&self, ino: Ino, mode: OpenMode) -> bool {
        mode.writes() && self.writers.lock().closed(ino, mode).writer
    }

    pub(super) fn is_referenced(&self, ino: Ino) -> bool {
        self.lookups[shard(ino)].lock().counts.contains_key(&ino)
    }

    /// Files that may be mapped for writing.
    pub(super) fn mappable(&self) -> Vec<Ino> {
        self.writers.lock().mapped()
    }

    pub(super) fn all(&self) -> Vec<Ino> {
        let mut found = self.writers.lock().all();
        for shard in &self.lookups {
            found.extend(shard.lock().counts.keys());
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Drops everything and returns what was referenced and is not any more. As long as there are onlookers,
    /// nobody can say which lookup references are theirs: then all stay, until the view is closed.
    pub(super) fn clear(&self) -> Vec<Ino> {
        let mut found = std::mem::take(&mut *self.writers.lock()).all();
        for shard in &self.lookups {
            let mut lookups = shard.lock();
            if lookups.onlookers == 0 {
                found.extend(lookups.counts.drain().map(|(ino, _)| ino));
            }
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|&ino| !self.is_referenced(ino));
        found
    }

    fn each_lookups(&self, act: impl Fn(&mut Lookups)) {
        for shard in &self.lookups {
            act(&mut shard.lock());
        }
    }
}

/// The transports attached to a view.
#[derive(Default)]
pub(super) struct Transports {
    next: AtomicU64,
    attached: Mutex<{ rank::LEAF }, HashMap<u64, Arc<dyn KernelCache>>>,
}

impl Transports {
    pub(super) fn each(
        &self,
        act: impl Fn(&dyn KernelCache) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        // Called outside the lock: both wait for requests, and a transport may end meanwhile.
        self.all()
            .iter()
            .try_for_each(|transport| act(&**transport))
    }

    /// Does something while no transport serves a request.
    pub(super) fn paused(&self, act: &mut dyn FnMut()) {
        fn nested(transports: &[Arc<dyn KernelCache>], act: &mut dyn FnMut()) {
            match transports {
                [] => act(),
                [first, others @ ..] => first.paused(&mut || nested(others, act)),
            }
        }
        nested(&self.all(), act);
    }

    fn all(&self) -> Vec<Arc<dyn KernelCache>> {
        self.attached.lock().values().cloned().collect()
    }
}

/// Keeps a transport attached to its view until dropped.
pub struct Attachment {
    view: Arc<View>,
    key: u64,
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.view.transports.attached.lock().remove(&self.key);
    }
}

/// Keeps what somebody holds beside the transport that works in a view from being returned with what that
/// one holds. Given up after everything was returned.
pub(crate) struct Looking {
    view: Arc<View>,
}

impl Drop for Looking {
    fn drop(&mut self) {
        let out = |lookups: &mut Lookups| lookups.onlookers -= 1;
        self.view.kernel.each_lookups(out);
    }
}

impl View {
    /// Called before anything is looked up for an onlooker.
    pub(crate) fn look_on(self: &Arc<Self>) -> Looking {
        self.kernel.each_lookups(|lookups| lookups.onlookers += 1);
        Looking { view: self.clone() }
    }

    /// Attaches a transport: snapshots ask it for dirty pages, rollbacks tell it to forget.
    #[must_use]
    pub fn attach(self: &Arc<Self>, cache: Arc<dyn KernelCache>) -> Attachment {
        let key = self.transports.next.fetch_add(1, Ordering::Relaxed);
        self.transports.attached.lock().insert(key, cache);
        Attachment {
            view: self.clone(),
            key,
        }
    }

    /// Whether any transport is attached.
    #[must_use]
    pub fn is_attached(&self) -> bool {
        !self.transports.attached.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_and_writers_are_counted_apart() {
        let refs = KernelRefs::default();
        refs.looked_up(Ino(2));
        refs.looked_up(Ino(2));
        refs.opened(Ino(2), OpenMode::Write);
        refs.opened(Ino(3), OpenMode::ReadWrite);
        refs.opened(Ino(4), OpenMode::Read);
        assert!(!refs.is_referenced(Ino(3)));
        assert_eq!(refs.all(), [Ino(2), Ino(3)]);
        assert_eq!(refs.mappable(), [Ino(3)]);
        assert!(!refs.forget(Ino(2), 1));
        assert!(refs.forget(Ino(2), 1) && !refs.is_referenced(Ino(2)));
        refs.opened(Ino(3), OpenMode::Write);
        assert!(!refs.closed(Ino(3), OpenMode::Read));
        assert!(!refs.closed(Ino(3), OpenMode::ReadWrite));
        assert_eq!(refs.mappable(), []);
        assert!(refs.closed(Ino(3), OpenMode::Write));
        assert_eq!(refs.all(), [Ino(2)]);
        assert!(refs.forget(Ino(2), 5), "more than there were");
        assert_eq!(refs.clear(), [Ino(2)]);
        assert!(refs.all().is_empty());
    }
}
