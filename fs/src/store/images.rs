//! Images of machines' memory, as far as snapshots go.

use std::path::PathBuf;

use thiserror::Error;

use super::Store;
use crate::catalog::{CatalogError, SnapshotQuery};
use crate::change::{Change, Row};
use crate::dispatch::OpError;
use crate::id::SnapshotId;
use crate::image::{self, ImageState};

/// Why an image was not noted.
#[derive(Debug, Error)]
pub enum ImageError {
    /// The snapshot is gone. So is the image.
    #[error("there is no snapshot '{snapshot}' any more")]
    NoSnapshot {
        /// Its id.
        snapshot: SnapshotId,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Store {
    /// The directory of images, each in a directory named by the id of its snapshot. It may be missing.
    #[must_use]
    pub fn images_dir(&self) -> PathBuf {
        image::dir(&self.core.dir)
    }

    /// Refuses an image that the disk has not the room for.
    ///
    /// # Errors
    /// [`OpError::NoSpace`], or when the file system cannot be asked.
    pub fn room_for_image(&self, bytes: u64) -> Result<(), OpError> {
        self.core.room.take(bytes)
    }

    /// Notes how far the image of a snapshot has come. When the snapshot was deleted meanwhile the image's
    /// directory is removed.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn set_image(
        &self,
        snapshot: &SnapshotId,
        state: ImageState,
        bytes: u64,
    ) -> Result<(), ImageError> {
        // Or it could be deleted in between, and the image with nobody.
        let _deciding = self.core.deciding.lock();
        let query = SnapshotQuery {
            id_prefix: Some(snapshot.as_str()),
            ..SnapshotQuery::default()
        };
        if self.core.catalog.snapshots(&query)?.is_empty() {
            image::remove(&self.core.dir, [snapshot]);
            return Err(ImageError::NoSnapshot {
                snapshot: snapshot.clone(),
            });
        }
        let row = Row::SetImage {
            id: snapshot.clone(),
            state,
            bytes,
        };
        self.core.catalog.apply(&Change::from(row))?;
        if state == ImageState::Failed {
            image::remove(&self.core.dir, [snapshot]);
        }
        Ok(())
    }
}
