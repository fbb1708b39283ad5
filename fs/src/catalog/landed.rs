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

/// The newest landing from each workspace on each other.
macro_rules! newest {
    () => {
        "SELECT max(id) FROM event WHERE kind = 'land' AND whole AND layer IS NOT NULL \
         GROUP BY workspace, other"
    };
}

/// Those, and those whose snapshot is still there.
const LANDED: &str = concat!(
    "SELECT e.source, e.layer FROM event e JOIN layer l ON l.id = e.source \
     WHERE e.kind = 'land' AND e.whole AND e.layer IS NOT NULL AND (l.state = 1 OR e.id IN (",
    newest!(),
    "))"
);

const LANDED_LAST: &str = concat!(
    "SELECT e.source, e.layer FROM event e JOIN layer l ON l.id = e.source WHERE e.id IN (",
    newest!(),
    ")"
);

impl Catalog {
    /// Every state that landed whole and is still there as it was: a later landing may begin from it.
    /// Looks at all events of the store.
    pub(crate) fn landed(&self) -> Result<Vec<LandedRecord>, CatalogError> {
        self.landings(LANDED)
    }

    /// The state that landed last from each workspace on each other. It is kept as it was as long as
    /// anything comes from it, and anything else from what received it. Looks at all events of
    /// the store.
    pub(crate) fn landed_last(&self) -> Result<Vec<LandedRecord>, CatalogError> {
        self.landings(LANDED_LAST)
    }

    fn landings(&self, sql: &str) -> Result<Vec<LandedRecord>, CatalogError> {
        self.collect("reading landings", sql, [], |row| {
            Ok(LandedRecord {
                source: LayerId(unsigned(row, 0)?),
                landed_in: LayerId(unsigned(row, 1)?),
            })
        })
    }
}
