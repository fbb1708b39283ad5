//! One state of the catalog for as many reads as it takes, while others go on to change it.
//!
//! It has a connection of its own: those that requests share must not be taken for long. As long as
//! it lives the log cannot be copied back past its state, so it should not live for long.

use rusqlite::{Connection, OpenFlags};

use super::connect::connect;
use super::query::Queries;
use super::{Catalog, CatalogError};

/// A state of the catalog.
pub(crate) struct Pinned(Connection);

impl Catalog {
    /// Holds the last commit for reading.
    ///
    /// # Errors
    /// [`CatalogError`].
    pub(crate) fn pin(&self) -> Result<Pinned, CatalogError> {
        let connection = connect(&self.path, OpenFlags::SQLITE_OPEN_READ_ONLY)?;
        // Until something is read, no state is held.
        connection
            .execute_batch("BEGIN")
            .and_then(|()| connection.query_row("SELECT count(*) FROM meta", [], |_| Ok(())))
            .map_err(CatalogError::during("holding a state of the catalog"))?;
        Ok(Pinned(connection))
    }
}

impl Pinned {
    /// Reads of this state.
    pub(crate) fn queries(&self) -> Queries<'_> {
        Queries(&self.0)
    }
}
