//! Everything that is mounted, by what it shows.
//!
//! A *slot* belongs to one workspace or snapshot and holds its open view, the session that serves
//! it, and the directories it is on. The first directory starts a session (one superblock); each
//! further one is a bind mount of it, so that locks and page cache stay one. A workspace can have a second
//! session, only to look at, beside it or beside a virtual machine. Invariants:
//! * a directory is in the catalog's record of mounts and either in `Slot::places` or among
//!   `unrestored`, or it is in none of them;
//! * a slot has one session to work in at most: a view's references belong to one kernel connection, so a
//!   session that was unmounted lazily and is still used stands in the way of a new one;
//! * a view is open as long as its slot has a session.
//!
//! Locks, in order: `slots` (short, never while the kernel works) or `reserved` (likewise); then
//! one slot's `state`; then its `places`; then `unrestored`. A directory is reserved before a slot's
//! state is locked, never after, and made, mounted on and removed only while it is reserved.
//! Callbacks of a session only send on a channel.

mod dir;
mod held;
mod lent;
mod place;
mod recover;
mod session;
mod slot;
mod watch;

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use floe_fs::dispatch::fuser::IdShift;
use floe_fs::{MountRecord, MountTarget, SnapshotInfo, Store, WorkspaceInfo};
use parking_lot::{Condvar, Mutex};
use tracing::{info, warn};

use crate::daemon::guard::Told;
use crate::error::{ApiError, ErrorKind};
pub(crate) use lent::Lent;
pub(crate) use recover::{Cleaned, Unrestored, clean};
use slot::{Key, Place, Slot};
use watch::Event;

/// What can be mounted.
#[derive(Clone, Debug)]
pub(crate) enum Subject {
    /// A workspace, to work in.
    Workspace(WorkspaceInfo),
    /// A workspace, only to look at, whoever works in it.
    Onlooker(WorkspaceInfo),
    /// A snapshot, to look at.
    Snapshot(SnapshotInfo),
    /// A workspace, for a sandbox, that has other users than the host, or while it is filled. The mount goes
    /// with the daemon, and a later one does not make it again.
    Sandbox(WorkspaceInfo, Option<IdShift>),
}

impl Subject {
    pub(in crate::daemon) fn target(&self) -> MountTarget {
        match self {
            Self::Workspace(info) | Self::Sandbox(info, _) | Self::Onlooker(info) => {
                MountTarget::Workspace(info.id)
            }
            Self::Snapshot(info) => MountTarget::Snapshot(info.id.clone()),
        }
    }

    /// The workspace's name or the snapshot's id.
    fn label(&self) -> &str {
        match self {
            Self::Workspace(info) | Self::Sandbox(info, _) | Self::Onlooker(info) => &info.name,
            Self::Snapshot(info) => info.id.as_str(),
        }
    }

    /// Whether a later daemon mounts it again.
    fn is_lasting(&self) -> bool {
        !matches!(self, Self::Sandbox(..))
    }

    /// How its users are shown.
    fn id_shift(&self) -> Option<IdShift> {
        match self {
            Self::Workspace(_) | Self::Onlooker(_) | Self::Snapshot(_) => None,
            Self::Sandbox(_, shift) => *shift,
        }
    }

    /// Whether set-id bits and device nodes in it may be honoured, if no sandbox could write to it. Whoever
    /// is root in a sandbox is nobody on the host, but what they leave behind is root's.
    fn may_be_trusted(&self) -> bool {
        !matches!(self, Self::Sandbox(..) | Self::Onlooker(_))
    }

    /// Whether it is only to look at what others change.
    fn is_onlooker(&self) -> bool {
        matches!(self, Self::Onlooker(_))
    }

    /// A name for a directory of its own inside the store; number 1 is the usual one, others are
    /// for when it is taken. '@' is in no workspace's name.
    fn directory_name(&self, number: u32) -> String {
        let name = match self {
            Self::Workspace(info) | Self::Sandbox(info, _) => info.name.clone(),
            Self::Onlooker(info) => format!("{}@ro", info.name),
            Self::Snapshot(info) => format!("@{}", info.id),
        };
        match number {
            1 => name,
            number => format!("{name}@{number}"),
        }
    }
}

/// The mounts of one store.
pub(crate) struct Mounts {
    store: Arc<Store>,
    /// Whom to tell of every session.
    guard: Arc<Told>,
    slots: Mutex<HashMap<Key, Arc<Slot>>>,
    /// Directories that some request is mounting on at this moment.
    reserved: Mutex<HashSet<PathBuf>>,
    released: Condvar,
    /// What a killed daemon had mounted and this one could not mount again.
    unrestored: Mutex<Vec<Unrestored>>,
    events: Sender<Event>,
    next_session: AtomicU64,
    ending: AtomicBool,
}

impl Mounts {
    /// An empty registry and the threads that watch what happens to its mounts.
    pub(crate) fn start(store: Arc<Store>, guard: Arc<Told>) -> Result<Arc<Self>, ApiError> {
        let (events, received) = std::sync::mpsc::channel();
        let mounts = Arc::new(Self {
            store,
            guard,
            slots: Mutex::default(),
            reserved: Mutex::default(),
            released: Condvar::new(),
            unrestored: Mutex::default(),
            events: events.clone(),
            next_session: AtomicU64::new(1),
            ending: AtomicBool::new(false),
        });
        watch::start(Arc::downgrade(&mounts), events, received)?;
        Ok(mounts)
    }

    /// Mounts a subject on a directory, which is made if missing; without one, on its own place
    /// inside the store. Doing it again changes nothing. Returns the directory.
    pub(crate) fn mount(&self, subject: &Subject, dir: Option<&Path>) -> Result<PathBuf, ApiError> {
        if self.ending.load(Ordering::Acquire) {
            return Err(ApiError::new(
                ErrorKind::DaemonUnreachable,
                "the daemon is stopping",
            ));
        }
        match dir {
            Some(dir) => {
                let path = dir::resolve(dir, self.store.dir())?;
                let reserved = self.reserve(&path);
                self.mount_on(subject, &reserved)
            }
            None => self.mount_in_own_place(subject),
        }
    }

    /// Mounts on a directory that is reserved for it, and returns the directory.
    fn mount_on(&self, subject: &Subject, on: &Reservation<'_>) -> Result<PathBuf, ApiError> {
        self.clear_dead(&on.dir)?;
        let prepared = dir::prepare(&on.dir, self.store.dir())?;
        let slot = self.slot(subject.target());
        let result = slot.mount(self, subject, &on.dir);
        if result.is_err() {
            prepared.undo();
            self.prune(&slot);
        }
        result.map(|()| on.dir.clone())
    }

    /// Unmounts every directory of a workspace or snapshot, by any path, and gives up those that
    /// could not be restored. Returns them.
    pub(crate) fn umount(
        &self,
        target: &MountTarget,
        lazy: bool,
    ) -> Result<Vec<PathBuf>, ApiError> {
        self.umount_some(target, true, lazy)
    }

    /// The same of those that somebody may work in: whoever only looks at it stays, and so does the record of
    /// their mount.
    pub(crate) fn umount_working(
        &self,
        target: &MountTarget,
        lazy: bool,
    ) -> Result<Vec<PathBuf>, ApiError> {
        self.umount_some(target, false, lazy)
    }

    fn umount_some(
        &self,
        target: &MountTarget,
        looking: bool,
        lazy: bool,
    ) -> Result<Vec<PathBuf>, ApiError> {
        let given_up =
            self.give_up(&|record| record.target == *target && (looking || !record.read_only))?;
        let Some(slot) = self.slots.lock().get(&Key::from(target)).cloned() else {
            return Ok(given_up);
        };
        let freed = slot.umount_all(self, looking, lazy);
        self.prune(&slot);
        freed.map(|freed| [given_up, freed].concat())
    }

    /// Unmounts one directory; `None` if nothing of this store is mounted there.
    pub(crate) fn umount_dir(&self, dir: &Path, lazy: bool) -> Result<Option<PathBuf>, ApiError> {
        // A directory of a dead file system cannot be resolved, only compared.
        let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
        let Some(slot) = self.slot_at(&dir) else {
            return Ok(self.give_up(&|record| record.dir == dir)?.pop());
        };
        slot.umount(self, &dir, lazy)?;
        self.prune(&slot);
        Ok(Some(dir))
    }

    /// The directories that a workspace or snapshot is mounted on.
    pub(crate) fn dirs(&self, target: &MountTarget) -> Vec<PathBuf> {
        let slots = self.slots.lock();
        slots
            .get(&Key::from(target))
            .map(|slot| slot.dirs())
            .unwrap_or_default()
    }

    /// What is mounted inside a workspace's or snapshot's mounts, by whomever; the deepest last.
    pub(crate) fn inside(&self, target: &MountTarget) -> Result<Vec<PathBuf>, ApiError> {
        let slot = self.slots.lock().get(&Key::from(target)).cloned();
        slot.map_or_else(|| Ok(Vec::new()), |slot| slot.mounted_inside())
    }

    /// Everything mounted, by directory.
    pub(crate) fn all(&self) -> Vec<MountRecord> {
        let mut all = Vec::new();
        for slot in self.every_slot() {
            let places = slot.places().into_iter();
            all.extend(places.map(|place| place.record(&slot.target)));
        }
        all.sort_by(|a, b| a.dir.cmp(&b.dir));
        all
    }

    /// Unmounts everything for good: what is in use is detached and ends with its users.
    pub(crate) fn end(&self) {
        self.ending.store(true, Ordering::Release);
        // In this order a mount inside another goes before it.
        for MountRecord { dir, target, .. } in self.all().into_iter().rev() {
            let slot = self.slot(target);
            let Err(error) = slot.umount(self, &dir, false) else {
                continue;
            };
            warn!(dir = %dir.display(), error = error.error, causes = ?error.causes,
                "cannot unmount cleanly, detaching");
            if let Err(error) = slot.umount(self, &dir, true) {
                warn!(dir = %dir.display(), error = error.error, causes = ?error.causes,
                    "cannot detach");
            }
        }
    }

    fn slot(&self, target: MountTarget) -> Arc<Slot> {
        let mut slots = self.slots.lock();
        let slot = slots
            .entry(Key::from(&target))
            .or_insert_with(|| Arc::new(Slot::new(target)));
        Arc::clone(slot)
    }

    fn every_slot(&self) -> Vec<Arc<Slot>> {
        self.slots.lock().values().cloned().collect()
    }

    fn slot_at(&self, dir: &Path) -> Option<Arc<Slot>> {
        self.every_slot().into_iter().find(|slot| slot.is_on(dir))
    }

    /// Forgets a slot that holds nothing and that nobody else is about to use.
    fn prune(&self, slot: &Arc<Slot>) {
        let mut slots = self.slots.lock();
        // One reference in the map, one with the caller: nobody else can have it.
        if Arc::strong_count(slot) == 2 && slot.is_empty() {
            slots.remove(&Key::from(&slot.target));
        }
    }

    fn record(&self, target: &MountTarget, place: &Place) {
        let record = place.record(target);
        if let Err(error) = self.store.record_mount(&record) {
            warn!(dir = %record.dir.display(), %error, "a killed daemon would not restore this mount");
        }
        self.unrestored
            .lock()
            .retain(|unrestored| unrestored.record.dir != record.dir);
    }

    fn forget(&self, target: &MountTarget, dir: &Path) {
        let record = MountRecord {
            target: target.clone(),
            dir: dir.to_owned(),
            read_only: false,
        };
        if let Err(error) = self.store.forget_mount(&record) {
            warn!(dir = %dir.display(), %error, "a killed daemon would restore this mount");
        }
        info!(dir = %dir.display(), "unmounted");
    }

    /// Waits until no other request mounts on the directory, and keeps others waiting.
    fn reserve(&self, dir: &Path) -> Reservation<'_> {
        let mut reserved = self.reserved.lock();
        while !reserved.insert(dir.to_owned()) {
            self.released.wait(&mut reserved);
        }
        Reservation {
            mounts: self,
            dir: dir.to_owned(),
        }
    }
}

/// A directory that only the holder may mount on.
struct Reservation<'a> {
    mounts: &'a Mounts,
    dir: PathBuf,
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.mounts.reserved.lock().remove(&self.dir);
        self.mounts.released.notify_all();
    }
}
