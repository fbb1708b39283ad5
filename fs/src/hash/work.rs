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
/// Hashed objects that are gathered before others equal to them are looked for: the catalog is made
/// durable once for all of them.
const GATHERED: usize = 512;
/// Blocks with data that an object may have to be hashed: 16 GiB of data. Its checksum is one value of
/// the catalog, 40 bytes for each.
const BLOCKS: usize = 1 << 18;

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
    /// They are to be looked at once more afterwards.
    all_again: bool,
    /// The last digest that was looked at, while all are.
    digests: Option<(i64, ObjectId)>,
    queue: VecDeque<ObjectRecord>,
    reading: Option<(ObjectId, Reading)>,
    hashed: Vec<(ObjectId, Checksum)>,
    hashed_bytes: usize,
    /// Hashed objects that others may be equal to.
    may_be_equal: VecDeque<ObjectId>,
    sharing: Option<(ObjectId, Sharing)>,
    /// Those are being handed on, until none is left.
    sharing_all: bool,
    /// It is known to survive a power failure that every object with a checksum is frozen.
    durable: bool,
    /// The disk has no second names for files.
    no_links: bool,
    /// Could not be read, and are left until somebody asks for everything.
    failed: HashSet<ObjectId>,
}

impl Work {
    /// A layer was frozen.
    pub(super) fn frozen(&mut self, layer: LayerId) {
        self.layers.push_back((layer, Ino(0)));
    }

    /// All objects are to be looked at. A look that is under way comes to its end first, or those at
    /// its end would never be reached.
    pub(super) fn look_at_all(&mut self) {
        if self.all.is_some_and(|last| last > ObjectId(0)) {
            self.all_again = true;
        } else {
            self.all = Some(ObjectId(0));
        }
    }

    /// So are those that could not be read, and those that have a checksum and may be stored once.
    pub(super) fn again(&mut self) {
        self.failed.clear();
        self.no_links = false;
        self.look_at_all();
        self.compare_all();
    }

    /// Objects that have a checksum are to be stored once, if they are not. Where the disk shares
    /// extents nobody knows which are: they are compared once more, by the kernel.
    pub(super) fn compare_all(&mut self) {
        self.digests = Some((i64::MIN, ObjectId(0)));
    }

    /// Nothing more is hashed of what is known: there is no room for checksums. It is found again.
    pub(super) fn only_share(&mut self) {
        self.layers.clear();
        self.all = None;
        self.all_again = false;
        self.queue.clear();
        self.reading = None;
        self.hashed.clear();
        self.hashed_bytes = 0;
    }

    /// Does a little; none if there is nothing left to do.
    pub(super) fn step(&mut self, core: &Core, share: bool) -> Result<Option<Done>, OpError> {
        if let Some((id, sharing)) = self.sharing.take() {
            return self.share(core, id, sharing).map(Some);
        }
        if self.sharing_all || self.may_be_equal.len() >= GATHERED {
            self.sharing_all = !self.may_be_equal.is_empty();
            if let Some(id) = self.may_be_equal.pop_front() {
                return Ok(Some(self.begin_sharing(core, id, share)?));
            }
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
        if !self.hashed.is_empty() {
            return self.commit(core).map(Some);
        }
        self.sharing_all = !self.may_be_equal.is_empty();
        Ok(self.sharing_all.then(Done::default))
    }

    fn begin_sharing(
        &mut self,
        core: &Core,
        id: ObjectId,
        share: bool,
    ) -> Result<Done, CatalogError> {
        if share && !self.no_links {
            let mut alike = core.catalog.hashed_alike(id, ALIKE)?;
            if core.objects.can_reflink() {
                // Those will find this one, and share its extents then.
                alike.retain(|other| !self.may_be_equal.contains(other));
            }
            self.sharing = Some((id, Sharing::new(id, alike)));
        }
        Ok(Done::default())
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
            if self.all.is_none() && std::mem::take(&mut self.all_again) {
                self.all = Some(ObjectId(0));
            }
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
        // It may have been hashed, or given up, since it was found, and found twice.
        if self.hashed.iter().any(|(id, _)| *id == record.id) {
            return Ok(Done::default());
        }
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
            done.failed = 1;
            if stays(error) {
                self.failed.insert(id);
            }
        }
        Ok(done)
    }

    fn read(&mut self, core: &Core, id: ObjectId, mut reading: Reading) -> Result<Done, OpError> {
        let read = match reading.step(STEP) {
            Ok(read) => read,
            Err(error) => return self.leave(core, id, &error),
        };
        let mut done = Done::default();
        if reading.checksum.entries().len() > BLOCKS {
            tracing::warn!(object = id.0, "an object is too large to be hashed");
            self.failed.insert(id);
            done.failed = 1;
        } else if reading.is_done() {
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
        // Of what was frozen now, nobody has made sure that it survives a power failure.
        self.durable = false;
        let mut change = Change::new();
        for (object, checksum) in &hashed {
            let blocks = checksum.encode();
            change.push(Row::PutChecksum {
                object: *object,
                digest: Checksum::digest_of(&blocks),
                blocks,
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
        match sharing.step(core, &mut self.durable) {
            Ok(Shared::NotYet { read }) => {
                self.sharing = Some((id, sharing));
                done.read = read;
            }
            Ok(Shared::Done { saved }) => {
                done.shared = u64::from(saved.is_some());
                done.saved = saved.unwrap_or(0);
            }
            Ok(Shared::Unsupported) => {
                self.no_links = true;
                tracing::warn!(
                    "the disk has no second names for files: equal contents are not stored once"
                );
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

/// Whether an object that could not be read is not tried again until somebody asks for everything.
/// Else the system is short of something.
fn stays(error: &ContentsError) -> bool {
    use rustix::io::Errno;
    let ContentsError::Object { source, .. } = error else {
        return true;
    };
    let of_the_object = [Errno::NOENT, Errno::IO, Errno::UCLEAN];
    Errno::from_io_error(source).is_none_or(|errno| of_the_object.contains(&errno))
}
