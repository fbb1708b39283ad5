//! Layers that somebody looks at besides those that the catalog names: mounted snapshots, both sides of
//! a difference, what a landing begins from.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::Signal;
use crate::id::LayerId;
use crate::lock::{Mutex, rank};

/// How often each layer is in use.
#[derive(Debug, Default)]
pub(crate) struct Uses {
    known: Mutex<{ rank::LEAF }, Known>,
    /// The use of one that was waited for has ended.
    ended: AtomicBool,
}

#[derive(Debug, Default)]
struct Known {
    counts: HashMap<LayerId, usize>,
    /// Those that are no snapshots any more, as the collector saw them last.
    left: HashSet<LayerId>,
    /// Those whose snapshots would be deleted if they were not in use.
    awaited: HashSet<LayerId>,
}

/// Keeps a layer as it is until dropped. Whoever takes one looks afterwards whether the layer is still
/// a snapshot's: the collector looks here after it has seen that it is not.
#[derive(Debug)]
pub(crate) struct Use {
    uses: Arc<Uses>,
    /// Asked at the end, if the layer is of no other use any more.
    collect: Arc<Signal>,
    layer: LayerId,
}

impl Uses {
    pub(crate) fn hold(self: &Arc<Self>, layer: LayerId, collect: &Arc<Signal>) -> Use {
        *self.known.lock().counts.entry(layer).or_default() += 1;
        Use {
            uses: self.clone(),
            collect: collect.clone(),
            layer,
        }
    }

    /// Every layer in use.
    pub(crate) fn all(&self) -> HashSet<LayerId> {
        self.known.lock().counts.keys().copied().collect()
    }

    /// Has [`Uses::some_ended`] tell when one of these is not in use any more.
    pub(crate) fn wait_for(&self, layers: impl Iterator<Item = LayerId>) {
        let mut known = self.known.lock();
        for layer in layers {
            if known.counts.contains_key(&layer) {
                known.awaited.insert(layer);
            } else {
                self.ended.store(true, Ordering::Release);
            }
        }
    }

    /// Whether the use of one that was waited for has ended since this was asked.
    pub(crate) fn some_ended(&self) -> bool {
        self.ended.swap(false, Ordering::AcqRel)
    }

    /// As [`Uses::all`], for the collector: the end of the use of one that is left wakes it.
    pub(super) fn note_left(&self, is_left: impl Fn(&LayerId) -> bool) -> HashSet<LayerId> {
        let mut known = self.known.lock();
        let all: HashSet<LayerId> = known.counts.keys().copied().collect();
        known.left = all.iter().filter(|layer| is_left(layer)).copied().collect();
        all
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut known = self.uses.known.lock();
        let Some(count) = known.counts.get_mut(&self.layer) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        known.counts.remove(&self.layer);
        let wake = known.left.remove(&self.layer);
        if known.awaited.remove(&self.layer) {
            self.uses.ended.store(true, Ordering::Release);
        }
        drop(known);
        if wake {
            self.collect.ask();
        }
    }
}
