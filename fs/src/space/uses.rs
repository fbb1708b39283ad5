//! Layers that somebody looks at besides those that the catalog names: mounted snapshots, both sides of
//! a difference, what a landing begins from.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Signal;
use crate::id::LayerId;
use crate::lock::{Mutex, rank};

/// How often each layer is in use.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<{ rank::LEAF }, Known>);

#[derive(Debug, Default)]
struct Known {
    counts: HashMap<LayerId, usize>,
    /// Those that are no snapshots any more, as the collector saw them last.
    left: HashSet<LayerId>,
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
        *self.0.lock().counts.entry(layer).or_default() += 1;
        Use {
            uses: self.clone(),
            collect: collect.clone(),
            layer,
        }
    }

    /// Every layer in use.
    pub(crate) fn all(&self) -> HashSet<LayerId> {
        self.0.lock().counts.keys().copied().collect()
    }

    /// As [`Uses::all`], for the collector: the end of the use of one that is left wakes it.
    pub(super) fn note_left(&self, is_left: impl Fn(&LayerId) -> bool) -> HashSet<LayerId> {
        let mut known = self.0.lock();
        let all: HashSet<LayerId> = known.counts.keys().copied().collect();
        known.left = all.iter().filter(|layer| is_left(layer)).copied().collect();
        all
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut known = self.uses.0.lock();
        let Some(count) = known.counts.get_mut(&self.layer) else {
            return;
        };
        *count -= 1;
        if *count > 0 {
            return;
        }
        known.counts.remove(&self.layer);
        let wake = known.left.remove(&self.layer);
        drop(known);
        if wake {
            self.collect.ask();
        }
    }
}
