//! Comparing two objects and making them one file, or having them share extents.
//!
//! Only objects of layers that are not live get here, and no layer becomes live again. Both were
//! hashed and are equal as far as that says; what decides is their files, byte by byte, and where they
//! have holes, which programs can ask for.

use std::collections::HashSet;
use std::fs::File;
use std::ops::Range;
use std::os::unix::fs::{FileExt, MetadataExt};

use crate::contents::{ContentsError, FileId, Joined, allocated, as_len, file_id, raw};
use crate::core::Core;
use crate::dispatch::OpError;
use crate::fault;
use crate::id::ObjectId;
use crate::sys;

/// Bytes compared at a time.
const CHUNK: u64 = 1 << 20;

/// What became of a step.
pub(super) enum Shared {
    /// It goes on.
    NotYet {
        /// Bytes read.
        read: u64,
    },
    /// The object is stored with another, which saves so many bytes; or it was already, or no other
    /// is equal.
    Done { saved: Option<u64> },
    /// They are equal, and the disk has no second names for files.
    Unsupported,
}

/// An object that others may be equal to.
pub(super) struct Sharing {
    object: ObjectId,
    /// Those that are left, the last to be tried first.
    others: Vec<ObjectId>,
    seen: HashSet<FileId>,
    pair: Option<Pair>,
}

/// Two objects that are compared.
struct Pair {
    /// The one that stays, and the one that is to be it as well.
    objects: [ObjectId; 2],
    files: [File; 2],
    ids: [FileId; 2],
    at: u64,
    /// End of the data that is being compared.
    end: u64,
    shared: u64,
}

/// What an object's file is like.
struct Opened {
    file: File,
    id: FileId,
    len: u64,
    bytes: u64,
    links: u64,
}

impl Opened {
    /// None if it was removed meanwhile.
    fn open(core: &Core, id: ObjectId) -> Result<Option<Self>, ContentsError> {
        let writable = core.objects.can_reflink();
        let file = match core.objects.open_raw(id, writable) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(ContentsError::object("open", id))?,
        };
        let meta = file
            .metadata()
            .map_err(ContentsError::object("look at", id))?;
        Ok(Some(Self {
            id: file_id(&meta),
            len: meta.len(),
            bytes: allocated(&meta),
            links: meta.nlink(),
            file,
        }))
    }
}

impl Sharing {
    /// `others` have the same checksum; the first is to be tried first.
    pub(super) fn new(object: ObjectId, mut others: Vec<ObjectId>) -> Self {
        others.reverse();
        Self {
            object,
            others,
            seen: HashSet::new(),
            pair: None,
        }
    }

    /// Goes on a little. `durable` says whether it is known to survive a power failure that every
    /// object with a checksum is frozen; it is made so before two become one file. Else one of them
    /// could be a live layer's afterwards, and what is written to it would be in the other.
    pub(super) fn step(&mut self, core: &Core, durable: &mut bool) -> Result<Shared, OpError> {
        let Some(mut pair) = self.pair.take() else {
            return Ok(self.next(core)?);
        };
        let done = match pair.advance(core)? {
            Compared::Differ => None,
            Compared::SoFar(read) => {
                self.pair = Some(pair);
                return Ok(Shared::NotYet { read });
            }
            Compared::Equal if core.objects.can_reflink() => Some(pair.shared),
            Compared::Equal => {
                if !*durable {
                    core.sync_catalog()?;
                    *durable = true;
                }
                match pair.join(core)? {
                    Ended::Joined { saved } => Some(saved),
                    Ended::Apart => None,
                    Ended::Unsupported => return Ok(Shared::Unsupported),
                }
            }
        };
        Ok(match done {
            Some(saved) => Shared::Done { saved: Some(saved) },
            None => Shared::NotYet { read: 0 },
        })
    }

    /// Begins with the next of the others.
    fn next(&mut self, core: &Core) -> Result<Shared, ContentsError> {
        let done = Ok(Shared::Done { saved: None });
        let Some(other) = self.others.pop() else {
            return done;
        };
        let Some(this) = Opened::open(core, self.object)? else {
            return done;
        };
        let Some(kept) = Opened::open(core, other)? else {
            return Ok(Shared::NotYet { read: 0 });
        };
        if kept.id == this.id || this.bytes == 0 {
            return done;
        }
        // Names go from a file with fewer to one with more, or they would go to and fro between two of
        // which one has all that it can have.
        let worth = kept.links >= this.links && kept.len == this.len;
        if self.seen.insert(kept.id) && worth {
            let objects = [other, self.object];
            core.objects.comparing(objects);
            self.pair = Some(Pair {
                objects,
                ids: [kept.id, this.id],
                files: [kept.file, this.file],
                at: 0,
                end: 0,
                shared: 0,
            });
        }
        Ok(Shared::NotYet { read: 0 })
    }
}

/// What is known of two files so far.
enum Compared {
    /// They are equal, and so many bytes more were compared.
    SoFar(u64),
    Differ,
    Equal,
}

/// What became of making two objects one file.
enum Ended {
    /// They are, and that saves so many bytes.
    Joined {
        saved: u64,
    },
    /// They are not, and never will be.
    Apart,
    Unsupported,
}

impl Pair {
    fn advance(&mut self, core: &Core) -> Result<Compared, ContentsError> {
        if self.at == self.end {
            let Some(next) = self.next_run()? else {
                return Ok(Compared::Differ);
            };
            let Some(run) = next else {
                return Ok(Compared::Equal);
            };
            (self.at, self.end) = (run.start, run.end);
        }
        let len = (self.end - self.at).min(CHUNK);
        let equal = if core.objects.can_reflink() {
            self.share(len)?
        } else {
            self.compare(len)?
        };
        if !equal {
            return Ok(Compared::Differ);
        }
        self.at += len;
        Ok(Compared::SoFar(len))
    }

    /// The next run of data, which must be at the same place in both; none if it is not, or there is
    /// no more.
    fn next_run(&self) -> Result<Option<Option<Range<u64>>>, ContentsError> {
        let [one, other] = [0, 1].map(|n| {
            let (file, id) = (&self.files[n], self.objects[n]);
            raw::next_data(file, self.at).map_err(ContentsError::object("seek in", id))
        });
        let (one, other) = (one?, other?);
        Ok((one == other).then_some(one))
    }

    fn compare(&self, len: u64) -> Result<bool, ContentsError> {
        let mut buffers = [0, 1].map(|_| vec![0_u8; as_len(len)]);
        for ((buffer, file), &id) in buffers.iter_mut().zip(&self.files).zip(&self.objects) {
            match file.read_exact_at(buffer, self.at) {
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => {
                    return Ok(false);
                }
                read => read.map_err(ContentsError::object("read", id))?,
            }
        }
        Ok(buffers[0] == buffers[1])
    }

    /// Has the kernel compare and share.
    fn share(&mut self, len: u64) -> Result<bool, ContentsError> {
        let [kept, this] = &self.files;
        let (mut at, end) = (self.at, self.at + len);
        while at < end {
            fault::step();
            let shared = sys::share_extents(kept, this, at, end - at)
                .map_err(ContentsError::object("share extents of", self.objects[1]))?;
            match shared {
                None | Some(0) => return Ok(false),
                Some(bytes) => at += bytes.min(end - at),
            }
        }
        self.shared += len;
        Ok(true)
    }

    /// Makes them one file.
    fn join(&self, core: &Core) -> Result<Ended, ContentsError> {
        let [kept, this] = self.objects;
        // The other's bytes may have been durable, and are to be so under its name.
        core.objects.sync_bytes(kept, &self.files[0])?;
        let meta = self.files[1].metadata();
        let meta = meta.map_err(ContentsError::object("look at", this))?;
        let saves = if meta.nlink() == 1 {
            allocated(&meta)
        } else {
            0
        };
        match core.objects.join(self.objects, self.ids)? {
            Joined::Yes => Ok(Ended::Joined { saved: saves }),
            // It becomes one that others are joined with.
            Joined::Full | Joined::Changed => Ok(Ended::Apart),
            Joined::Unsupported => Ok(Ended::Unsupported),
        }
    }
}
