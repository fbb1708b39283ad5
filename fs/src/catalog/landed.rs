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

/// The newest from one workspace on another, and those whose snapshot is still there.
const LANDED: &str = "SELECT e.source, e.layer FROM event e JOIN layer l ON l.id = e.source \
    WHERE e.kind = 'land' AND e.whole AND e.layer IS NOT NULL AND (l.state = 1 OR e.id IN \
    (SELECT max(id) FROM event WHERE kind = 'land' AND whole AND layer IS NOT NULL \
        GROUP BY workspace, other))";

/// States that are still what a later landing begins from, though no snapshot's.
const LANDED_LAST: &str = "SELECT e.source FROM event e JOIN layer l ON l.id = e.source \
    JOIN workspace w ON w.id = e.workspace JOIN workspace o ON o.id = e.other \
    WHERE l.state = 3 AND w.deleted_at IS NULL AND o.deleted_at IS NULL AND e.id IN \
    (SELECT max(id) FROM event WHERE kind = 'land' AND whole AND layer IS NOT NULL \
        GROUP BY workspace, other)";

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

    /// Layers that are no snapshot's and that a later landing from one workspace on another begins
    /// from. Looks at all events of the store.
    pub(crate) fn landed_last(&self) -> Result<Vec<LayerId>, CatalogError> {
        self.collect("reading landings", LANDED_LAST, [], |row| {
            Ok(LayerId(unsigned(row, 0)?))
        })
    }
}
