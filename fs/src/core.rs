//! What every part of an open store shares: catalog, objects, layer tree, number counters.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::Sender;

use crate::base::Bases;
use crate::catalog::{CatalogError, SharedCatalog};
use crate::change::{Change, Row};
use crate::contents::Objects;
use crate::dispatch::OpError;
use crate::elapsed::Elapsed;
use crate::engine::View;
use crate::hash::Hashing;
use crate::id::{Ino, LayerId, ObjectId};
use crate::layers::SharedLayers;
use crate::lock::{Mutex, RwLock, rank};
use crate::retention;
use crate::space::{Collecting, Room, Signal, Use, Uses};

/// Inode numbers reserved with one write to the catalog.
const INO_BATCH: u64 = 1 << 16;
/// Object ids reserved with one write.
const OBJECT_BATCH: u64 = 1 << 10;

/// What the lock file holds after an orderly end; else the process that has it, or had.
pub(crate) const CLEAN: &str = "clean\n";

/// Marks an orderly end in the lock file.
pub(crate) fn note_clean_end(lock: &File) -> io::Result<()> {
    lock.write_all_at(CLEAN.as_bytes(), 0)?;
    lock.set_len(CLEAN.len() as u64)
}

/// Rank of [`Core::deciding`]: bases are asked for inside.
pub(crate) type Deciding = Mutex<{ rank::GATE }, ()>;

/// Work that no caller waits for.
pub(crate) enum Chore {
    /// Reclaim an unlinked inode that nobody refers to any more.
    Reap(Arc<View>, Ino),
    /// Tell the catalog how long snapshots took.
    NoteElapsed,
    /// Tell when everything handed over before is done.
    Tell(Sender<()>),
}

/// The shared parts of an open store.
pub(crate) struct Core {
    pub(crate) dir: PathBuf,
    pub(crate) catalog: SharedCatalog,
    pub(crate) objects: Arc<Objects>,
    /// Bases over directories of the host.
    pub(crate) bases: Arc<Bases>,
    pub(crate) layers: SharedLayers,
    pub(crate) numbers: Numbers,
    /// Held for reading from the marking of inherited bytes to the commit that refers to them, for
    /// writing while the catalog is made durable. Counts the syncs asked for that are done.
    pub(crate) moving: RwLock<{ rank::MOVING }, u64>,
    /// Syncs asked for so far.
    pub(crate) syncs: AtomicU64,
    /// How long snapshots took.
    pub(crate) elapsed: Elapsed,
    /// Held by a landing in directories of the host.
    pub(crate) landing: Mutex<{ rank::LANDING }, ()>,
    /// What may still be added to the disk.
    pub(crate) room: Room,
    /// Layers in use that the catalog does not name.
    pub(crate) uses: Arc<Uses>,
    /// Wakes whoever gives space back.
    pub(crate) collect: Arc<Signal>,
    /// Held by whoever does.
    pub(crate) collecting: Mutex<{ rank::CONTROL }, Collecting>,
    /// Wakes whoever deletes snapshots by rules.
    pub(crate) retain: Arc<retention::Signal>,
    /// Held by whoever deletes snapshots, or changes what is said of them or of how long they are kept.
    pub(crate) deciding: Deciding,
    /// How frozen contents are hashed, and what is left to be.
    pub(crate) hashing: Hashing,
    /// Where [`Chore`]s go; closed when the store closes.
    pub(crate) chores: Mutex<{ rank::LEAF }, Option<Sender<Chore>>>,
    /// The lock file, locked: until nobody can write here any more, whoever still has a view.
    pub(crate) lock: File,
}

impl Core {
    /// The base over directories of the host that a layer stands on, or is; none if that is an
    /// ordinary one.
    pub(crate) fn host_base(&self, layer: LayerId) -> Option<LayerId> {
        let base = self.layers.lineage(layer)?.base();
        self.bases.contains(base).then_some(base)
    }

    /// Keeps a layer as it is for now, whatever becomes of its snapshot.
    pub(crate) fn use_layer(&self, layer: LayerId) -> Use {
        self.uses.hold(layer, &self.collect)
    }

    /// Hands work to the background thread; dropped when the store is closing, where a restart
    /// finds it again.
    pub(crate) fn later(&self, chore: Chore) {
        if let Some(chores) = &*self.chores.lock() {
            drop(chores.send(chore));
        }
    }

    /// Makes every change applied so far survive power loss. First come the objects with bytes that
    /// such a change moved there, from where they may have been durable: a log that refers to
    /// bytes which are not on the disk yet would lose what was safe before.
    pub(crate) fn sync_catalog(&self) -> Result<(), OpError> {
        let asked = self.syncs.fetch_add(1, Ordering::AcqRel) + 1;
        // Most of the work, while nobody has to wait.
        self.objects.sync_inherited(true)?;
        let mut done = self.moving.write();
        if *done >= asked {
            // One that began after this was asked for has ended meanwhile.
            return Ok(());
        }
        let begins = self.syncs.load(Ordering::Acquire);
        self.objects.sync_inherited(false)?;
        self.catalog.sync()?;
        *done = begins;
        Ok(())
    }

    /// Waits until the background thread has done what it was given so far.
    pub(crate) fn wait_for_chores(&self) {
        let (done, when_done) = crossbeam_channel::bounded(1);
        self.later(Chore::Tell(done));
        // An error says that the thread has ended and dropped the question: nothing is left to do.
        when_done.recv().unwrap_or_default();
    }

    /// Notes that nothing has to be put in order when the store is opened again.
    pub(crate) fn note_clean_end(&self) -> Result<(), CatalogError> {
        note_clean_end(&self.lock).map_err(|source| CatalogError::Sync {
            path: self.dir.join("lock"),
            source,
        })
    }

    pub(crate) fn objects_dir(dir: &Path) -> PathBuf {
        dir.join("objects")
    }
}

/// A counter whose handed-out numbers are never handed out again, not even after a crash: a mark
/// above them is in the catalog before the first of a batch is used.
struct Counter {
    next: u64,
    below: u64,
    batch: u64,
}

impl Counter {
    fn new(below: u64, batch: u64) -> Self {
        Self {
            next: below,
            below,
            batch,
        }
    }

    fn draw(
        &mut self,
        reserve: impl FnOnce(u64) -> Result<(), CatalogError>,
    ) -> Result<u64, CatalogError> {
        if self.next == self.below {
            let below = self.below + self.batch;
            reserve(below)?;
            self.below = below;
        }
        self.next += 1;
        Ok(self.next - 1)
    }
}

/// The store's counters.
pub(crate) struct Numbers {
    catalog: SharedCatalog,
    inos: Mutex<{ rank::COUNTER }, Counter>,
    objects: Mutex<{ rank::COUNTER }, Counter>,
    /// The first object id that this process may hand out.
    first_object: ObjectId,
    layers: Mutex<{ rank::LEAF }, u64>,
    workspaces: Mutex<{ rank::LEAF }, u64>,
}

impl Numbers {
    /// Continues above every number that was or may have been used.
    pub(crate) fn open(catalog: &SharedCatalog, last_layer: LayerId) -> Result<Self, CatalogError> {
        let inos = catalog.counter("next_ino")?.max(Ino::FIRST.0);
        let objects = catalog.counter("next_object")?.max(1);
        Ok(Self {
            inos: Mutex::new(Counter::new(inos, INO_BATCH)),
            objects: Mutex::new(Counter::new(objects, OBJECT_BATCH)),
            first_object: ObjectId(objects),
            layers: Mutex::new(last_layer.0),
            workspaces: Mutex::new(catalog.last_workspace_id()?),
            catalog: catalog.clone(),
        })
    }

    /// Goes on above an object id that was found in use.
    pub(crate) fn skip_object(&self, used: ObjectId) -> Result<(), CatalogError> {
        let mut objects = self.objects.lock();
        if used.0 < objects.next {
            return Ok(());
        }
        let below = used.0 + 1;
        self.catalog
            .apply(&Change::from(Row::ReserveObjects { below }))?;
        *objects = Counter::new(below, OBJECT_BATCH);
        Ok(())
    }

    /// Whether this process has handed an object id out: somebody may be about to use it.
    pub(crate) fn handed_out(&self, id: ObjectId) -> bool {
        self.first_object <= id && id.0 < self.objects.lock().next
    }

    /// Goes on above an inode number or cookie that was found in use.
    pub(crate) fn skip_ino(&self, used: u64) -> Result<(), CatalogError> {
        let mut inos = self.inos.lock();
        if used < inos.next {
            return Ok(());
        }
        let below = used.saturating_add(1);
        self.catalog
            .apply(&Change::from(Row::ReserveInos { below }))?;
        *inos = Counter::new(below, INO_BATCH);
        Ok(())
    }

    /// A new inode number.
    pub(crate) fn ino(&self) -> Result<Ino, CatalogError> {
        self.inos
            .lock()
            .draw(|below| {
                self.catalog
                    .apply(&Change::from(Row::ReserveInos { below }))
            })
            .map(Ino)
    }

    /// A new directory cookie, from the same counter as inode numbers.
    pub(crate) fn cookie(&self) -> Result<u64, CatalogError> {
        self.ino().map(|ino| ino.0)
    }

    /// A new object id.
    pub(crate) fn object(&self) -> Result<ObjectId, CatalogError> {
        self.objects
            .lock()
            .draw(|below| {
                self.catalog
                    .apply(&Change::from(Row::ReserveObjects { below }))
            })
            .map(ObjectId)
    }

    /// A new layer id, larger than every one before. An id that is drawn and not used is lost.
    pub(crate) fn layer(&self) -> LayerId {
        let mut last = self.layers.lock();
        *last += 1;
        LayerId(*last)
    }

    /// A new workspace id.
    pub(crate) fn workspace(&self) -> crate::id::WorkspaceId {
        let mut last = self.workspaces.lock();
        *last += 1;
        crate::id::WorkspaceId(*last)
    }
}
