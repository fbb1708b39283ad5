//! Images of machines' memory, as far as snapshots go.

use std::path::PathBuf;

use thiserror::Error;

use super::{FindError, SnapshotInfo, Store};
use crate::catalog::{CatalogError, SnapshotQuery};
use crate::change::{Change, Row};
use crate::contents::ContentsError;
use crate::dispatch::OpError;
use crate::id::SnapshotId;
use crate::image::{self, ImageState};
use crate::retention::SnapshotClass;
use crate::space::{CollectError, Use};

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

/// A snapshot that rules keep as long as this is there. Whoever names it can delete it all the same.
#[derive(Debug)]
pub struct SnapshotHold {
    _layer: Use,
}

impl Store {
    /// Keeps rules from deleting a snapshot that something is made of.
    ///
    /// # Errors
    /// [`FindError`].
    pub fn hold_snapshot(&self, snapshot: &SnapshotInfo) -> Result<SnapshotHold, FindError> {
        let hold = SnapshotHold {
            _layer: self.core.use_layer(snapshot.layer),
        };
        // Or it went before it was held.
        self.find_snapshot(snapshot.id.as_str())?;
        Ok(hold)
    }

    /// The directory of images, each in a directory named by the id of its snapshot. It may be missing.
    #[must_use]
    pub fn images_dir(&self) -> PathBuf {
        image::dir(&self.core.dir)
    }

    /// Bytes on the disk of an image, of which no other has a part; a figure to show.
    fn image_bytes(&self, snapshot: &SnapshotId) -> u64 {
        image::would_free(&self.core.dir, [snapshot]).unwrap_or_else(|error| {
            tracing::warn!(%snapshot, %error, "cannot tell how large an image is");
            0
        })
    }

    /// Bytes on the disk that the images of snapshots would give back.
    pub(super) fn images_would_free<'a>(
        &self,
        snapshots: impl IntoIterator<Item = &'a SnapshotId>,
    ) -> Result<u64, CollectError> {
        image::would_free(&self.core.dir, snapshots).map_err(|source| {
            let action = "look at images in";
            CollectError::Store(Box::new(ContentsError::Directory { action, source }.into()))
        })
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
    pub fn set_image(&self, snapshot: &SnapshotId, state: ImageState) -> Result<(), ImageError> {
        // Or it could be deleted in between, and the image with nobody.
        let _deciding = self.core.deciding.lock();
        let query = SnapshotQuery {
            id_prefix: Some(snapshot.as_str()),
            ..SnapshotQuery::default()
        };
        let Some(record) = self.core.catalog.snapshots(&query)?.pop() else {
            image::remove(&self.core.dir, [snapshot]);
            return Err(ImageError::NoSnapshot {
                snapshot: snapshot.clone(),
            });
        };
        let row = Row::SetImage {
            id: snapshot.clone(),
            state,
            bytes: match state {
                ImageState::Failed => 0,
                _ => self.image_bytes(snapshot),
            },
        };
        self.core.catalog.apply(&Change::from(row))?;
        if matches!(record.image, Some((ImageState::Capturing, _))) {
            // Only now it counts.
            let class = SnapshotClass::of(record.automatic.as_deref());
            let retain = &self.core.retain;
            retain.taken(record.workspace_id, class, record.expires_at);
        }
        if state == ImageState::Failed {
            image::remove(&self.core.dir, [snapshot]);
        }
        Ok(())
    }
}
