//! The queries of [`Queries`], each on a connection of its own choosing and so at the last commit.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::query::{ExtentRow, Queries};
use super::{Catalog, CatalogError};
use crate::change::{EntryRow, InodeRow, Name, Version};
use crate::id::{Ino, LayerId, ObjectId};
use crate::layers::Lineage;

impl Catalog {
    /// As [`Queries::inode`].
    pub(crate) fn inode(
        &self,
        ino: Ino,
        at: Lineage<'_>,
    ) -> Result<Option<Version<InodeRow>>, CatalogError> {
        Queries(&self.reader()).inode(ino, at)
    }

    /// As [`Queries::links`].
    pub(crate) fn links(
        &self,
        inos: &[Ino],
        at: Lineage<'_>,
    ) -> Result<Vec<Option<u32>>, CatalogError> {
        Queries(&self.reader()).links(inos, at)
    }

    /// As [`Queries::inode_at`].
    pub(crate) fn inode_at(
        &self,
        ino: Ino,
        layer: LayerId,
    ) -> Result<Option<InodeRow>, CatalogError> {
        Queries(&self.reader()).inode_at(ino, layer)
    }

    /// As [`Queries::entry`].
    pub(crate) fn entry(
        &self,
        parent: Ino,
        name: &[u8],
        at: Lineage<'_>,
    ) -> Result<Option<Version<EntryRow>>, CatalogError> {
        Queries(&self.reader()).entry(parent, name, at)
    }

    /// As [`Queries::entries`].
    pub(crate) fn entries(
        &self,
        parent: Ino,
        at: Lineage<'_>,
    ) -> Result<Vec<(Name, Version<EntryRow>)>, CatalogError> {
        Queries(&self.reader()).entries(parent, at)
    }

    /// As [`Queries::xattrs`].
    pub(crate) fn xattrs(
        &self,
        ino: Ino,
        at: Lineage<'_>,
    ) -> Result<BTreeMap<Name, Arc<[u8]>>, CatalogError> {
        Queries(&self.reader()).xattrs(ino, at)
    }

    /// As [`Queries::inline`].
    pub(crate) fn inline(
        &self,
        ino: Ino,
        at: Lineage<'_>,
    ) -> Result<Option<Arc<[u8]>>, CatalogError> {
        Queries(&self.reader()).inline(ino, at)
    }

    /// As [`Queries::extents`].
    pub(crate) fn extents(
        &self,
        ino: Ino,
        at: Lineage<'_>,
        more: &mut dyn FnMut(ExtentRow) -> bool,
    ) -> Result<(), CatalogError> {
        Queries(&self.reader()).extents(ino, at, more)
    }

    /// As [`Queries::written`].
    pub(crate) fn written(&self, layer: LayerId) -> Result<Vec<Ino>, CatalogError> {
        Queries(&self.reader()).written(layer)
    }

    /// As [`Queries::unlinked`].
    pub(crate) fn unlinked(&self, layer: LayerId) -> Result<Vec<Ino>, CatalogError> {
        Queries(&self.reader()).unlinked(layer)
    }

    /// As [`Queries::unlinked_up_to`].
    pub(crate) fn unlinked_up_to(
        &self,
        layer: LayerId,
    ) -> Result<Vec<(LayerId, Ino)>, CatalogError> {
        Queries(&self.reader()).unlinked_up_to(layer)
    }

    /// As [`Queries::objects_of`].
    pub(crate) fn objects_of(
        &self,
        ino: Ino,
        layer: LayerId,
    ) -> Result<Vec<ObjectId>, CatalogError> {
        Queries(&self.reader()).objects_of(ino, layer)
    }
}
