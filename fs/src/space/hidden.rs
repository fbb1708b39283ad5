//! Blocks that nobody sees and that have their space still: their object's file was that of others as
//! well when they were hidden, or the process was killed, or the disk refused, before they were made a
//! hole.
//!
//! Only objects of layers that are not live are touched: those lose extents and never get any, so
//! what no extent names now is never read again. That is made durable before the hole is.

use std::collections::HashSet;
use std::os::unix::fs::MetadataExt;

use super::collector::{CollectError, Steps};
use super::remains::{Remains, data_in};
use crate::catalog::ObjectRecord;
use crate::change::{BLOCK_END, Change};
use crate::core::Core;
use crate::id::ObjectId;

/// Rows looked at in one step.
const LOOK: usize = 512;
/// Objects that are remembered; with more, all are looked at.
const MOST: usize = 1 << 16;

/// Where such blocks may be.
#[derive(Debug, Default)]
pub(super) struct Hidden {
    /// Objects that are known to have some.
    known: HashSet<ObjectId>,
    /// The last object that was looked at, while all are.
    all: Option<ObjectId>,
}

impl Hidden {
    /// Nothing is known; or they may be everywhere.
    pub(super) fn new(everywhere: bool) -> Self {
        let mut hidden = Self::default();
        if everywhere {
            hidden.look_at_all();
        }
        hidden
    }

    /// They may be everywhere.
    pub(super) fn look_at_all(&mut self) {
        self.all = Some(ObjectId(0));
    }

    /// Objects have some.
    pub(super) fn keep(&mut self, objects: impl Iterator<Item = ObjectId>) {
        self.known.extend(objects);
        if self.known.len() > MOST {
            self.known.clear();
            self.look_at_all();
        }
    }

    /// Has them made holes where that can be by now.
    pub(super) fn give_back(
        &mut self,
        core: &Core,
        steps: &mut Steps<'_>,
    ) -> Result<(), CollectError> {
        // What goes now can leave others alone with their file.
        steps.flush(core)?;
        let known: Vec<_> = std::mem::take(&mut self.known).into_iter().collect();
        for (at, part) in known.chunks(LOOK).enumerate() {
            let looked = self.look_at(core, part, steps);
            if looked.is_err() {
                self.known.extend(&known[at * LOOK..]);
            }
            looked?;
        }
        while let Some(after) = self.all {
            let found = core.catalog.objects_in_part(after, LOOK)?;
            let in_part = found.iter().filter(|(_, in_part)| *in_part);
            let in_part: Vec<_> = in_part.map(|&(id, _)| id).collect();
            self.look_at(core, &in_part, steps)?;
            self.all = found.last().map(|&(id, _)| id);
        }
        Ok(())
    }

    /// One step.
    fn look_at(
        &mut self,
        core: &Core,
        objects: &[ObjectId],
        steps: &mut Steps<'_>,
    ) -> Result<(), CollectError> {
        let mut remains = Remains::default();
        for &id in objects {
            let Some(record) = core.catalog.object(id)?.filter(|one| one.frozen) else {
                continue;
            };
            let Ok(meta) = std::fs::symlink_metadata(core.objects.path(id)) else {
                continue;
            };
            if meta.nlink() > 1 {
                self.known.insert(id);
                continue;
            }
            unseen(core, &record, &mut remains)?;
        }
        steps.apply(core, &Change::new(), remains)
    }
}

/// Adds the blocks of an object that have data and that no extent names.
fn unseen(core: &Core, record: &ObjectRecord, remains: &mut Remains) -> Result<(), CollectError> {
    let claimed = core.catalog.claimed(record)?;
    if claimed.is_empty() {
        // It goes as a whole, or somebody is about to put it into use.
        return Ok(());
    }
    let mut at = 0;
    for run in claimed.into_iter().chain(Some(BLOCK_END..BLOCK_END)) {
        let unseen = at..run.start;
        at = run.end;
        if unseen.is_empty() {
            continue;
        }
        match data_in(core, record.id, &unseen) {
            Ok(0) => {}
            Ok(_) => remains.blocks.push((record.id, unseen)),
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "what nobody sees of an object keeps its space"
            ),
        }
    }
    Ok(())
}
