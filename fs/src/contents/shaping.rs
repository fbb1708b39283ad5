//! What an object's file is: of which objects, with which holes, and whether at all.
//!
//! Objects that are equal can be one file with several names (`hash/`). Invariants:
//! * A file with several names never gets a hole, and is never written to.
//! * No name is put where a file was just removed.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use super::copy::{CopyError, FileCopy, copy_file};
use super::objects::sync_dir;
use super::{ContentsError, Objects};
use crate::fault;
use crate::id::ObjectId;

/// The name that a second link to an object has until it takes another object's place.
const ASIDE: &str = "dedup";

/// Two objects that are being compared, to become one file.
#[derive(Debug, Default)]
pub(super) struct Compared {
    objects: Option<[ObjectId; 2]>,
    /// One of them got a hole meanwhile.
    punched: bool,
}

/// A file, as told by device and inode.
pub(crate) type FileId = (u64, u64);

/// What became of making two objects one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Joined {
    /// They are one file.
    Yes,
    /// One of them is not what was compared, or not there any more.
    Changed,
    /// The file has as many names as it can have.
    Full,
    /// The disk gives no file a second name.
    Unsupported,
}

/// What became of a hole that was to be made in an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Punched {
    /// It is there.
    Yes,
    /// Others are the same file, and need it whole.
    Refused,
    /// The object has no file.
    Gone,
}

impl Objects {
    /// Removes an object's file; one that is gone already is fine.
    pub(crate) fn remove(&self, id: ObjectId) -> Result<(), ContentsError> {
        let path = self.path(id);
        // Its bytes go with the last descriptor. A large file takes long to go, and that is not to be
        // while others wait for the lock.
        let kept = File::open(&path);
        self.close(id);
        let alone = self.shaping.lock();
        let removed = std::fs::remove_file(path);
        drop(alone);
        drop(kept);
        match removed {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(ContentsError::object("remove", id)(error))
            }
            _ => Ok(()),
        }
    }

    /// Says that two objects are compared from now on, to be [joined](Objects::join) if they are equal.
    pub(crate) fn comparing(&self, objects: [ObjectId; 2]) {
        *self.shaping.lock() = Compared {
            objects: Some(objects),
            punched: false,
        };
    }

    /// Makes the file of one object that of another as well, which it takes the place of. Both were
    /// found to be equal since [`Objects::comparing`], as these files, the first is durable, and
    /// neither is a live layer's: what is written to one would be in both.
    ///
    /// Nobody writes to an object of a layer that is not live. Descriptors to write through may still
    /// be in the cache from when it was, but whoever uses them is a mutation, which holds the gate from
    /// before it knows its layer until it is done; a freeze waits for those and lets no more in.
    pub(crate) fn join(
        &self,
        [kept, replaced]: [ObjectId; 2],
        files: [FileId; 2],
    ) -> Result<Joined, ContentsError> {
        let paths = [kept, replaced].map(|id| self.path(id));
        let [from, to] = &paths;
        let aside = to.with_file_name(ASIDE);
        let compared = self.shaping.lock();
        let same = paths.iter().zip(files).all(|(path, file)| {
            std::fs::symlink_metadata(path).is_ok_and(|meta| file_id(&meta) == file)
        });
        if compared.punched || compared.objects != Some([kept, replaced]) || !same {
            return Ok(Joined::Changed);
        }
        fault::step();
        let linked = match std::fs::hard_link(from, &aside) {
            // Left by one that failed.
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                std::fs::remove_file(&aside).and_then(|()| std::fs::hard_link(from, &aside))
            }
            linked => linked,
        };
        match linked {
            Err(error) if error.kind() == io::ErrorKind::TooManyLinks => return Ok(Joined::Full),
            Err(error) if has_no_links(&error) => return Ok(Joined::Unsupported),
            linked => linked.map_err(ContentsError::object("link", kept))?,
        }
        fault::step();
        if let Err(error) = std::fs::rename(&aside, to) {
            if let Err(error) = std::fs::remove_file(&aside) {
                tracing::warn!(%error, "a link that is of no use stays on disk");
            }
            return Err(ContentsError::object("replace", replaced)(error));
        }
        fault::step();
        drop(compared);
        // Whoever reads it on holds the space of the file that it was.
        self.replaced(replaced);
        Ok(Joined::Yes)
    }

    /// Makes a hole in an object, unless its file is that of others as well.
    pub(crate) fn punch(
        &self,
        id: ObjectId,
        make: impl FnOnce(&File) -> Result<(), ContentsError>,
    ) -> Result<Punched, ContentsError> {
        let mut compared = self.shaping.lock();
        // Not through the cache: what that has may be the file that the object was once.
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .open(self.path(id));
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Punched::Gone),
            opened => opened.map_err(ContentsError::object("open", id))?,
        };
        let links = file.metadata().map(|meta| meta.nlink());
        if links.map_err(ContentsError::object("look at", id))? > 1 {
            return Ok(Punched::Refused);
        }
        compared.punched |= compared.objects.is_some_and(|two| two.contains(&id));
        make(&file).map(|()| Punched::Yes)
    }

    /// Gives an object of the live layer a file of its own, if its file is that of others as well.
    ///
    /// That happens only if the catalog is older than `objects/`, as when it was put back from a copy:
    /// objects are joined when they are frozen, and that is durable. What is written to this one would
    /// be in the others.
    pub(super) fn apart(&self, id: ObjectId) -> Result<(), ContentsError> {
        let path = self.path(id);
        let shared = |meta: &std::fs::Metadata| meta.nlink() > 1;
        // Whoever uses the object finds out what is wrong.
        if !std::fs::symlink_metadata(&path).is_ok_and(|meta| shared(&meta)) {
            return Ok(());
        }
        let alone = self.shaping.lock();
        let from = File::open(&path).map_err(ContentsError::object("open", id))?;
        let meta = from.metadata();
        let meta = meta.map_err(ContentsError::object("look at", id))?;
        if !shared(&meta) {
            return Ok(());
        }
        tracing::warn!(
            object = id.0,
            "an object that is written to was the same file as others: it gets one of its own"
        );
        let aside = path.with_file_name(ASIDE);
        let copied = self.copy_aside(id, &from, meta.len(), &aside);
        let renamed = copied.and_then(|()| {
            std::fs::rename(&aside, &path).map_err(ContentsError::object("replace", id))
        });
        if renamed.is_err()
            && let Err(error) = std::fs::remove_file(&aside)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(%error, "a copy that is of no use stays on disk");
        }
        renamed?;
        sync_dir(path.parent().unwrap_or(&self.dir)).map_err(ContentsError::object("sync", id))?;
        drop(alone);
        self.replaced(id);
        Ok(())
    }

    /// Copies an object, durably: its bytes may have been.
    fn copy_aside(
        &self,
        id: ObjectId,
        from: &File,
        size: u64,
        aside: &Path,
    ) -> Result<(), ContentsError> {
        let mut options = OpenOptions::new();
        // One that a failed join left may have other names.
        match std::fs::remove_file(aside) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                return Err(ContentsError::object("replace", id)(error));
            }
            _ => {}
        }
        let to = options.write(true).create_new(true).mode(0o600).open(aside);
        let to = to.map_err(ContentsError::object("create", id))?;
        let copy = FileCopy {
            from,
            to: &to,
            object: id,
            size,
            reflink: self.can_reflink(),
        };
        match copy_file(&copy, &mut Vec::new(), &mut || true) {
            Ok(()) => {}
            Err(CopyError::Source(error)) => return Err(ContentsError::object("read", id)(error)),
            Err(CopyError::Target(error)) => return Err(error),
            Err(CopyError::Stopped) => {
                let stopped = io::Error::from(io::ErrorKind::Interrupted);
                return Err(ContentsError::object("copy", id)(stopped));
            }
        }
        to.set_len(size)
            .and_then(|()| to.sync_all())
            .map_err(ContentsError::object("sync", id))
    }

    /// Makes an object's bytes durable, where `file` is it. A failure is told to whoever syncs its
    /// file next as well.
    pub(crate) fn sync_bytes(&self, id: ObjectId, file: &File) -> Result<(), ContentsError> {
        file.sync_data().map_err(|error| {
            self.dirty.lock().failed(id);
            ContentsError::object("sync", id)(error)
        })
    }

    /// Whether a file in `objects/` was there for a [`Objects::join`] that was under way, and not left
    /// by one that did not come to its end.
    pub(crate) fn is_passing(&self, path: &Path) -> bool {
        let _alone = self.shaping.lock();
        path.file_name().is_some_and(|name| name == ASIDE) && !path.exists()
    }

    /// Removes what a crash left of a [`Objects::join`].
    pub(crate) fn remove_aside(&self) -> Result<(), ContentsError> {
        let failed = |source| ContentsError::Directory {
            action: "clean",
            source,
        };
        for group in std::fs::read_dir(&self.dir).map_err(failed)? {
            match std::fs::remove_file(group.map_err(failed)?.path().join(ASIDE)) {
                Err(error)
                    if !matches!(
                        error.kind(),
                        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
                    ) =>
                {
                    return Err(failed(error));
                }
                _ => {}
            }
        }
        Ok(())
    }
}

/// Bytes that a file takes on the disk.
pub(crate) fn allocated(meta: &std::fs::Metadata) -> u64 {
    meta.blocks().saturating_mul(512)
}

/// Which file it is.
pub(crate) fn file_id(meta: &std::fs::Metadata) -> FileId {
    (meta.dev(), meta.ino())
}

/// Whether an error says that the disk has no second names for files.
fn has_no_links(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = Errno::from_io_error(error);
    errno.is_some_and(|errno| [Errno::PERM, Errno::OPNOTSUPP, Errno::XDEV].contains(&errno))
}
