//! Locks that know their place in the order of docs/locks.md.
//!
//! In debug builds a thread that takes a lock above or beside one that it holds panics, on any
//! run, instead of waiting for ever on an unlucky one. In release builds these are `parking_lot`'s
//! locks and nothing more.

use std::ops::{Deref, DerefMut};
use std::time::Duration;

use parking_lot::{
    MutexGuard as RawMutexGuard, RwLockReadGuard as RawReadGuard, RwLockWriteGuard as RawWriteGuard,
};

/// Places in the order: a thread that holds a lock takes only locks of larger rank.
pub(crate) mod rank {
    /// One landing in directories of the host at a time.
    pub(crate) const LANDING: u8 = 0;
    /// The control mutex of a workspace.
    pub(crate) const CONTROL: u8 = 1;
    /// The gate of a view.
    pub(crate) const GATE: u8 = 2;
    /// The namespace mutex of a view.
    pub(crate) const NAMESPACE: u8 = 3;
    /// What is known of an inode. A thread may hold several.
    pub(crate) const NODE: u8 = 4;
    /// A base that a directory of the host is taken into.
    pub(crate) const TAKING: u8 = 5;
    /// Commits of bytes that moved: mutations read, a sync of the catalog writes.
    pub(crate) const MOVING: u8 = 6;
    /// A counter whose numbers are reserved in the catalog.
    pub(crate) const COUNTER: u8 = 7;
    /// The catalog's connection for writing.
    pub(crate) const WRITER: u8 = 8;
    /// One of its connections for reading.
    pub(crate) const READER: u8 = 9;
    /// Whatever is held for a single step.
    pub(crate) const LEAF: u8 = 10;
}

/// What a thread holds, by rank.
#[cfg(debug_assertions)]
mod held {
    use std::cell::Cell;

    thread_local! {
        static HELD: Cell<[u8; 11]> = const { Cell::new([0; 11]) };
    }

    /// A lock held by this thread.
    #[derive(Debug)]
    pub(super) struct Held(u8);

    impl Held {
        /// About to take a lock, and to wait for it if need be.
        ///
        /// # Panics
        /// When the order forbids it.
        pub(super) fn wait(rank: u8) -> Self {
            let held = HELD.get();
            let mut forbidden = usize::from(rank)..held.len();
            // Which of several nodes comes first is a rule of its own: docs/locks.md.
            if rank == super::rank::NODE {
                forbidden.start += 1;
            }
            for above in forbidden {
                assert!(
                    held[above] == 0,
                    "a lock of rank {rank} is taken while one of rank {above} is held: \
                     see docs/locks.md"
                );
            }
            Self::took(rank)
        }

        /// Took a lock without waiting, which the order does not forbid.
        pub(super) fn took(rank: u8) -> Self {
            let mut held = HELD.get();
            held[usize::from(rank)] += 1;
            HELD.set(held);
            Self(rank)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            let mut held = HELD.get();
            held[usize::from(self.0)] -= 1;
            HELD.set(held);
        }
    }
}

#[cfg(not(debug_assertions))]
mod held {
    /// Nothing: only debug builds check.
    #[derive(Debug)]
    pub(super) struct Held;

    impl Held {
        pub(super) fn wait(_: u8) -> Self {
            Self
        }

        pub(super) fn took(_: u8) -> Self {
            Self
        }
    }
}

use held::Held;

/// A lock that is held; gives access to what it guards.
#[derive(Debug)]
pub(crate) struct Guard<G> {
    // Given back before the place in the order.
    inner: G,
    _held: Held,
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

/// A mutex that is held.
pub(crate) type MutexGuard<'a, T> = Guard<RawMutexGuard<'a, T>>;
/// A lock that is held for reading.
pub(crate) type ReadGuard<'a, T> = Guard<RawReadGuard<'a, T>>;
/// A lock that is held for writing.
pub(crate) type WriteGuard<'a, T> = Guard<RawWriteGuard<'a, T>>;

/// A mutex with a place in the order.
#[derive(Debug, Default)]
pub(crate) struct Mutex<const RANK: u8, T>(parking_lot::Mutex<T>);

impl<const RANK: u8, T> Mutex<RANK, T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        let held = Held::wait(RANK);
        Guard {
            inner: self.0.lock(),
            _held: held,
        }
    }

    pub(crate) fn try_lock_for(&self, patience: Duration) -> Option<MutexGuard<'_, T>> {
        let inner = self.0.try_lock_for(patience)?;
        Some(Guard {
            inner,
            _held: Held::took(RANK),
        })
    }

    pub(crate) fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let inner = self.0.try_lock()?;
        Some(Guard {
            inner,
            _held: Held::took(RANK),
        })
    }
}

/// A readers-writer lock with a place in the order.
#[derive(Debug, Default)]
pub(crate) struct RwLock<const RANK: u8, T>(parking_lot::RwLock<T>);

impl<const RANK: u8, T> RwLock<RANK, T> {
    pub(crate) const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    pub(crate) fn read(&self) -> ReadGuard<'_, T> {
        let held = Held::wait(RANK);
        Guard {
            inner: self.0.read(),
            _held: held,
        }
    }

    pub(crate) fn write(&self) -> WriteGuard<'_, T> {
        let held = Held::wait(RANK);
        Guard {
            inner: self.0.write(),
            _held: held,
        }
    }

    pub(crate) fn try_read(&self) -> Option<ReadGuard<'_, T>> {
        let inner = self.0.try_read()?;
        Some(Guard {
            inner,
            _held: Held::took(RANK),
        })
    }

    /// Gives up after a time, so it may be called against the order.
    pub(crate) fn try_write_for(&self, patience: Duration) -> Option<WriteGuard<'_, T>> {
        let inner = self.0.try_write_for(patience)?;
        Some(Guard {
            inner,
            _held: Held::took(RANK),
        })
    }
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    fn panics(work: impl FnOnce()) -> bool {
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).is_err()
    }

    #[test]
    fn a_lock_below_the_one_held_is_taken_and_one_above_is_refused() {
        let gate = RwLock::<{ rank::GATE }, ()>::default();
        let writer = Mutex::<{ rank::WRITER }, ()>::default();
        {
            let _gate = gate.read();
            let _writer = writer.lock();
        }
        assert!(panics(|| {
            let _writer = writer.lock();
            let _gate = gate.read();
        }));
        // What was held when it panicked is not held any more.
        let _gate = gate.write();
    }

    #[test]
    fn the_gate_is_not_taken_twice_and_nothing_is_taken_inside_a_leaf() {
        let gate = RwLock::<{ rank::GATE }, ()>::default();
        assert!(panics(|| {
            let _first = gate.read();
            let _second = gate.read();
        }));
        let (one, two) = (
            Mutex::<{ rank::LEAF }, ()>::default(),
            Mutex::<{ rank::LEAF }, ()>::default(),
        );
        assert!(panics(|| {
            let _one = one.lock();
            let _two = two.lock();
        }));
    }

    #[test]
    fn several_nodes_are_held_and_what_does_not_wait_is_taken_anywhere() {
        let nodes = [(); 2].map(RwLock::<{ rank::NODE }, ()>::new);
        let _one = nodes[0].write();
        let _two = nodes[1].write();
        let leaf = Mutex::<{ rank::LEAF }, ()>::default();
        let _leaf = leaf.lock();
        let other = RwLock::<{ rank::NODE }, ()>::default();
        assert!(other.try_read().is_some());
        assert!(other.try_write_for(Duration::ZERO).is_some());
    }
}
