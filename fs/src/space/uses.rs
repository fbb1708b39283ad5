//! Layers that somebody looks at besides those that the catalog names: mounted snapshots.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::Signal;
use crate::id::LayerId;
use crate::lock::{Mutex, rank};

/// How often each layer is in use.
#[derive(Debug, Default)]
pub(crate) struct Uses(Mutex<{ rank::LEAF }, HashMap<LayerId, usize>>);

/// Keeps a layer as it is until dropped. Whoever takes one looks afterwards whether the layer is still
/// a snapshot's: the collector looks here after it has seen that it is not.
#[derive(Debug)]
pub(crate) struct Use {
    uses: Arc<Uses>,
    /// Asked at the end: the layer may be of no use any more.
    collect: Arc<Signal>,
    layer: LayerId,
}

impl Uses {
    pub(crate) fn hold(self: &Arc<Self>, layer: LayerId, collect: &Arc<Signal>) -> Use {
        *self.0.lock().entry(layer).or_default() += 1;
        Use {
            uses: self.clone(),
            collect: collect.clone(),
            layer,
        }
    }

    pub(super) fn all(&self) -> HashSet<LayerId> {
        self.0.lock().keys().copied().collect()
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        let mut uses = self.uses.0.lock();
        if let Some(count) = uses.get_mut(&self.layer) {
            *count -= 1;
            if *count == 0 {
                uses.remove(&self.layer);
                drop(uses);
                self.collect.ask();
            }
        }
    }
}
