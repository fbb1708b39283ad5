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

/// Who holds lookup references. Counted apart, because whoever works in a view does not say at its end what
/// it holds, and what others hold must stay then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Holder {
    /// The one transport that works in the view, or several that return what they hold themselves.
    Working,
    /// Those that only look on.
    Looking,
}

/// Lookup references of some inodes.
#[derive(Default)]
struct Lookups {
    working: HashMap<Ino, u64>,
    looking: HashMap<Ino, u64>,
}

impl Lookups {
    fn of(&mut self, holder: Holder) -> &mut HashMap<Ino, u64> {
        match holder {
            Holder::Working => &mut self.working,
            Holder::Looking => &mut self.looking,
        }
    }

    fn has(&self, ino: Ino) -> bool {
        self.working.contains_key(&ino) || self.looking.contains_key(&ino)
    }
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
    pub(super) fn looked_up(&self, holder: Holder, ino: Ino) {
        self.referenced(holder, ino, 1);
    }

    /// Counts references that were taken.
    pub(super) fn referenced(&self, holder: Holder, ino: Ino, count: u64) {
        let mut lookups = self.lookups[shard(ino)].lock();
        let held = lookups.of(holder).entry(ino).or_default();
        *held = held.saturating_add(count);
    }

    /// Returns references; true when none is left, of anybody.
    pub(super) fn forget(&self, holder: Holder, ino: Ino, count: u64) -> bool {
        let mut lookups = self.lookups[shard(ino)].lock();
        give_back(lookups.of(holder), ino, count) && !lookups.has(ino)
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
        self.lookups[shard(ino)].lock().has(ino)
    }

    /// Files that may be mapped for writing.
    pub(super) fn mappable(&self) -> Vec<Ino> {
        self.writers.lock().mapped()
    }

    pub(super) fn all(&self) -> Vec<Ino> {
        let mut found = self.writers.lock().all();
        for shard in &self.lookups {
            let lookups = shard.lock();
            found.extend(lookups.working.keys().chain(lookups.looking.keys()));
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    /// Drops everything of whoever works in the view, and returns what was referenced and is not any more.
    pub(super) fn clear(&self) -> Vec<Ino> {
        let mut found = std::mem::take(&mut *self.writers.lock()).all();
        for shard in &self.lookups {
            found.extend(std::mem::take(&mut shard.lock().working).into_keys());
        }
        found.sort_unstable();
        found.dedup();
        found.retain(|&ino| !self.is_referenced(ino));
        found
    }

    /// Drops everything, of everybody: the view is closed.
    pub(super) fn clear_all(&self) {
        *self.writers.lock() = Writers::default();
        for shard in &self.lookups {
            *shard.lock() = Lookups::default();
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
    /// Does something with every one, whatever fails with others; returns the first error.
    pub(super) fn each(
        &self,
        act: impl Fn(&dyn KernelCache) -> std::io::Result<()>,
    ) -> std::io::Result<()> {
        // Called outside the lock: both wait for requests, and a transport may end meanwhile.
        let mut done = Ok(());
        for transport in self.all() {
            done = done.and(act(&*transport));
        }
        done
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lookups_and_writers_are_counted_apart() {
        let refs = KernelRefs::default();
        refs.looked_up(Holder::Working, Ino(2));
        refs.looked_up(Holder::Working, Ino(2));
        refs.opened(Ino(2), OpenMode::Write);
        refs.opened(Ino(3), OpenMode::ReadWrite);
        refs.opened(Ino(4), OpenMode::Read);
        assert!(!refs.is_referenced(Ino(3)));
        assert_eq!(refs.all(), [Ino(2), Ino(3)]);
        assert_eq!(refs.mappable(), [Ino(3)]);
        assert!(!refs.forget(Holder::Working, Ino(2), 1));
        assert!(refs.forget(Holder::Working, Ino(2), 1) && !refs.is_referenced(Ino(2)));
        refs.opened(Ino(3), OpenMode::Write);
        assert!(!refs.closed(Ino(3), OpenMode::Read));
        assert!(!refs.closed(Ino(3), OpenMode::ReadWrite));
        assert_eq!(refs.mappable(), []);
        assert!(refs.closed(Ino(3), OpenMode::Write));
        assert_eq!(refs.all(), [Ino(2)]);
        let more = refs.forget(Holder::Working, Ino(2), 5);
        assert!(more, "more than there were");
        assert_eq!(refs.clear(), [Ino(2)]);
        assert!(refs.all().is_empty());
    }

    #[test]
    fn the_end_of_who_works_returns_nothing_of_those_who_look_on_and_all_of_its_own() {
        // Once all stayed as long as anybody looked on: removed files kept their space.
        let refs = KernelRefs::default();
        for (holder, ino) in [
            (Holder::Working, 2),
            (Holder::Working, 3),
            (Holder::Looking, 3),
            (Holder::Looking, 4),
        ] {
            refs.looked_up(holder, Ino(ino));
        }
        assert_eq!(refs.all(), [Ino(2), Ino(3), Ino(4)]);
        assert!(!refs.forget(Holder::Working, Ino(4), 1), "not its own");
        assert_eq!(refs.clear(), [Ino(2)]);
        assert_eq!(refs.all(), [Ino(3), Ino(4)]);
        // Who works next has references of its own, and keeps them.
        refs.looked_up(Holder::Working, Ino(3));
        assert!(!refs.forget(Holder::Looking, Ino(3), 1));
        assert!(refs.is_referenced(Ino(3)));
        assert!(refs.forget(Holder::Working, Ino(3), 1));
        refs.clear_all();
        assert!(refs.all().is_empty());
    }

    /// Fails, or not, and counts.
    struct Counting(AtomicU64, bool);

    impl KernelCache for Counting {
        fn push_dirty(&self, _: &[Ino]) -> std::io::Result<()> {
            self.0.fetch_add(1, Ordering::Relaxed);
            match self.1 {
                true => Err(std::io::ErrorKind::Other.into()),
                false => Ok(()),
            }
        }

        fn paused(&self, act: &mut dyn FnMut()) {
            act();
        }

        fn invalidate(
            &self,
            inodes: &[Ino],
            _: &dyn Fn(Ino, crate::dispatch::Kept),
        ) -> std::io::Result<()> {
            self.push_dirty(inodes)
        }
    }

    #[test]
    fn what_fails_with_one_transport_is_done_with_the_others() {
        // Once the first error was the end of it, and what was not told counted as told.
        let transports = Transports::default();
        let all: Vec<_> = [true, false, true]
            .map(|fails| Arc::new(Counting(AtomicU64::new(0), fails)))
            .into();
        for (key, one) in (0..).zip(&all) {
            transports.attached.lock().insert(key, one.clone());
        }
        assert!(transports.each(|one| one.push_dirty(&[])).is_err());
        for one in &all {
            assert_eq!(one.0.load(Ordering::Relaxed), 1);
        }
    }
}
