//! Reads of what landed where.

use super::query::unsigned;
use super::{Catalog, CatalogError};
use crate::id::LayerId;

/// A state that landed whole on a workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LandedRecord {
    /// The state.
    pub(crate) source: LayerId,
    /// The layer of the workspace that received it, or what that was handed down to.
    pub(crate) landed_in: LayerId,
}

/// The newest landing from each workspace that is there on each other that is.
macro_rules! newest {
    () => {
        "SELECT max(n.id) FROM event n JOIN workspace w ON w.id = n.workspace \
         JOIN workspace o ON o.id = n.other \
         WHERE n.kind = 'land' AND n.whole AND n.layer IS NOT NULL \
         AND w.deleted_at IS NULL AND o.deleted_at IS NULL GROUP BY n.workspace, n.other"
    };
}

/// The newest from one workspace on another, and those whose snapshot is still there.
const LANDED: &str = concat!(
    "SELECT e.source, e.layer FROM event e JOIN layer l ON l.id = e.source \
     WHERE e.kind = 'land' AND e.whole AND e.layer IS NOT NULL AND (l.state = 1 OR e.id IN (",
    newest!(),
    "))"
);

/// States that a later landing begins from, also when they are no snapshots any more.
const LANDED_LAST: &str = concat!(
    "SELECT e.source FROM event e WHERE e.source IS NOT NULL AND e.id IN (",
    newest!(),
    ")"
);

impl Catalog {
    /// Every state that landed whole and is still there as it was. Looks at all events of the store.
    pub(crate) fn landed(&self) -> Result<Vec<LandedRecord>, CatalogError> {
        self.collect("reading landings", LANDED, [], |row| {
            Ok(LandedRecord {
                source: LayerId(unsigned(row, 0)?),
                landed_in: LayerId(unsigned(row, 1)?),
            })
        })
    }

    /// Layers that a later landing from one workspace on another begins from. Looks at all events of
    /// the store.
    pub(crate) fn landed_last(&self) -> Result<Vec<LayerId>, CatalogError> {
        self.collect("reading landings", LANDED_LAST, [], |row| {
            Ok(LayerId(unsigned(row, 0)?))
        })
    }
}
