//! What is left of a store that has lost its catalog: the files of its objects, told and copied without
//! opening it.
//!
//! Nothing in the store is changed, and no symbolic link is followed, neither in it nor where copies go.
//! Where the catalog can still be read it says what the objects were of.

use std::fs::{DirBuilder, DirEntry, File};
use std::io;
use std::ops::ControlFlow;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, Mode, OFlags, openat, statat};
use thiserror::Error;

use super::open::{CATALOG, OpenError, access};
use super::types::rfc3339;
use super::{Store, trust};
use crate::catalog::{Catalog, CatalogError, Peek};
use crate::contents::{ContentsError, CopyError, FileCopy, copy_file};
use crate::core::Core;
use crate::id::{Ino, ObjectId};

/// The file of an object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectFile {
    /// The object. Its file is called that in hexadecimal.
    pub id: ObjectId,
    /// Where it is.
    pub file: PathBuf,
    /// Its size in bytes. The file that it serves may be shorter.
    pub size: u64,
    /// Bytes on the disk.
    pub allocated: u64,
    /// When it was last written, RFC 3339.
    pub modified_at: String,
    /// The inode that it serves, as the catalog says.
    pub ino: Option<Ino>,
    /// Where that was last, in some workspace or snapshot.
    pub path: Option<PathBuf>,
}

/// The files of a store's objects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectFiles {
    /// By number.
    pub objects: Vec<ObjectFile>,
    /// Why the catalog does not say what they are of.
    pub catalog: Option<String>,
}

/// Why objects were not copied.
#[derive(Debug, Error)]
pub enum RescueError {
    /// The store cannot be looked at.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Something is where a copy is to be. Nothing was copied.
    #[error("{path} exists already")]
    Exists {
        /// What.
        path: PathBuf,
    },
    /// A file or directory cannot be used. What was copied before stays.
    #[error("cannot {action} {path}")]
    Access {
        /// What was tried.
        action: &'static str,
        /// On which.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A copy cannot be written.
    #[error(transparent)]
    Contents(ContentsError),
    /// Whoever wanted it does not want it any more.
    #[error("the copy was interrupted")]
    Interrupted,
}

fn failed<E: Into<io::Error>>(action: &'static str, path: &Path) -> impl FnOnce(E) -> RescueError {
    let path = path.to_owned();
    move |source| RescueError::Access {
        action,
        path,
        source: source.into(),
    }
}

impl Store {
    /// The files of a store's objects. Its catalog may be missing or damaged, and the store in use.
    ///
    /// # Errors
    /// [`OpenError::NotFound`] where there are no objects; what cannot be read or believed.
    pub fn object_files(dir: &Path) -> Result<ObjectFiles, OpenError> {
        let dir = trust::own_directory(dir)?;
        let objects_dir = Core::objects_dir(&dir);
        if objects_dir.symlink_metadata().is_err() {
            return Err(OpenError::NotFound { dir });
        }
        trust::check(&dir)?;
        let mut objects = Vec::new();
        for group in entries(&objects_dir)? {
            if !kind(&group)?.is_dir() {
                continue;
            }
            for entry in entries(&group.path())? {
                objects.extend(object_file(&entry)?);
            }
        }
        objects.sort_unstable_by_key(|file| file.id);
        let known = name_files(&dir, &mut objects);
        Ok(ObjectFiles {
            objects,
            catalog: known.err().map(|error| words(&error)),
        })
    }

    /// Copies the files of a store's objects to a directory, each under its number in hexadecimal.
    /// `progress` is told how many were copied, and their bytes, and says whether to go on.
    ///
    /// # Errors
    /// [`RescueError`]; nothing is ever written over.
    pub fn copy_objects(
        objects: &[ObjectFile],
        to: &Path,
        progress: &mut dyn FnMut(u64, u64) -> ControlFlow<()>,
    ) -> Result<(), RescueError> {
        match DirBuilder::new().mode(0o700).create(to) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(failed("make the directory", to))?,
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC;
        let dir = openat(CWD, to, flags, Mode::empty()).map_err(failed("open", to))?;
        for object in objects {
            let path = to.join(name(object.id));
            match statat(&dir, name(object.id), AtFlags::SYMLINK_NOFOLLOW) {
                Err(rustix::io::Errno::NOENT) => {}
                Err(errno) => return Err(failed("look at", &path)(errno)),
                Ok(_) => return Err(RescueError::Exists { path }),
            }
        }
        let (mut buffer, mut copied, mut bytes) = (Vec::new(), 0, 0);
        for object in objects {
            copy_one(object, &dir, to, &mut buffer, &mut || {
                progress(copied, bytes).is_continue()
            })?;
            copied += 1;
            bytes += object.size;
            if progress(copied, bytes).is_break() {
                return Err(RescueError::Interrupted);
            }
        }
        rustix::fs::syncfs(&dir).map_err(failed("sync", to))
    }
}

fn copy_one(
    object: &ObjectFile,
    dir: &OwnedFd,
    to: &Path,
    buffer: &mut Vec<u8>,
    go_on: &mut dyn FnMut() -> bool,
) -> Result<(), RescueError> {
    let source = File::options()
        .read(true)
        .custom_flags(libc::O_NOFOLLOW)
        .open(&object.file)
        .map_err(failed("open", &object.file))?;
    let size = source.metadata().map_err(failed("look at", &object.file))?;
    let path = to.join(name(object.id));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::WRONLY | OFlags::CLOEXEC;
    let target = match openat(dir, name(object.id), flags, Mode::RUSR | Mode::WUSR) {
        Err(rustix::io::Errno::EXIST) => return Err(RescueError::Exists { path }),
        made => File::from(made.map_err(failed("make", &path))?),
    };
    let copy = FileCopy {
        from: &source,
        to: &target,
        object: object.id,
        size: size.len(),
        reflink: true,
    };
    copy_file(&copy, buffer, go_on).map_err(|error| match error {
        CopyError::Source(source) => failed("read", &object.file)(source),
        CopyError::Target(error) => RescueError::Contents(error),
        CopyError::Stopped => RescueError::Interrupted,
    })?;
    // What ends in a hole.
    target
        .set_len(size.len())
        .map_err(failed("write to", &path))
}

fn name(id: ObjectId) -> String {
    format!("{:x}", id.0)
}

/// What a directory holds.
fn entries(dir: &Path) -> Result<Vec<DirEntry>, OpenError> {
    let read = std::fs::read_dir(dir).and_then(Iterator::collect);
    read.map_err(access("read", dir))
}

fn kind(entry: &DirEntry) -> Result<std::fs::FileType, OpenError> {
    entry.file_type().map_err(access("look at", &entry.path()))
}

/// An object's file, if it is one.
fn object_file(entry: &DirEntry) -> Result<Option<ObjectFile>, OpenError> {
    let text = entry.file_name();
    let id = text.to_str().and_then(|text| {
        let id = ObjectId(u64::from_str_radix(text, 16).ok()?);
        (name(id) == text).then_some(id)
    });
    let Some(id) = id.filter(|_| kind(entry).is_ok_and(|kind| kind.is_file())) else {
        return Ok(None);
    };
    let file = entry.path();
    let meta = match file.symlink_metadata() {
        // Removed meanwhile.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        meta => meta.map_err(access("look at", &file))?,
    };
    let modified = meta.mtime().saturating_mul(1_000_000_000);
    Ok(Some(ObjectFile {
        id,
        file,
        size: meta.len(),
        allocated: meta.blocks().saturating_mul(512),
        modified_at: rfc3339(modified.saturating_add(meta.mtime_nsec())),
        ino: None,
        path: None,
    }))
}

/// Adds what the catalog says of objects, as far as it can be read.
fn name_files(dir: &Path, objects: &mut [ObjectFile]) -> Result<(), CatalogError> {
    let path = dir.join(CATALOG);
    // Or SQLite would only say that it cannot open it.
    File::open(&path).map_err(|source| CatalogError::Sync {
        path: path.clone(),
        source,
    })?;
    let peek: Peek = Catalog::peek(&path)?;
    for file in objects {
        file.ino = peek.ino_of(file.id)?;
        if let Some(ino) = file.ino {
            file.path = peek.last_path(ino)?;
        }
    }
    Ok(())
}

/// An error with its causes.
fn words(error: &dyn std::error::Error) -> String {
    let mut words = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        words.push_str(": ");
        words.push_str(&error.to_string());
        cause = error.source();
    }
    words
}
