//! What deleting snapshots would free: the collector's own work, without changing anything.

use std::collections::HashSet;
use std::ops::ControlFlow;

use super::collector::{CollectError, Steps};
use super::needed::Needed;
use super::prune::prune;
use super::remains::Remains;
use super::shape::Shape;
use crate::catalog::{FamilyRecord, LayerRow};
use crate::change::Change;
use crate::core::Core;
use crate::id::{Ino, LayerId};

/// Inodes looked at in one go.
const BATCH: usize = 256;

/// The layers as they are, to ask what deleting snapshots would free, again and again.
pub(crate) struct Estimate {
    families: Vec<FamilyRecord>,
    needed: Needed,
    /// What goes in any case.
    anyway: HashSet<LayerId>,
}

impl Estimate {
    /// Looks at the layers.
    pub(crate) fn new(core: &Core) -> Result<Self, CollectError> {
        let families = core.catalog.families()?;
        let needed = Needed::read(core)?;
        let used = needed.with(core, &families, core.uses.all());
        let anyway = Shape::of(&families, &used).unreachable;
        Ok(Self {
            families,
            needed,
            anyway: anyway.into_iter().collect(),
        })
    }

    /// The layers, parents before children.
    pub(crate) fn families(&self) -> &[FamilyRecord] {
        &self.families
    }

    /// Those that landings need.
    pub(crate) fn landings(&self, core: &Core) -> HashSet<LayerId> {
        self.needed.with(core, &self.families, HashSet::new())
    }

    /// Bytes of objects that would be freed if these layers were no snapshots any more. A file of which
    /// several layers hide the same blocks may count them more than once.
    pub(crate) fn would_free(
        &self,
        core: &Core,
        left: &HashSet<LayerId>,
    ) -> Result<u64, CollectError> {
        let mut families = self.families.clone();
        for layer in &mut families {
            if left.contains(&layer.id) {
                layer.what = LayerRow::Left;
            }
        }
        let used = self.needed.with(core, &families, core.uses.all());
        let shape = Shape::of(&families, &used);
        let mut go_on = |_: &_, _| ControlFlow::Continue(());
        let mut steps = Steps::dry(&mut go_on);
        for layer in shape.unreachable {
            if !self.anyway.contains(&layer) {
                whole(core, layer, &mut steps)?;
            }
        }
        for chain in &shape.chains {
            if !chain.links.iter().any(|link| left.contains(link)) {
                continue;
            }
            let links: HashSet<LayerId> = chain.links.iter().copied().collect();
            for (_, layer, live) in chain.steps() {
                prune(core, layer, live, &links, &mut steps)?;
            }
        }
        Ok(steps.report.bytes)
    }
}

/// Everything that a layer has.
fn whole(core: &Core, layer: LayerId, steps: &mut Steps<'_>) -> Result<(), CollectError> {
    let pinned = core.catalog.pin()?;
    let queries = pinned.queries();
    let mut after = Ino(0);
    loop {
        let inos = queries.written_after(layer, after, BATCH)?;
        let Some(&last) = inos.last() else {
            return Ok(());
        };
        after = last;
        let mut remains = Remains::default();
        for ino in inos {
            let objects = queries.objects_of(ino, layer)?;
            let objects = objects.into_iter().map(|id| (ino, id));
            remains.objects.extend(objects);
        }
        steps.apply(core, &Change::new(), remains)?;
    }
}
