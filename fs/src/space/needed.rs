//! Layers that landings need, whatever their rows say.

use std::collections::HashSet;

use crate::catalog::{CatalogError, FamilyRecord, LandedRecord, LayerRow};
use crate::core::Core;
use crate::id::LayerId;

/// What the catalog says of landings.
#[derive(Debug)]
pub(super) struct Needed {
    /// Layers that landings in directories of the host know.
    known: Vec<LayerId>,
    /// The newest landing from each workspace on each other.
    landed: Vec<LandedRecord>,
}

impl Needed {
    /// Reads it.
    pub(super) fn read(core: &Core) -> Result<Self, CatalogError> {
        Ok(Self {
            known: crate::land::host::layers_known(core)?,
            landed: core.catalog.landed_last()?,
        })
    }

    /// Adds the layers that are needed to those in use. Of what landed last on a workspace that is as long as
    /// something comes from both.
    pub(super) fn with(
        &self,
        core: &Core,
        layers: &[FamilyRecord],
        mut used: HashSet<LayerId>,
    ) -> HashSet<LayerId> {
        used.extend(&self.known);
        if self.landed.is_empty() {
            return used;
        }
        let shown = |layer: &&FamilyRecord| matches!(layer.what, LayerRow::Live | LayerRow::Frozen);
        let lineages: Vec<_> = layers
            .iter()
            .filter(shown)
            .filter_map(|layer| core.layers.lineage(layer.id))
            .collect();
        let comes_from = |layer| lineages.iter().any(|lineage| lineage.contains(layer));
        for last in &self.landed {
            if comes_from(last.source) && comes_from(last.landed_in) {
                used.insert(last.source);
            }
        }
        used
    }
}
