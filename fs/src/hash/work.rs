//! What is to be hashed and stored once, one step after the other.
//!
//! Objects are found by the layers that were frozen, or by looking at all that have no checksum. Those
//! of live layers are left: the freeze of their layer tells of them.

use std::collections::{HashSet, VecDeque};

use super::object::Reading;
use super::share::{Shared, Sharing};
use crate::catalog::{CatalogError, ObjectRecord};
use crate::change::{Change, Row};
use crate::contents::{Checksum, ContentsError};
use crate::core::Core;
use crate::dispatch::OpError;
use crate::id::{Ino, LayerId, ObjectId};

/// Rows, or inodes, looked at in one step.
const LOOK: usize = 512;
/// Bytes hashed in one step.
const STEP: u64 = 1 << 20;
/// Checksums, and bytes of them, in one transaction: it holds the catalog's writer for about a
/// millisecond. Only of a file of gigabytes is a single one larger.
const BATCH: usize = 32;
const BATCH_BYTES: usize = 64 << 10;
/// Objects with the same checksum that are tried, where the first is as full of names as it can be.
const ALIKE: usize = 64;

/// What a step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Done {
    /// Bytes read.
    pub(super) read: u64,
    /// It looked for something to do.
    pub(super) looked: bool,
    /// Objects hashed, now that it is known to the catalog.
    pub(super) hashed: u64,
    /// Objects stored with another.
    pub(super) shared: u64,
    /// Bytes that this saves.
    pub(super) saved: u64,
    /// Objects that could not be read.
    pub(super) failed: u64,
}

/// What is known of what is left to do.
#[derive(Default)]
pub(super) struct Work {
    /// Layers that were frozen, each with the last inode of it that was looked at.
    layers: VecDeque<(LayerId, Ino)>,
    /// The last object that was looked at, while all are.
    all: Option<ObjectId>,
    /// The last digest that was looked at, while all are.
    digests: Option<(i64, ObjectId)>,
    queue: VecDeque<ObjectRecord>,
    reading: Option<(ObjectId, Reading)>,
    hashed: Vec<(ObjectId, Checksum)>,
    hashed_bytes: usize,
    /// Hashed objects that others may be equal to.
    may_be_equal: VecDeque<ObjectId>,
    sharing: Option<(ObjectId, Sharing)>,
    /// Could not be read, and are left until somebody asks for everything.
    failed: HashSet<ObjectId>,
}

impl Work {
    /// A layer was frozen.
    pub(super) fn frozen(&mut self, layer: LayerId) {
        self.layers.push_back((layer, Ino(0)));
    }

    /// All objects are to be looked at.
    pub(super) fn look_at_all(&mut self) {
        self.all = Some(ObjectId(0));
    }

    /// So are those that could not be read, and those that have a checksum and may be stored once.
    pub(super) fn again(&mut self, core: &Core) {
        self.failed.clear();
        self.look_at_all();
        // Which extents are shared already nobody knows.
        if !core.objects.can_reflink() {
            self.digests = Some((i64::MIN, ObjectId(0)));
        }
    }

    /// Does a little; none if there is nothing left to do.
    pub(super) fn step(&mut self, core: &Core, share: bool) -> Result<Option<Done>, OpError> {
        if let Some((id, sharing)) = self.sharing.take() {
            return self.share(core, id, sharing).map(Some);
        }
        if let Some(id) = self.may_be_equal.pop_front() {
            if share {
                let mut alike = core.catalog.hashed_alike(id, ALIKE)?;
                if core.objects.can_reflink() {
                    // Those will find this one, and share its extents then.
                    alike.retain(|other| !self.may_be_equal.contains(other));
                }
                self.sharing = Some((id, Sharing::new(id, alike)));
            }
            return Ok(Some(Done::default()));
        }
        if let Some((id, reading)) = self.reading.take() {
            return self.read(core, id, reading).map(Some);
        }
        if let Some(record) = self.queue.pop_front() {
            return self.begin(core, record).map(Some);
        }
        if self.find(core)? {
            return Ok(Some(Done {
                looked: true,
                ..Done::default()
            }));
        }
        if self.hashed.is_empty() {
            return Ok(None);
        }
        self.commit(core).map(Some)
    }

    /// Looks for objects to hash; says whether there is more to look at, or something was found.
    fn find(&mut self, core: &Core) -> Result<bool, CatalogError> {
        let catalog = &core.catalog;
        if let Some((layer, after)) = self.layers.pop_front() {
            let inos = catalog.written_after(layer, after, LOOK)?;
            match inos.last() {
                Some(&last) => {
                    let range = Ino(after.0 + 1)..Ino(last.0 + 1);
                    let found = catalog.unhashed_in(layer, &range)?;
                    self.layers.push_front((layer, last));
                    self.enqueue(found);
                }
                // What it had may be that of the layer on it by now.
                None if !catalog.has_layer(layer)? => self.look_at_all(),
                None => {}
            }
            return Ok(true);
        }
        if let Some(after) = self.all.take() {
            let found = catalog.unhashed(after, LOOK)?;
            self.all = found.last().map(|last| last.id);
            self.enqueue(found);
            return Ok(true);
        }
        if let Some(after) = self.digests.take() {
            let found = catalog.digests(after, LOOK)?;
            self.digests = found.last().copied();
            // The first of those with the same digest may be the one that is alone.
            let mut last = Some(after);
            for (digest, object) in found {
                if let Some((before, first)) = last.replace((digest, object))
                    && before == digest
                {
                    self.may_be_equal.extend([first, object]);
                }
            }
            return Ok(true);
        }
        Ok(false)
    }

    fn enqueue(&mut self, found: Vec<ObjectRecord>) {
        let found = found.into_iter();
        let failed = &self.failed;
        self.queue
            .extend(found.filter(|one| one.frozen && !failed.contains(&one.id)));
    }

    fn begin(&mut self, core: &Core, record: ObjectRecord) -> Result<Done, OpError> {
        // It may have been hashed, or given up, since it was found.
        let still = core.catalog.object(record.id)?;
        let Some(record) = still.filter(|one| one.frozen && !one.hashed) else {
            return Ok(Done::default());
        };
        // There is nothing to be read of it, until it is back.
        if core.objects.damaged().has_whole(record.id) {
            return Ok(Done::default());
        }
        match Reading::open(core, &record) {
            Ok(reading) => self.reading = Some((record.id, reading)),
            Err(OpError::Contents(error)) => return self.leave(core, record.id, &error),
            Err(error) => return Err(error),
        }
        Ok(Done::default())
    }

    /// Leaves an object that cannot be read.
    fn leave(&mut self, core: &Core, id: ObjectId, error: &ContentsError) -> Result<Done, OpError> {
        let mut done = Done::default();
        if core.catalog.has_object(id)? {
            tracing::warn!(
                error = error as &dyn std::error::Error,
                "an object was not hashed"
            );
            self.failed.insert(id);
            done.failed = 1;
        }
        Ok(done)
    }

    fn read(&mut self, core: &Core, id: ObjectId, mut reading: Reading) -> Result<Done, OpError> {
        let read = match reading.step(STEP) {
            Ok(read) => read,
            Err(error) => return self.leave(core, id, &error),
        };
        let mut done = Done::default();
        if reading.is_done() {
            self.hashed_bytes += reading.checksum.encoded_len();
            self.hashed.push((id, reading.checksum));
            if self.hashed.len() >= BATCH || self.hashed_bytes >= BATCH_BYTES {
                done = self.commit(core)?;
            }
        } else {
            self.reading = Some((id, reading));
        }
        done.read = read;
        Ok(done)
    }

    fn commit(&mut self, core: &Core) -> Result<Done, OpError> {
        let hashed = std::mem::take(&mut self.hashed);
        self.hashed_bytes = 0;
        let mut change = Change::new();
        for (object, checksum) in &hashed {
            change.push(Row::PutChecksum {
                object: *object,
                digest: checksum.digest(),
                blocks: checksum.encode(),
            });
        }
        crate::fault::step();
        core.catalog.apply(&change)?;
        crate::fault::step();
        let done = Done {
            hashed: hashed.len() as u64,
            ..Done::default()
        };
        let with_data = hashed.into_iter().filter(|(_, sum)| !sum.is_empty());
        self.may_be_equal.extend(with_data.map(|(id, _)| id));
        Ok(done)
    }

    fn share(&mut self, core: &Core, id: ObjectId, mut sharing: Sharing) -> Result<Done, OpError> {
        let mut done = Done::default();
        match sharing.step(core) {
            Ok(Shared::NotYet { read }) => {
                self.sharing = Some((id, sharing));
                done.read = read;
            }
            Ok(Shared::Done { saved }) => {
                done.shared = u64::from(saved.is_some());
                done.saved = saved.unwrap_or(0);
            }
            // Each has its own file then, which is as good.
            Err(error) => tracing::warn!(
                error = &error as &dyn std::error::Error,
                "an object is not stored together with its equal"
            ),
        }
        Ok(done)
    }
}
