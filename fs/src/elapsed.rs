//! How long snapshots took, which is known only once they are committed.
//!
//! The catalog is told of many together: a transaction, and waking the thread for it, would cost each
//! snapshot as much as a part of itself. Whoever reads snapshots from the catalog asks here as well.

use std::collections::HashMap;

use crate::change::{Change, Row};
use crate::id::SnapshotId;
use crate::lock::{Mutex, rank};

/// How many are written together, unless time passes.
const BATCH: usize = 32;

/// Figures that the catalog does not have yet, in microseconds.
#[derive(Default)]
pub(crate) struct Elapsed(Mutex<{ rank::LEAF }, HashMap<SnapshotId, u64>>);

impl Elapsed {
    /// A snapshot took this long. True when it is time to write what waits.
    pub(crate) fn note(&self, id: &SnapshotId, elapsed_us: u64) -> bool {
        let mut waiting = self.0.lock();
        waiting.insert(id.clone(), elapsed_us);
        waiting.len().is_multiple_of(BATCH)
    }

    /// What the catalog was not told yet. To be asked before the catalog is.
    pub(crate) fn all(&self) -> HashMap<SnapshotId, u64> {
        self.0.lock().clone()
    }

    /// The rows for all that wait.
    pub(crate) fn change(&self) -> Change {
        let mut change = Change::new();
        for (id, &elapsed_us) in &*self.0.lock() {
            let id = id.clone();
            change.push(Row::SetElapsed { id, elapsed_us });
        }
        change
    }

    /// These rows wait no more.
    pub(crate) fn written(&self, change: &Change) {
        let mut waiting = self.0.lock();
        for row in change.rows() {
            if let Row::SetElapsed { id, .. } = row {
                waiting.remove(id);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_known_until_it_is_written() {
        let elapsed = Elapsed::default();
        let ids: Vec<_> = (0..BATCH).map(|_| SnapshotId::random().unwrap()).collect();
        for (number, id) in ids.iter().enumerate() {
            assert_eq!(elapsed.note(id, 7), number == BATCH - 1);
        }
        let change = elapsed.change();
        assert_eq!(change.len(), BATCH);
        let late = SnapshotId::random().unwrap();
        assert!(!elapsed.note(&late, 8));
        assert_eq!(elapsed.all().get(&ids[3]), Some(&7));
        elapsed.written(&change);
        assert_eq!(elapsed.all(), HashMap::from([(late, 8)]));
    }
}
