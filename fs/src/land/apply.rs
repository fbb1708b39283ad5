//! The rows of a planned landing, in a layer of their own. Bytes are copied into objects of that
//! layer, or shared with them where the disk can, before the rows exist; a file of which ours changed
//! some blocks gets an object with those.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use super::LandError;
use super::plan::{Bytes, Plan, Step};
use crate::attr::Timestamp;
use crate::catalog::{CatalogError, Queries};
use crate::change::{BLOCK_END, Change, ContentKind, EntryRow, InodeRow, Name, Row};
use crate::contents::{BLOCK, INLINE_MAX, Objects};
use crate::core::Core;
use crate::diff::contents::Contents;
use crate::engine::weight;
use crate::id::{Ino, LayerId, ObjectId};
use crate::layers::Lineage;

/// What a landing changes.
pub(crate) struct Landed {
    /// The new layer.
    pub(crate) layer: LayerId,
    pub(crate) change: Change,
    /// Inodes with a row.
    pub(crate) touched: Vec<Ino>,
    objects: Vec<(Ino, ObjectId)>,
}

impl Landed {
    /// The bytes were elsewhere before; called before the change is committed.
    pub(crate) fn mark(&self, objects: &Objects) {
        for &(ino, object) in &self.objects {
            objects.mark_dirty(ino, object);
            objects.mark_inherited(object);
        }
    }

    /// What it adds to the totals of the layer that it lands on: bytes and inodes.
    pub(crate) fn usage(&self) -> (i64, i64) {
        let mut added = (0_i64, 0_i64);
        for row in self.change.rows() {
            if let Row::AddUsage {
                layer,
                bytes,
                inodes,
            } = row
                && *layer == self.layer
            {
                added = (
                    added.0.saturating_add(*bytes),
                    added.1.saturating_add(*inodes),
                );
            }
        }
        added
    }

    /// The change will not be committed.
    pub(crate) fn give_up(self, core: &Core) {
        give_up(core, &self.objects);
    }
}

fn give_up(core: &Core, objects: &[(Ino, ObjectId)]) {
    for &(ino, object) in objects {
        core.objects.forget(ino, object);
        if let Err(error) = core.objects.remove(object) {
            tracing::warn!(%error, "an unused object stays on disk");
        }
    }
}

/// Makes the rows, in a new layer on the layer of `theirs`.
///
/// # Errors
/// [`LandError`]; no object is left behind.
pub(crate) fn rows(
    core: &Core,
    queries: Queries<'_>,
    theirs: Lineage<'_>,
    plan: &Plan,
    now: Timestamp,
) -> Result<Landed, LandError> {
    let mut writer = Writer {
        core,
        queries,
        theirs,
        layer: core.numbers.layer(),
        now,
        change: Change::new(),
        objects: Vec::new(),
        rows: BTreeMap::new(),
        before: HashMap::new(),
    };
    match writer.all(plan).and_then(|()| writer.finish()) {
        Ok(landed) => Ok(landed),
        Err(error) => {
            give_up(core, &writer.objects);
            Err(error)
        }
    }
}

struct Writer<'a> {
    core: &'a Core,
    queries: Queries<'a>,
    theirs: Lineage<'a>,
    layer: LayerId,
    now: Timestamp,
    change: Change,
    objects: Vec<(Ino, ObjectId)>,
    /// New versions; none for what goes.
    rows: BTreeMap<Ino, Option<InodeRow>>,
    /// Versions before.
    before: HashMap<Ino, Option<InodeRow>>,
}

impl Writer<'_> {
    fn all(&mut self, plan: &Plan) -> Result<(), LandError> {
        for step in &plan.steps {
            self.inode(step)?;
        }
        for step in &plan.steps {
            self.links(step)?;
        }
        let going = plan.steps.iter().flat_map(|step| &step.remove);
        let coming: BTreeSet<_> = plan.steps.iter().flat_map(|step| &step.add).collect();
        for (parent, name) in going.filter(|key| !coming.contains(key)) {
            self.change.push(Row::PutEntry {
                parent: *parent,
                name: name.clone(),
                layer: self.layer,
                entry: None,
            });
        }
        for step in &plan.steps {
            for (parent, name) in &step.add {
                self.entry(step, *parent, name)?;
            }
        }
        Ok(())
    }

    /// The version of an inode before the landing.
    fn old(&mut self, ino: Ino) -> Result<Option<InodeRow>, CatalogError> {
        if let Some(row) = self.before.get(&ino) {
            return Ok(*row);
        }
        let version = self.queries.inode(ino, self.theirs)?;
        let row = version.and_then(|(_, row)| row);
        self.before.insert(ino, row);
        Ok(row)
    }

    /// The version of a directory that the landing changes.
    fn directory(&mut self, ino: Ino) -> Result<Option<&mut InodeRow>, CatalogError> {
        if !self.rows.contains_key(&ino) {
            let row = self.old(ino)?;
            self.rows.insert(ino, row);
        }
        Ok(self.rows.get_mut(&ino).and_then(Option::as_mut))
    }

    fn inode(&mut self, step: &Step) -> Result<(), LandError> {
        let Some(ours) = &step.ours else {
            self.old(step.ino)?;
            self.rows.insert(step.ino, None);
            return Ok(());
        };
        let mut row = match &step.theirs {
            Some(theirs) => {
                self.before.insert(step.ino, Some(theirs.row));
                theirs.row
            }
            None => {
                self.before.insert(step.ino, None);
                let mut row = ours.row;
                row.born = self.layer;
                row.attr.nlink = if ours.is_directory() { 2 } else { 0 };
                row.attr.blocks = 0;
                row.content = ContentKind::Empty;
                row
            }
        };
        if let Some(attr) = &step.attr {
            let (nlink, size, blocks) = (row.attr.nlink, row.attr.size, row.attr.blocks);
            row.attr = *attr;
            (row.attr.nlink, row.attr.size, row.attr.blocks) = (nlink, size, blocks);
        }
        row.attr.ctime = self.now;
        match &step.bytes {
            None => {}
            Some(Bytes::Merged(text)) => {
                row.attr.mtime = self.now;
                let contents = Contents::of_bytes(text.clone());
                self.contents(step.ino, &mut row, &contents, None)?;
            }
            Some(Bytes::Ours(contents)) => {
                let blocks = ours.row.attr.blocks;
                self.contents(step.ino, &mut row, contents, Some(blocks))?;
            }
        }
        for (name, value) in &step.xattrs {
            row.has_xattr |= value.is_some();
            self.change.push(Row::PutXattr {
                ino: step.ino,
                name: name.clone(),
                layer: self.layer,
                value: value.clone(),
            });
        }
        self.rows.insert(step.ino, Some(row));
        Ok(())
    }

    /// Gives a file these contents. `blocks` is what they take where they come from.
    fn contents(
        &mut self,
        ino: Ino,
        row: &mut InodeRow,
        contents: &Contents,
        blocks: Option<u64>,
    ) -> Result<(), LandError> {
        let size = contents.size();
        let objects = &self.core.objects;
        let small = size <= INLINE_MAX && !contents.is_large();
        match row.content {
            ContentKind::Empty if contents.is_zeros() => {}
            // What was in objects once stays there.
            ContentKind::Empty | ContentKind::Inline if small => {
                let data: Arc<[u8]> = Arc::from(contents.read_all(objects)?);
                self.change.push(Row::PutInline {
                    ino,
                    layer: self.layer,
                    data,
                });
                row.content = ContentKind::Inline;
                row.attr.blocks = size.div_ceil(512);
            }
            before => {
                let whole = 0..BLOCK_END;
                let mut changed = Vec::from([whole.clone()]);
                let mut partly = false;
                if before == ContentKind::Extents {
                    let old = Contents::load(self.queries, self.theirs, ino, row)?;
                    if let Some(runs) = contents.unshared_with(&old) {
                        partly = *runs != [whole];
                        changed = runs;
                    }
                }
                let own = self.object(ino, contents, &changed)?;
                for run in changed {
                    self.change.push(Row::PutExtent {
                        ino,
                        layer: self.layer,
                        start: run.start,
                        end: run.end,
                        object: own,
                    });
                }
                row.content = ContentKind::Extents;
                row.attr.blocks = match (own, blocks) {
                    (Some(own), _) if !partly => Contents::blocks_of(objects, own)?,
                    (None, _) if !partly => 0,
                    (_, Some(blocks)) => blocks,
                    (_, None) => size.div_ceil(512),
                };
            }
        }
        row.attr.size = size;
        Ok(())
    }

    /// Makes an object with some blocks of these contents; none if they are all holes.
    fn object(
        &mut self,
        ino: Ino,
        contents: &Contents,
        runs: &[std::ops::Range<u64>],
    ) -> Result<Option<ObjectId>, LandError> {
        let objects = &self.core.objects;
        if !contents.has_data(objects, runs)? {
            return Ok(None);
        }
        let blocks = runs.iter().map(|run| run.end.saturating_sub(run.start));
        let bytes = blocks.sum::<u64>().saturating_mul(BLOCK);
        self.core.room.take(bytes.min(contents.size()))?;
        let id = self.core.numbers.object()?;
        let file = objects.create(id)?;
        self.objects.push((ino, id));
        contents.copy(objects, runs, &file, id)?;
        self.change.push(Row::AddObject {
            id,
            ino,
            layer: self.layer,
        });
        Ok(Some(id))
    }

    /// Counts the names of what a step moves, and touches the directories.
    fn links(&mut self, step: &Step) -> Result<(), LandError> {
        let (directory, now) = (step.is_directory(), self.now);
        for (keys, comes) in [(&step.remove, false), (&step.add, true)] {
            for (parent, _) in keys {
                let Some(row) = self.directory(*parent)? else {
                    continue;
                };
                (row.attr.mtime, row.attr.ctime) = (now, now);
                if directory && row.content != ContentKind::Host {
                    row.attr.nlink = match comes {
                        true => row.attr.nlink + 1,
                        false => row.attr.nlink.saturating_sub(1).max(2),
                    };
                }
            }
        }
        let parent = step.add.first().map(|(parent, _)| *parent);
        if let Some(Some(row)) = self.rows.get_mut(&step.ino) {
            if directory {
                row.parent = parent.unwrap_or(row.parent);
            } else {
                let links = i64::from(row.attr.nlink) - count(&step.remove) + count(&step.add);
                row.attr.nlink = u32::try_from(links).unwrap_or(0);
            }
        }
        Ok(())
    }

    fn entry(&mut self, step: &Step, parent: Ino, name: &Name) -> Result<(), LandError> {
        let Some(Some(row)) = self.rows.get(&step.ino) else {
            return Ok(());
        };
        let kind = row.attr.kind;
        let version = self.queries.entry(parent, name, self.theirs)?;
        let cookie = match &version {
            // It keeps its place in a listing under way.
            Some((_, Some(old))) => old.cookie,
            _ => self.core.numbers.cookie()?,
        };
        self.change.push(Row::PutEntry {
            parent,
            name: name.clone(),
            layer: self.layer,
            entry: Some(EntryRow {
                ino: step.ino,
                kind,
                cookie,
                shadows: version.is_some(),
            }),
        });
        Ok(())
    }

    fn finish(&mut self) -> Result<Landed, LandError> {
        let (mut bytes, mut inodes) = (0_i64, 0_i64);
        let mut touched = Vec::with_capacity(self.rows.len());
        for (ino, row) in std::mem::take(&mut self.rows) {
            touched.push(ino);
            let old = self.before.get(&ino).copied().flatten();
            for (row, sign) in [(old, -1), (row, 1)] {
                let Some(row) = row else { continue };
                // Of what began on the host only what it has grown by counts.
                let of_host = self.core.bases.contains(row.born);
                let began = match of_host {
                    true => self.queries.inode_at(ino, row.born)?,
                    false => None,
                };
                let began = began.map_or(0, |row| row.attr.blocks);
                let weight = weight(&row, began, of_host);
                bytes = bytes.saturating_add(sign * weight.0);
                inodes += sign * weight.1;
            }
            self.change.push(Row::PutInode {
                ino,
                layer: self.layer,
                row,
            });
        }
        self.change.push(Row::AddUsage {
            layer: self.layer,
            bytes,
            inodes,
        });
        Ok(Landed {
            layer: self.layer,
            change: std::mem::take(&mut self.change),
            touched,
            objects: std::mem::take(&mut self.objects),
        })
    }
}

fn count<T>(of: &BTreeSet<T>) -> i64 {
    i64::try_from(of.len()).unwrap_or(i64::MAX)
}
