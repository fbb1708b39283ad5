//! Base layers over directories of the host: `floe ws create W --from DIR`.
//!
//! Such a layer refers to the host in place. A directory's names and what is known of them become
//! rows of the layer the first time somebody looks into it ([`listing`]); contents are read from the
//! host until they are copied up or adopted ([`contents`]). docs/format.md ("Directories of the
//! host") specifies it.
//!
//! Invariants:
//! * Nothing on the host is written, and no mount below the directory is entered.
//! * What was seen once does not change: a file that is not what it was is not read any more.
//! * A directory's rows are complete before anybody is told one of its names.

mod contents;
mod exclude;
mod host;
mod listing;
mod place;

use std::collections::{HashMap, HashSet};
use std::num::NonZeroUsize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use lru::LruCache;

pub(crate) use self::contents::HostFiles;
use self::exclude::Exclude;
pub use self::exclude::ExcludeError;
use self::host::Root;
pub(crate) use self::host::{is_mount_of_floe, kernel_device, time, xattrs};
pub(crate) use self::listing::{NamedDir, look_at_named, push_xattrs};
use self::place::Place;
use crate::catalog::{CatalogError, SharedCatalog};
use crate::change::{BaseState, Change, HostState, Row};
use crate::contents::ContentsError;
use crate::core::Core;
use crate::dispatch::OpError;
use crate::id::{Ino, LayerId, ObjectId};
use crate::lock::{Mutex, RwLock, rank};

/// Ids of host objects are this and more: the rest of the id is the inode number.
const HOST_OBJECTS: u64 = 1 << 62;
/// Directories whose place on the host is remembered, for each base.
const PLACES_MAX: NonZeroUsize = NonZeroUsize::new(4096).unwrap();

/// The object that stands for a file of the host.
pub(crate) fn host_object(ino: Ino) -> ObjectId {
    ObjectId(HOST_OBJECTS + ino.0)
}

/// The inode that a host object belongs to; none if it is an ordinary object.
pub(crate) fn host_inode(object: ObjectId) -> Option<Ino> {
    object.0.checked_sub(HOST_OBJECTS).map(Ino)
}

/// Every base over directories of the host in a store.
pub(crate) struct Bases {
    catalog: SharedCatalog,
    /// Device and inode of the store's own directories: they are shown empty.
    own: HashSet<(u64, u64)>,
    /// The running kernel.
    boot: String,
    all: RwLock<{ rank::LEAF }, HashMap<LayerId, Arc<Base>>>,
    /// How many there are: a store without any asks no further.
    count: AtomicUsize,
    /// Files that were reported as changed.
    reported: Mutex<{ rank::LEAF }, HashSet<Ino>>,
}

/// One base.
pub(crate) struct Base {
    layer: LayerId,
    /// Whether device numbers mean what they meant when the base was made.
    same_boot: bool,
    /// None if what is to be left out cannot be understood: then nothing is taken in any more.
    exclude: Option<Exclude>,
    patterns: String,
    state: Mutex<{ rank::LEAF }, BaseState>,
    held: Mutex<{ rank::LEAF }, Weak<Held>>,
    /// When a directory that was not there was last looked for.
    looked: Mutex<{ rank::LEAF }, Option<Instant>>,
    /// Nothing stands on it any more: whoever takes it in stops.
    unwanted: AtomicBool,
    /// Held while everything is taken in.
    pub(crate) adopting: Mutex<{ rank::CONTROL }, ()>,
    /// Held while a directory is taken in.
    taking: Mutex<{ rank::TAKING }, ()>,
    places: Mutex<{ rank::LEAF }, LruCache<Ino, Arc<Place>>>,
}

/// Keeps the named directories of a base open, so that what is mounted over one of them later (the
/// workspace, perhaps) is not in the way. Everybody who looks at a base holds one; with the last they
/// are closed.
pub(crate) struct Held {
    base: Arc<Base>,
    /// Those that were found.
    roots: Mutex<{ rank::LEAF }, HashMap<Ino, Arc<Root>>>,
}

/// How often a directory that was not there is looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

impl Bases {
    /// The bases that the catalog knows.
    pub(crate) fn open(
        catalog: &SharedCatalog,
        own: HashSet<(u64, u64)>,
        boot: String,
    ) -> Result<Self, CatalogError> {
        let bases = Self {
            catalog: catalog.clone(),
            own,
            boot,
            all: RwLock::default(),
            count: AtomicUsize::new(0),
            reported: Mutex::default(),
        };
        for record in catalog.bases()? {
            let exclude = Exclude::parse(&record.exclude, record.public);
            if let Err(error) = &exclude {
                tracing::error!(%error, layer = %record.layer, "a base cannot be taken in further");
            }
            let (boot, patterns) = (&record.boot, &record.exclude);
            bases.put(record.layer, boot, exclude.ok(), patterns, record.state);
        }
        Ok(bases)
    }

    /// The running kernel's boot id.
    pub(crate) fn boot(&self) -> &str {
        &self.boot
    }

    /// Whether a directory of the host is one of the store's.
    pub(crate) fn is_own(&self, dev: u64, inode: u64) -> bool {
        self.own.contains(&(dev, inode))
    }

    /// Knows of a base from now on.
    ///
    /// # Errors
    /// What it leaves out cannot be understood.
    pub(crate) fn add(
        &self,
        layer: LayerId,
        boot: &str,
        exclude: &str,
        public: bool,
        state: BaseState,
    ) -> Result<(), ExcludeError> {
        let parsed = Exclude::parse(exclude, public)?;
        self.put(layer, boot, Some(parsed), exclude, state);
        Ok(())
    }

    fn put(
        &self,
        layer: LayerId,
        boot: &str,
        parsed: Option<Exclude>,
        patterns: &str,
        state: BaseState,
    ) {
        let base = Base {
            layer,
            same_boot: boot == self.boot,
            exclude: parsed,
            patterns: patterns.to_owned(),
            state: Mutex::new(state),
            held: Mutex::default(),
            looked: Mutex::default(),
            unwanted: AtomicBool::new(false),
            adopting: Mutex::default(),
            taking: Mutex::default(),
            places: Mutex::new(LruCache::new(PLACES_MAX)),
        };
        if self.all.write().insert(layer, Arc::new(base)).is_none() {
            self.count.fetch_add(1, Ordering::Release);
        }
    }

    /// The base was not made after all.
    pub(crate) fn forget(&self, layer: LayerId) {
        if self.all.write().remove(&layer).is_some() {
            self.count.fetch_sub(1, Ordering::Release);
        }
    }

    /// Nothing stands on a layer any more. If it is a base, whoever takes it in is told to stop; says
    /// whether nobody does, and it is forgotten then.
    pub(crate) fn retire(&self, layer: LayerId) -> bool {
        let Some(base) = self.get(layer) else {
            return true;
        };
        base.unwanted.store(true, Ordering::Release);
        // Whoever waits for this lock looks whether it is wanted still.
        let alone = base.adopting.try_lock();
        if alone.is_some() {
            self.forget(layer);
        }
        alone.is_some()
    }

    /// The base that a layer is; none if it is an ordinary layer.
    pub(crate) fn get(&self, layer: LayerId) -> Option<Arc<Base>> {
        if self.count.load(Ordering::Acquire) == 0 {
            return None;
        }
        self.all.read().get(&layer).cloned()
    }

    /// As [`Bases::get`], of a layer that the catalog says is one.
    ///
    /// # Errors
    /// [`CatalogError::Damaged`].
    pub(crate) fn known(&self, layer: LayerId) -> Result<Arc<Base>, CatalogError> {
        self.get(layer).ok_or_else(|| CatalogError::Damaged {
            what: format!("layer {layer} is no base"),
        })
    }

    /// Whether a layer is a base over directories of the host.
    pub(crate) fn contains(&self, layer: LayerId) -> bool {
        self.count.load(Ordering::Acquire) > 0 && self.all.read().contains_key(&layer)
    }

    /// Opens the named directories of a base, for as long as the answer is kept. Called without any
    /// lock of the engine: whoever is asked for a directory may be a mount of this very process.
    pub(crate) fn hold(&self, layer: LayerId) -> Result<Option<Arc<Held>>, CatalogError> {
        let Some(base) = self.get(layer).filter(|base| !base.is_adopted()) else {
            return Ok(None);
        };
        let held = {
            let mut known = base.held.lock();
            known.upgrade().unwrap_or_else(|| {
                let held = Arc::new(Held {
                    base: base.clone(),
                    roots: Mutex::default(),
                });
                *known = Arc::downgrade(&held);
                held
            })
        };
        held.open(&self.catalog)?;
        Ok(Some(held))
    }

    /// A named directory. One that is not there is looked for, not more often than now and then and
    /// by another thread: this one may hold locks that its answer waits for.
    fn root(&self, base: &Base, root: Ino) -> Option<Arc<Root>> {
        let held = base.held.lock().upgrade()?;
        let found = held.roots.lock().get(&root).cloned();
        if found.is_some() {
            return found;
        }
        let due = {
            let mut looked = base.looked.lock();
            let due = looked.is_none_or(|last| last.elapsed() >= LOOK_AGAIN);
            if due {
                *looked = Some(Instant::now());
            }
            due
        };
        if due {
            let catalog = self.catalog.clone();
            let look = move || {
                if let Err(error) = held.open(&catalog) {
                    tracing::warn!(%error, "a base directory cannot be looked for");
                }
            };
            let name = "floe-base".to_owned();
            if let Err(error) = std::thread::Builder::new().name(name).spawn(look) {
                tracing::warn!(%error, "a base directory cannot be looked for");
            }
        }
        None
    }

    /// Says how far a base was taken in.
    pub(crate) fn set_state(&self, layer: LayerId, state: BaseState) -> Result<(), CatalogError> {
        let row = Row::SetBaseState { layer, state };
        self.catalog.apply(&Change::from(row))?;
        if let Some(base) = self.get(layer) {
            *base.state.lock() = state;
            if state == BaseState::Adopted {
                base.places.lock().clear();
            }
        }
        Ok(())
    }

    /// Bases that refer to the host in place.
    pub(crate) fn in_place(&self) -> Vec<LayerId> {
        let all: Vec<Arc<Base>> = self.all.read().values().cloned().collect();
        let in_place = all.iter().filter(|base| !base.is_adopted());
        in_place.map(|base| base.layer).collect()
    }

    /// Bases that somebody asked to have taken in, and that are not yet.
    pub(crate) fn unfinished(&self) -> Vec<LayerId> {
        let all: Vec<Arc<Base>> = self.all.read().values().cloned().collect();
        let unfinished = all
            .iter()
            .filter(|base| base.state() == BaseState::Adopting);
        unfinished.map(|base| base.layer).collect()
    }

    /// Takes a directory of the host in, unless that was done before.
    pub(crate) fn take_in(&self, core: &Core, dir: Ino, layer: LayerId) -> Result<(), OpError> {
        let base = self.known(layer)?;
        // Whoever asks for what is there does not wait for what is not.
        if base.is_adopted() || self.host(dir, layer)?.state == HostState::Taken {
            return Ok(());
        }
        if base.exclude.is_none() {
            let what = format!("what base {layer} leaves out cannot be understood");
            return Err(CatalogError::Damaged { what }.into());
        }
        let _taking = base.taking.lock();
        let row = self.host(dir, layer)?;
        match row.state {
            HostState::Taken => Ok(()),
            HostState::InPlace => listing::take_in(self, core, &base, dir, &row),
        }
    }

    /// What an inode of a base stands for.
    fn host(&self, ino: Ino, layer: LayerId) -> Result<crate::change::HostRow, CatalogError> {
        let row = self.catalog.host_at(ino, layer)?;
        row.ok_or_else(|| CatalogError::Damaged {
            what: format!("inode {ino} of base {layer} stands for nothing"),
        })
    }

    /// A file or directory of the host is not what it was. Said once.
    fn report(&self, ino: Ino, layer: LayerId) {
        if !self.reported.lock().insert(ino) {
            return;
        }
        let row = Row::SetHostChanged { ino, layer };
        if let Err(error) = self.catalog.apply(&Change::from(row)) {
            tracing::warn!(%error, %ino, "what changed on the host is not remembered");
            self.reported.lock().remove(&ino);
        }
    }

    /// As [`Bases::report`], unless its contents are in the store by now.
    fn report_if_in_place(&self, ino: Ino, layer: LayerId) {
        match self.host(ino, layer) {
            Ok(row) if row.state == HostState::Taken => {}
            Ok(_) => self.report(ino, layer),
            Err(error) => tracing::warn!(%error, %ino, "a file of the host is not known any more"),
        }
    }

    /// The path on the host of what an inode of a base stands for.
    pub(crate) fn path(&self, ino: Ino, layer: LayerId) -> Result<PathBuf, CatalogError> {
        let base = self.known(layer)?;
        Ok(self.place(&base, ino)?.path())
    }
}

impl Base {
    /// Whether anything may stand on it.
    pub(crate) fn is_wanted(&self) -> bool {
        !self.unwanted.load(Ordering::Acquire)
    }

    /// What is left out.
    pub(crate) fn patterns(&self) -> &str {
        &self.patterns
    }

    /// How far it was taken in.
    pub(crate) fn state(&self) -> BaseState {
        *self.state.lock()
    }

    /// Whether everything is in the store.
    pub(crate) fn is_adopted(&self) -> bool {
        self.state() == BaseState::Adopted
    }
}

impl Held {
    /// Opens those that are not open yet. One that cannot be is tried again another time; what lies
    /// in it cannot be read until then.
    fn open(&self, catalog: &SharedCatalog) -> Result<(), CatalogError> {
        let layer = self.base.layer;
        for (ino, row) in catalog.host_roots(layer)? {
            if self.roots.lock().contains_key(&ino) {
                continue;
            }
            match host::open_root(&row, self.base.same_boot) {
                Ok(root) => {
                    self.roots.lock().insert(ino, Arc::new(root));
                }
                Err(error) => tracing::warn!(%error, %layer, "a base directory cannot be used"),
            }
        }
        Ok(())
    }
}

/// What became of a file of the host, as an error.
fn changed(path: PathBuf) -> ContentsError {
    ContentsError::HostChanged { path }
}
