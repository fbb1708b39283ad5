//! Reads of what landed where.

use super::query::unsigned;
use super::{Catalog, CatalogError};
use crate::id::LayerId;

/// A state that landed whole on a workspace.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LandedRecord {
    /// The state.
    pub(crate) source: LayerId,
    /// The layer of the workspace that received it.
    pub(crate) landed_in: LayerId,
}

const LANDED: &str = "SELECT s.layer, e.layer FROM event e JOIN snapshot s ON s.id = e.snapshot \
    WHERE e.kind = 'land' AND e.whole AND e.layer IS NOT NULL";

impl Catalog {
    /// Every state that landed whole and is still there. Looks at all events of the store.
    pub(crate) fn landed(&self) -> Result<Vec<LandedRecord>, CatalogError> {
        self.collect("reading landings", LANDED, [], |row| {
            Ok(LandedRecord {
                source: LayerId(unsigned(row, 0)?),
                landed_in: LayerId(unsigned(row, 1)?),
            })
        })
    }
}
