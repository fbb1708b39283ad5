//! Removing the rows of layers that nothing can reach.

use std::collections::BTreeSet;

use super::collector::{CollectError, Steps};
use super::remains::Remains;
use crate::base::host_inode;
use crate::change::{Change, Name, Row};
use crate::core::Core;
use crate::id::{Ino, LayerId};

/// Inodes in one transaction.
const BATCH: usize = 32;
/// Names, and extents, in one transaction.
const ROWS: usize = 256;

/// Removes everything that a doomed layer wrote, and the layer; says whether there was anything.
/// The `last` of all layers stays, empty: its number is not to be used again.
pub(super) fn remove(
    core: &Core,
    layer: LayerId,
    last: LayerId,
    steps: &mut Steps<'_>,
) -> Result<bool, CollectError> {
    let mut any = false;
    loop {
        let mut change = Change::new();
        let mut remains = Remains::default();
        {
            let pinned = core.catalog.pin()?;
            let queries = pinned.queries();
            for ino in queries.written_after(layer, Ino(0), BATCH)? {
                let extents = queries.extents_in(ino, layer, ROWS)?;
                let mut objects = BTreeSet::new();
                for &(start, _, object) in &extents {
                    change.push(Row::DropExtent { ino, layer, start });
                    objects.extend(object);
                }
                if let (ROWS, Some(&(last, ..))) = (extents.len(), extents.last()) {
                    for object in queries.objects_behind(ino, layer, last)? {
                        objects.remove(&object);
                    }
                }
                for id in objects {
                    // What is on the host only is not ours.
                    if host_inode(id).is_none() || core.catalog.has_object(id)? {
                        change.push(Row::DoomObject { id });
                        remains.objects.push((ino, id));
                    }
                }
                if extents.len() == ROWS {
                    // The rest of this one the next time.
                    break;
                }
                for (parent, name) in queries.names_in(ino, layer)? {
                    change.push(Row::DropEntry {
                        parent,
                        name,
                        layer,
                    });
                }
                change.push(Row::DropXattrs { ino, layer });
                change.push(Row::DropInline { ino, layer });
                change.push(Row::DropHost { ino, layer });
                change.push(Row::DropInode { ino, layer });
                if change.len() > ROWS {
                    break;
                }
            }
        }
        if change.is_empty() {
            break;
        }
        steps.apply(core, &change, remains)?;
        any = true;
    }
    loop {
        let nothing: (Ino, Name) = (Ino(0), Name::from(&b""[..]));
        let names = core
            .catalog
            .pin()?
            .queries()
            .removed_names(layer, &nothing, ROWS)?;
        if names.is_empty() {
            break;
        }
        let mut change = Change::new();
        for (parent, name) in names {
            change.push(Row::DropEntry {
                parent,
                name,
                layer,
            });
        }
        steps.apply(core, &change, Remains::default())?;
        any = true;
    }
    if last == layer {
        return Ok(any);
    }
    let drop = Change::from(Row::DropLayer {
        id: layer,
        child: None,
    });
    steps.apply(core, &drop, Remains::default())?;
    steps.report.layers += 1;
    Ok(true)
}
