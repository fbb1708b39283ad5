//! Hashing frozen contents by request.

use std::ops::ControlFlow;

use super::Store;
use crate::hash::{HashError, HashReport, all_now};

impl Store {
    /// Hashes everything that is frozen and was not hashed, and stores equal objects once: now, as fast
    /// as it goes, whatever the settings say. `progress` is told after each step, and says whether to go
    /// on.
    ///
    /// Where the disk shares extents, objects that were hashed before are compared again: it is not known
    /// what they share already. On a full disk what was hashed before is stored once, before the error is
    /// returned.
    ///
    /// # Errors
    /// [`HashError`]. That an object cannot be read is no error, but in the report.
    pub fn hash_now(
        &self,
        progress: &mut dyn FnMut(&HashReport) -> ControlFlow<()>,
    ) -> Result<HashReport, HashError> {
        all_now(&self.core, progress)
    }
}
