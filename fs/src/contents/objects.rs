//! Object files and the descriptors open on them.

use std::fs::{DirBuilder, File, OpenOptions};
use std::io;
use std::num::NonZeroUsize;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use lru::LruCache;

use super::ContentsError;
use super::damaged::Damaged;
use super::dirty::Dirty;
use super::shaping::Compared;
use crate::fault;
use crate::id::{Ino, ObjectId};
use crate::lock::{Mutex, rank};
use crate::private::open_private;

/// Objects in one directory: directories stay small enough to be read at once.
pub(crate) const FAN_OUT: u64 = 4096;
/// Past this many objects the whole disk is synced at once.
const SYNC_ONE_BY_ONE: usize = 64;
/// Descriptors kept open.
const OPEN_MAX: NonZeroUsize = NonZeroUsize::new(512).unwrap();

/// An object open for reading.
#[derive(Clone)]
pub(crate) struct Guarded {
    pub(crate) file: Arc<File>,
    /// Of a file that is not ours: what tells whether it is still what it was.
    pub(crate) guard: Option<Arc<dyn StillTheSame>>,
}

impl Guarded {
    /// Says whether what was read through it before counts.
    ///
    /// # Errors
    /// The file is not ours, and was changed.
    pub(crate) fn check(&self) -> Result<(), ContentsError> {
        self.guard
            .as_ref()
            .map_or(Ok(()), |guard| guard.check(&self.file))
    }
}

/// Tells whether a file that is not ours is what it was.
pub(crate) trait StillTheSame: Send + Sync {
    /// Called after each use.
    fn check(&self, file: &File) -> Result<(), ContentsError>;
}

/// Where objects come from that are not in `objects/`.
pub(crate) trait HostObjects: Send + Sync {
    /// The object to read; none if it is in `objects/`.
    fn open(&self, object: ObjectId) -> Result<Option<Guarded>, ContentsError>;
}

/// The `objects/` directory of a store.
pub(crate) struct Objects {
    pub(super) dir: PathBuf,
    reflink: bool,
    /// Keyed with "writable", so that a reader can never hand a writable descriptor on.
    open: Mutex<{ rank::LEAF }, LruCache<(ObjectId, bool), Guarded>>,
    host: OnceLock<Box<dyn HostObjects>>,
    /// How often an object got another file. Who opened one before does not keep it.
    reopened: AtomicU64,
    pub(super) dirty: Mutex<{ rank::LEAF }, Dirty>,
    /// Held while an object gets a name of another's file, loses its file, or gets a hole: so a file
    /// with several names never gets one, and no name is put where a file was just removed.
    pub(super) shaping: Mutex<{ rank::LEAF }, Compared>,
    damaged: Damaged,
}

impl Objects {
    /// Takes the directory, which must exist, and finds out whether its disk can share extents.
    pub(crate) fn open(dir: &Path) -> Result<Self, ContentsError> {
        std::fs::read_dir(dir).map_err(|source| ContentsError::Directory {
            action: "read",
            source,
        })?;
        Ok(Self {
            dir: dir.to_owned(),
            reflink: probe_reflink(dir),
            open: Mutex::new(LruCache::new(OPEN_MAX)),
            host: OnceLock::new(),
            reopened: AtomicU64::new(0),
            dirty: Mutex::default(),
            shaping: Mutex::default(),
            damaged: Damaged::default(),
        })
    }

    /// Whether the disk can clone a file without copying it.
    pub(crate) fn can_reflink(&self) -> bool {
        self.reflink
    }

    /// Blocks whose bytes are not to be believed.
    pub(crate) fn damaged(&self) -> &Damaged {
        &self.damaged
    }

    /// Where an object is.
    pub(crate) fn path(&self, id: ObjectId) -> PathBuf {
        self.dir
            .join(format!("{:x}", id.0 / FAN_OUT))
            .join(format!("{:x}", id.0))
    }

    /// Makes an empty object. Its id must be new.
    pub(crate) fn create(&self, id: ObjectId) -> Result<Arc<File>, ContentsError> {
        let path = self.path(id);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        fault::write().map_err(ContentsError::object("create", id))?;
        let file = match options.open(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let parent = path.parent().unwrap_or(&self.dir);
                DirBuilder::new()
                    .mode(0o700)
                    .recursive(true)
                    .create(parent)
                    .and_then(|()| sync_dir(&self.dir))
                    .and_then(|()| options.open(&path))
            }
            other => other,
        }
        .map_err(ContentsError::object("create", id))?;
        let file = Arc::new(file);
        let opened = Guarded {
            file: file.clone(),
            guard: None,
        };
        // Nobody knows of it who could have replaced it.
        self.open.lock().put((id, true), opened);
        Ok(file)
    }

    /// Says where objects come from that are not in the directory.
    pub(crate) fn serve_host(&self, host: Box<dyn HostObjects>) {
        if self.host.set(host).is_err() {
            tracing::error!("objects of the host come from two places");
        }
    }

    /// An object to read. What was read counts once [`Guarded::check`] says so.
    pub(crate) fn read(&self, id: ObjectId) -> Result<Guarded, ContentsError> {
        self.cached(id, false)
    }

    /// Reads something of an object. `act` may be called twice: a file of the host can be taken in,
    /// and then go, while it is read.
    pub(crate) fn read_with<T>(
        &self,
        id: ObjectId,
        mut act: impl FnMut(&File) -> Result<T, ContentsError>,
    ) -> Result<T, ContentsError> {
        let mut once = |opened: &Guarded| {
            let done = act(&opened.file)?;
            opened.check().map(|()| done)
        };
        match once(&self.read(id)?) {
            Err(ContentsError::HostChanged { .. }) => {
                self.reopen(id);
                once(&self.read(id)?)
            }
            done => done,
        }
    }

    /// The live layer's object, to write. If its file is that of others as well, it gets one of its own
    /// first: see [`Objects::apart`].
    pub(crate) fn write(&self, id: ObjectId) -> Result<Arc<File>, ContentsError> {
        self.cached(id, true).map(|opened| opened.file)
    }

    /// Keeps a descriptor that was opened when objects had got another file so often; none if one did
    /// meanwhile, and it may be that of another file than the object's.
    fn keep(&self, id: ObjectId, writable: bool, opened: Guarded, before: u64) -> Option<Guarded> {
        let mut open = self.open.lock();
        if self.reopened.load(Ordering::Acquire) != before {
            return None;
        }
        open.put((id, writable), opened.clone());
        Some(opened)
    }

    /// Closes an object that is read through a descriptor of ours: the next who reads it opens it
    /// anew.
    pub(crate) fn reopen(&self, id: ObjectId) {
        self.reopened.fetch_add(1, Ordering::AcqRel);
        self.open.lock().pop(&(id, false));
    }

    /// Closes what is not ours, so that it does not keep a disk of the host in use.
    pub(crate) fn close_guarded(&self) {
        let mut open = self.open.lock();
        let guarded = open.iter().filter(|(_, opened)| opened.guard.is_some());
        let guarded: Vec<_> = guarded.map(|(key, _)| *key).collect();
        for key in guarded {
            open.pop(&key);
        }
    }

    fn cached(&self, id: ObjectId, writable: bool) -> Result<Guarded, ContentsError> {
        if let Some(opened) = self.open.lock().get(&(id, writable)) {
            return Ok(opened.clone());
        }
        loop {
            let before = self.reopened.load(Ordering::Acquire);
            let opened = match self.host.get().filter(|_| !writable) {
                Some(host) => host.open(id)?,
                None => None,
            };
            let opened = match opened {
                Some(opened) => opened,
                None => Guarded {
                    file: Arc::new(self.open_own(id, writable)?),
                    guard: None,
                },
            };
            // Or one that was taken in or replaced meanwhile would be read where it was for ever.
            if let Some(kept) = self.keep(id, writable, opened, before) {
                return Ok(kept);
            }
        }
    }

    fn open_own(&self, id: ObjectId, writable: bool) -> Result<File, ContentsError> {
        if writable {
            self.apart(id)?;
        }
        OpenOptions::new()
            .read(true)
            .write(writable)
            .open(self.path(id))
            .map_err(ContentsError::object("open", id))
    }

    /// Closes an object, however it is open, that has another file from now on.
    pub(super) fn replaced(&self, id: ObjectId) {
        self.reopened.fetch_add(1, Ordering::AcqRel);
        self.close(id);
    }

    /// Closes an object, however it is open: its file goes.
    pub(crate) fn close(&self, id: ObjectId) {
        let mut open = self.open.lock();
        open.pop(&(id, false));
        open.pop(&(id, true));
    }

    /// The objects that have a file. Looks at all of them.
    pub(crate) fn on_disk(&self) -> Result<Vec<ObjectId>, ContentsError> {
        let failed = |source| ContentsError::Directory {
            action: "read",
            source,
        };
        let mut found = Vec::new();
        for group in std::fs::read_dir(&self.dir).map_err(failed)? {
            let group = group.map_err(failed)?;
            if !group.file_type().map_err(failed)?.is_dir() {
                continue;
            }
            for file in std::fs::read_dir(group.path()).map_err(failed)? {
                let name = file.map_err(failed)?.file_name();
                let id = name
                    .to_str()
                    .and_then(|name| u64::from_str_radix(name, 16).ok());
                // Anything else is not ours to touch; a check reports it.
                found.extend(id.map(ObjectId).filter(|&id| {
                    self.path(id).file_name() == Some(&*name)
                        && self.path(id).parent() == Some(&*group.path())
                }));
            }
        }
        Ok(found)
    }

    /// Remembers that an object was written. What is only about to be written has to be marked
    /// again afterwards, or a sync in between forgets it.
    pub(crate) fn mark_dirty(&self, ino: Ino, id: ObjectId) {
        self.dirty.lock().mark(ino, id);
    }

    /// Remembers that an object holds bytes older than itself, which may have been durable where
    /// they were: it must be durable before a change is that refers to it.
    pub(crate) fn mark_inherited(&self, id: ObjectId) {
        self.dirty.lock().inherit(id);
    }

    /// Makes every object durable that holds bytes older than itself. Many at once where that is
    /// quicker, unless somebody waits for it to end.
    pub(crate) fn sync_inherited(&self, at_once: bool) -> Result<(), ContentsError> {
        let objects = self.dirty.lock().inherited();
        if objects.len() > SYNC_ONE_BY_ONE && at_once {
            return self.sync_all();
        }
        for &(id, _) in &objects {
            if let Err(error) = self.sync(id) {
                // The system tells of it once. Whoever syncs the file next has to hear it as well.
                self.dirty.lock().failed(id);
                return Err(error);
            }
        }
        self.dirty.lock().inherited_synced(&objects);
        Ok(())
    }

    /// An object of a file was given up: nothing is left to sync.
    pub(crate) fn forget(&self, ino: Ino, gone: ObjectId) {
        self.dirty.lock().forget(ino, gone);
    }

    /// Makes a file's bytes and the names of its objects durable.
    pub(crate) fn sync_file(&self, ino: Ino) -> Result<(), ContentsError> {
        let (objects, failed) = self.dirty.lock().of(ino);
        for &(id, _) in &objects {
            self.sync(id)?;
        }
        if let Some(id) = failed {
            return Err(ContentsError::object("sync", id)(rustix::io::Errno::IO));
        }
        self.dirty.lock().synced(ino, &objects);
        Ok(())
    }

    fn sync(&self, id: ObjectId) -> Result<(), ContentsError> {
        // Whatever reads it may read it from elsewhere still.
        let open = self.open.lock().get(&(id, true)).cloned();
        let opened = open.map_or_else(|| File::open(self.path(id)).map(Arc::new), |o| Ok(o.file));
        let file = match opened {
            // Reclaimed meanwhile: nothing is left to lose.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            other => other.map_err(ContentsError::object("open", id))?,
        };
        let synced = file.sync_all();
        synced.map_err(ContentsError::object("sync", id))?;
        let path = self.path(id);
        sync_dir(path.parent().unwrap_or(&self.dir)).map_err(ContentsError::object("sync", id))
    }

    /// Makes every object durable.
    pub(crate) fn sync_all(&self) -> Result<(), ContentsError> {
        let (marks, failed) = {
            let mut dirty = self.dirty.lock();
            (dirty.now(), dirty.any_failed())
        };
        File::open(&self.dir)
            .and_then(|dir| rustix::fs::syncfs(&dir).map_err(io::Error::from))
            .map_err(|source| ContentsError::Directory {
                action: "sync",
                source,
            })?;
        if let Some(id) = failed {
            return Err(ContentsError::object("sync", id)(rustix::io::Errno::IO));
        }
        self.dirty.lock().clean(marks);
        Ok(())
    }
}

pub(super) fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Finds out whether one file can be cloned onto another, by trying. Where even that cannot be
/// tried, as on a full disk, contents are copied: a store must open there, if only to remove files.
fn probe_reflink(dir: &Path) -> bool {
    let names = [".reflink-from", ".reflink-to"].map(|name| dir.join(name));
    let tried = try_to_clone(&names[0], &names[1]);
    let mut removed = Ok(());
    for name in &names {
        match std::fs::remove_file(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => removed = Err(error),
            _ => {}
        }
    }
    match tried.and_then(|cloned| removed.map(|()| cloned)) {
        Ok(cloned) => cloned,
        Err(error) => {
            tracing::warn!(%error, "cannot find out whether the disk shares extents");
            false
        }
    }
}

fn try_to_clone(from: &Path, to: &Path) -> io::Result<bool> {
    let (from, to) = (open_private(from)?, open_private(to)?);
    std::io::Write::write_all(&mut &from, &[1; 4096])?;
    Ok(rustix::fs::ioctl_ficlone(&to, &from).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A store on a full disk once could not be opened, and its probe stayed behind.
    #[test]
    fn a_probe_that_fails_means_no_reflink_and_leaves_nothing() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path();
        std::fs::create_dir(dir.join(".reflink-to")).unwrap();
        let objects = Objects::open(dir).unwrap();
        assert!(!objects.can_reflink());
        assert!(!dir.join(".reflink-from").exists());
        std::fs::remove_dir(dir.join(".reflink-to")).unwrap();
        probe_reflink(dir);
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0);
        assert!(Objects::open(&dir.join("missing")).is_err());
    }
}
