//! Reads of what landed where.

use super::query::unsigned;
use super::{Catalog, CatalogError};
use crate::id::LayerId;

/// A landing that took place.
#[derive(Clone, Debug)]
pub(crate) struct LandedRecord {
    /// The state that landed.
    pub(crate) source: LayerId,
    /// What its event says.
    pub(crate) message: String,
}

const LANDED: &str = "SELECT s.layer, e.message FROM event e JOIN snapshot s ON s.id = e.snapshot \
    WHERE e.kind = 'land' AND e.message IS NOT NULL";

impl Catalog {
    /// Every state that landed on a workspace and is still there. Looks at all events of the store.
    pub(crate) fn landed(&self) -> Result<Vec<LandedRecord>, CatalogError> {
        self.collect(LANDED, [], |row| {
            let message = row.get(1);
            Ok(LandedRecord {
                source: LayerId(unsigned(row, 0)?),
                message: message.map_err(CatalogError::during("reading a landing"))?,
            })
        })
    }
}
