//! What remains in the kernel of a state that a rollback left.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::dispatch::{Kept, Unsettled};
use crate::id::Ino;
use crate::lock::{Mutex, rank};

/// Inodes that the kernel knew when a rollback took place.
#[derive(Default)]
pub(super) struct Left {
    /// Whether there is anything to look at: hardly ever.
    any: AtomicBool,
    state: Mutex<{ rank::LEAF }, State>,
}

#[derive(Default)]
struct State {
    /// The kernel may still have pages of what was.
    pages: HashSet<Ino>,
    /// And the size.
    sizes: HashSet<Ino>,
    /// How often a directory was removed in a state that was left while it was in use.
    generations: HashMap<Ino, u32>,
}

impl Left {
    /// A rollback takes place: no request is being served.
    pub(super) fn leave(&self, known: &[Ino], removed_directories: &[Ino]) {
        let mut state = self.state.lock();
        state.pages.extend(known);
        state.sizes.extend(known);
        for &ino in removed_directories {
            *state.generations.entry(ino).or_default() += 1;
        }
        self.any.store(true, Ordering::Release);
    }

    pub(super) fn settled(&self, ino: Ino, kept: Kept) {
        let mut state = self.state.lock();
        match kept {
            Kept::Pages => state.pages.remove(&ino),
            Kept::Size => state.sizes.remove(&ino),
        };
    }

    /// The kernel has been told of everything.
    pub(super) fn all_settled(&self) {
        let mut state = self.state.lock();
        state.pages = HashSet::new();
        state.sizes = HashSet::new();
        let any = !state.generations.is_empty();
        self.any.store(any, Ordering::Release);
    }

    pub(super) fn unsettled(&self, ino: Ino) -> Unsettled {
        if !self.any.load(Ordering::Acquire) {
            return Unsettled::default();
        }
        let state = self.state.lock();
        Unsettled {
            pages: state.pages.contains(&ino),
            size: state.sizes.contains(&ino),
        }
    }

    pub(super) fn generation(&self, ino: Ino) -> u32 {
        if !self.any.load(Ordering::Acquire) {
            return 0;
        }
        let state = self.state.lock();
        state.generations.get(&ino).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_left_is_unsettled_until_the_kernel_was_told() {
        let left = Left::default();
        let unsettled = |ino| {
            let Unsettled { pages, size } = left.unsettled(Ino(ino));
            (pages, size)
        };
        assert_eq!(unsettled(2), (false, false));
        left.leave(&[Ino(2), Ino(3)], &[Ino(3)]);
        assert_eq!((unsettled(2), unsettled(3)), ((true, true), (true, true)));
        left.settled(Ino(2), Kept::Pages);
        assert_eq!((unsettled(2), unsettled(3)), ((false, true), (true, true)));
        left.settled(Ino(2), Kept::Size);
        assert_eq!(unsettled(2), (false, false));
        left.all_settled();
        assert_eq!(unsettled(3), (false, false));
        assert_eq!((left.generation(Ino(2)), left.generation(Ino(3))), (0, 1));
    }
}
