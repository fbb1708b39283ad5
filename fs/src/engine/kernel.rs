//! What the transports hold of a view: lookup references, files open for writing, caches.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::View;
use crate::dispatch::KernelCache;
use crate::id::Ino;
use crate::lock::{Mutex, rank};

const SHARDS: usize = 16;

#[derive(Clone, Copy, Default)]
struct Refs {
    lookups: u64,
    writers: u64,
}

fn shard(ino: Ino) -> usize {
    usize::try_from(ino.0 % SHARDS as u64).unwrap_or(0)
}

/// References by inode number. They outlive a rollback, as the kernel's do.
#[derive(Default)]
pub(super) struct KernelRefs {
    shards: [Mutex<{ rank::LEAF }, HashMap<Ino, Refs>>; SHARDS],
}

impl KernelRefs {
    fn with<T>(&self, ino: Ino, act: impl FnOnce(&mut Refs) -> T) -> T {
        let mut shard = self.shards[shard(ino)].lock();
        let refs = shard.entry(ino).or_default();
        let result = act(refs);
        if refs.lookups == 0 && refs.writers == 0 {
            shard.remove(&ino);
        }
        result
    }

    pub(super) fn looked_up(&self, ino: Ino) {
        self.with(ino, |refs| refs.lookups += 1);
    }

    /// Returns references; true when none is left.
    pub(super) fn forget(&self, ino: Ino, count: u64) -> bool {
        self.with(ino, |refs| {
            refs.lookups = refs.lookups.saturating_sub(count);
            refs.lookups == 0
        })
    }

    pub(super) fn opened_for_write(&self, ino: Ino) {
        self.with(ino, |refs| refs.writers += 1);
    }

    /// Closes a writer; true when it was the last.
    pub(super) fn closed_for_write(&self, ino: Ino) -> bool {
        self.with(ino, |refs| {
            refs.writers = refs.writers.saturating_sub(1);
            refs.writers == 0
        })
    }

    pub(super) fn is_referenced(&self, ino: Ino) -> bool {
        let shard = self.shards[shard(ino)].lock();
        shard.get(&ino).is_some_and(|refs| refs.lookups > 0)
    }

    pub(super) fn writers(&self) -> Vec<Ino> {
        self.collect(|refs| refs.writers > 0)
    }

    pub(super) fn all(&self) -> Vec<Ino> {
        self.collect(|_| true)
    }

    fn collect(&self, keep: impl Fn(&Refs) -> bool) -> Vec<Ino> {
        let mut found = Vec::new();
        for shard in &self.shards {
            let shard = shard.lock();
            found.extend(
                shard
                    .iter()
                    .filter(|(_, refs)| keep(refs))
                    .map(|(&ino, _)| ino),
            );
        }
        found
    }

    /// Drops everything and returns what was referenced.
    pub(super) fn clear(&self) -> Vec<Ino> {
        let mut found = Vec::new();
        for shard in &self.shards {
            found.extend(shard.lock().drain().map(|(ino, _)| ino));
        }
        found
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

impl View {
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
