//! Removing from links what a layer below hides.
//!
//! A layer hides a version if it has one of the same key. Nothing that is visible at it, or below,
//! changes: the links above are seen through it alone. While the layer is live only such versions
//! count as its own that it cannot lose again.

use std::collections::HashSet;
use std::ops::Range;

use super::collector::{CollectError, Steps};
use super::remains::Remains;
use crate::catalog::{CatalogError, Queries};
use crate::change::{Change, ContentKind, InodeRow, Name, Row};
use crate::core::Core;
use crate::id::{Ino, LayerId, ObjectId};
use crate::layers::Lineage;

/// Inodes, and names, looked at for one transaction.
const BATCH: usize = 64;
/// Rows of one transaction.
const ROWS: usize = 256;
/// A file in more pieces than this keeps what is hidden of it.
const PIECES: usize = 1024;

/// A layer and the links above it.
pub(super) struct Prune<'a> {
    core: &'a Core,
    layer: LayerId,
    live: bool,
    /// The links of the whole chain. Those above the layer are the ones with smaller ids.
    links: &'a HashSet<LayerId>,
    /// Whether everything that is hidden was found.
    whole: bool,
}

/// What one transaction does.
#[derive(Default)]
struct Found {
    change: Change,
    remains: Remains,
}

/// Removes what a layer hides of the links above it; says whether nothing hidden is left there.
pub(super) fn prune(
    core: &Core,
    layer: LayerId,
    live: bool,
    links: &HashSet<LayerId>,
    steps: &mut Steps<'_>,
) -> Result<bool, CollectError> {
    let mut prune = Prune {
        core,
        layer,
        live,
        links,
        whole: !live,
    };
    // Names first: an inode's version stays in a link as long as names there lead to it.
    prune.removed_names(steps)?;
    prune.each_inode(steps, Prune::names)?;
    prune.each_inode(steps, Prune::inode)?;
    Ok(prune.whole)
}

impl Prune<'_> {
    fn lineage(&self) -> Result<Lineage<'_>, CatalogError> {
        self.core.layers.known(self.layer)
    }

    fn is_link(&self, layer: LayerId) -> bool {
        layer < self.layer && self.links.contains(&layer)
    }

    /// The links that have a version of something, and whether an ancestor that is no link has one:
    /// all of those are above. `look` visits the layers that have one, nearest first.
    fn above(
        &self,
        look: impl FnOnce(&mut dyn FnMut(LayerId) -> bool) -> Result<(), CatalogError>,
    ) -> Result<(Vec<LayerId>, bool), CollectError> {
        let lineage = self.lineage()?;
        let (mut links, mut older) = (Vec::new(), false);
        look(&mut |layer| {
            if self.is_link(layer) {
                links.push(layer);
            } else {
                older = lineage.contains(layer);
            }
            !older
        })?;
        Ok((links, older))
    }

    fn removed_names(&self, steps: &mut Steps<'_>) -> Result<(), CollectError> {
        let mut after: (Ino, Name) = (Ino(0), Name::from(&b""[..]));
        loop {
            let mut found = Found::default();
            {
                let pinned = self.core.catalog.pin()?;
                let queries = pinned.queries();
                let names = queries.removed_names(self.layer, &after, BATCH)?;
                let Some(last) = names.last().cloned() else {
                    return Ok(());
                };
                after = last;
                for (parent, name) in names {
                    let older = self.name(queries, parent, &name, &mut found)?;
                    // It hides nothing any more.
                    if !older && !self.live {
                        found.change.push(Row::DropEntry {
                            parent,
                            name,
                            layer: self.layer,
                        });
                    }
                }
            }
            steps.apply(self.core, &found.change, found.remains)?;
        }
    }

    /// Drops the links' versions of a name; says whether there are others above.
    fn name(
        &self,
        queries: Queries<'_>,
        parent: Ino,
        name: &Name,
        found: &mut Found,
    ) -> Result<bool, CollectError> {
        let (links, older) =
            self.above(|visit| queries.entry_layers(parent, name, self.layer, visit))?;
        for layer in links {
            found.change.push(Row::DropEntry {
                parent,
                name: name.clone(),
                layer,
            });
        }
        Ok(older)
    }

    /// Does something for each inode that the layer wrote a version of.
    fn each_inode(
        &mut self,
        steps: &mut Steps<'_>,
        act: fn(&mut Self, Queries<'_>, Ino, &mut Found) -> Result<(), CollectError>,
    ) -> Result<(), CollectError> {
        let mut after = Ino(0);
        loop {
            let mut found = Found::default();
            {
                let pinned = self.core.catalog.pin()?;
                let queries = pinned.queries();
                let inos = queries.written_after(self.layer, after, BATCH)?;
                if inos.is_empty() {
                    return Ok(());
                }
                for ino in inos {
                    act(self, queries, ino, &mut found)?;
                    after = ino;
                    if found.change.len() > ROWS {
                        break;
                    }
                }
            }
            steps.apply(self.core, &found.change, found.remains)?;
        }
    }

    fn names(
        &mut self,
        queries: Queries<'_>,
        ino: Ino,
        found: &mut Found,
    ) -> Result<(), CollectError> {
        for (parent, name) in queries.names_in(ino, self.layer)? {
            self.name(queries, parent, &name, found)?;
        }
        Ok(())
    }

    fn inode(
        &mut self,
        queries: Queries<'_>,
        ino: Ino,
        found: &mut Found,
    ) -> Result<(), CollectError> {
        let (links, older) = self.above(|visit| queries.inode_layers(ino, self.layer, visit))?;
        let Some(row) = queries.inode_at(ino, self.layer)? else {
            for &layer in &links {
                drop_all(queries, ino, layer, found)?;
            }
            // It hides nothing any more.
            if !older && !self.live {
                let layer = self.layer;
                found.change.push(Row::DropInode { ino, layer });
            }
            return Ok(());
        };
        let mut kept = self.xattrs(queries, ino, found)?;
        kept.extend(self.inline(queries, ino, &row, found)?);
        kept.extend(self.extents(queries, ino, &row, &links, found)?);
        for layer in links {
            // What belongs to an inode is found by its version in the same layer.
            if !kept.contains(&layer) && queries.names_in(ino, layer)?.is_empty() {
                found.change.push(Row::DropInode { ino, layer });
            }
        }
        Ok(())
    }

    /// Returns the links that keep something.
    fn xattrs(
        &self,
        queries: Queries<'_>,
        ino: Ino,
        found: &mut Found,
    ) -> Result<HashSet<LayerId>, CollectError> {
        let lineage = self.lineage()?;
        let versions = queries.xattr_versions(ino)?;
        let own = versions.iter().filter(|(_, layer, _)| *layer == self.layer);
        let own: Vec<_> = own.map(|(name, _, gone)| (name.clone(), *gone)).collect();
        let mut kept = HashSet::new();
        let mut older = HashSet::new();
        for (name, layer, _) in &versions {
            if self.is_link(*layer) {
                if own.iter().any(|(own, _)| own == name) {
                    found.change.push(Row::DropXattr {
                        ino,
                        name: name.clone(),
                        layer: *layer,
                    });
                } else {
                    kept.insert(*layer);
                }
            } else if *layer < self.layer && lineage.contains(*layer) {
                older.insert(name.clone());
            }
        }
        for (name, gone) in own {
            if gone && !self.live && !older.contains(&name) {
                found.change.push(Row::DropXattr {
                    ino,
                    name,
                    layer: self.layer,
                });
            }
        }
        Ok(kept)
    }

    /// Returns the links that keep something.
    fn inline(
        &self,
        queries: Queries<'_>,
        ino: Ino,
        row: &InodeRow,
        found: &mut Found,
    ) -> Result<HashSet<LayerId>, CollectError> {
        let layers = queries.inline_layers(ino)?;
        let hidden = layers.contains(&self.layer) || row.content == ContentKind::Extents;
        let links = layers.into_iter().filter(|&layer| self.is_link(layer));
        let links: HashSet<LayerId> = links.collect();
        if !hidden {
            return Ok(links);
        }
        for layer in links {
            found.change.push(Row::DropInline { ino, layer });
        }
        Ok(HashSet::new())
    }

    /// Returns the links that keep something.
    fn extents(
        &mut self,
        queries: Queries<'_>,
        ino: Ino,
        row: &InodeRow,
        links: &[LayerId],
        found: &mut Found,
    ) -> Result<HashSet<LayerId>, CollectError> {
        let mut kept = HashSet::new();
        if row.content != ContentKind::Extents {
            return Ok(kept);
        }
        let cover = queries.extents_in(ino, self.layer, PIECES)?;
        for &layer in links {
            let rows = queries.extents_in(ino, layer, PIECES)?;
            if rows.is_empty() {
                continue;
            }
            // What a live layer covers may be given up again, when the file is cut.
            if self.live || rows.len() == PIECES || cover.len() == PIECES {
                self.whole = false;
                kept.insert(layer);
                continue;
            }
            if trim(ino, layer, &rows, &cover, found) {
                kept.insert(layer);
            }
        }
        Ok(kept)
    }
}

/// An extent: first block, the first after it, and the object.
type Extent = (u64, u64, Option<ObjectId>);

/// Cuts extents down to what others do not cover; says whether anything is left.
fn trim(ino: Ino, layer: LayerId, rows: &[Extent], cover: &[Extent], found: &mut Found) -> bool {
    let mut needed = HashSet::new();
    let mut hidden: Vec<(ObjectId, Range<u64>)> = Vec::new();
    let mut any = false;
    for &(start, end, object) in rows {
        let (left, covered) = split(start..end, cover);
        any |= !left.is_empty();
        if let Some(object) = object {
            hidden.extend(covered.iter().map(|range| (object, range.clone())));
            if !left.is_empty() {
                needed.insert(object);
            }
        }
        if covered.is_empty() {
            continue;
        }
        found.change.push(Row::DropExtent { ino, layer, start });
        for range in left {
            found.change.push(Row::PutExtent {
                ino,
                layer,
                start: range.start,
                end: range.end,
                object,
            });
        }
    }
    for (object, range) in hidden {
        if needed.contains(&object) {
            found.remains.blocks.push((object, range));
        } else if !found.remains.objects.contains(&(ino, object)) {
            found.change.push(Row::DoomObject { id: object });
            found.remains.objects.push((ino, object));
        }
    }
    any
}

/// The parts of a range that others leave, and those that they cover. They are in order.
fn split(range: Range<u64>, cover: &[Extent]) -> (Vec<Range<u64>>, Vec<Range<u64>>) {
    let (mut left, mut covered) = (Vec::new(), Vec::new());
    let mut at = range.start;
    for &(start, end, _) in cover {
        let (start, end) = (start.max(at), end.min(range.end));
        if start >= end {
            continue;
        }
        if at < start {
            left.push(at..start);
        }
        covered.push(start..end);
        at = end;
    }
    if at < range.end {
        left.push(at..range.end);
    }
    (left, covered)
}

/// Drops everything that a link has of an inode that is gone below: no name leads to it there.
fn drop_all(
    queries: Queries<'_>,
    ino: Ino,
    layer: LayerId,
    found: &mut Found,
) -> Result<(), CollectError> {
    for (parent, name) in queries.names_in(ino, layer)? {
        found.change.push(Row::DropEntry {
            parent,
            name,
            layer,
        });
    }
    for object in queries.objects_of(ino, layer)? {
        found.change.push(Row::DoomObject { id: object });
        found.remains.objects.push((ino, object));
    }
    found.change.push(Row::DropExtents { ino, layer });
    found.change.push(Row::DropXattrs { ino, layer });
    found.change.push(Row::DropInline { ino, layer });
    found.change.push(Row::DropInode { ino, layer });
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_is_split_by_what_covers_it() {
        let cover = [(2, 4, None), (6, 9, None), (12, 20, None)];
        let (left, covered) = split(3..14, &cover);
        assert_eq!(left, [4..6, 9..12]);
        assert_eq!(covered, [3..4, 6..9, 12..14]);
        let (left, covered) = split(0..2, &cover);
        assert_eq!((left.len(), &left[0], covered.len()), (1, &(0..2), 0));
        let (left, covered) = split(6..9, &cover);
        assert_eq!((left.len(), covered.len(), &covered[0]), (0, 1, &(6..9)));
    }

    #[test]
    fn what_is_hidden_of_an_object_goes_and_all_of_one_that_is_hidden_whole() {
        let (ino, layer) = (Ino(5), LayerId(1));
        let [a, b] = [1, 2].map(|id| Some(ObjectId(id)));
        let mut found = Found::default();
        let rows = [(0, 4, a), (4, 8, b), (10, 12, a)];
        assert!(trim(ino, layer, &rows, &[(3, 9, None)], &mut found));
        assert_eq!(found.remains.objects, [(ino, ObjectId(2))]);
        assert_eq!(found.remains.blocks, [(ObjectId(1), 3..4)]);
        let mut found = Found::default();
        assert!(!trim(ino, layer, &rows, &[(0, 99, None)], &mut found));
        assert_eq!(found.remains.objects.len(), 2);
        assert!(found.remains.blocks.is_empty());
    }
}
