//! Taking a directory in: `floe ws create W --from DIR --copy`.
//!
//! Everything is reached relative to open directories and without following symbolic links, so
//! that somebody who changes the tree meanwhile cannot lead the import out of it.

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::ops::ControlFlow;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{AtFlags, Dir, Mode, OFlags, Stat, StatVfsMountFlags, openat, readlinkat, statat};
use thiserror::Error;

use super::builder::{BuildError, Builder, NewContents, NewFile, Xattr};
use super::open::PARTS;
use super::types::{ImportProgress, ImportReport};
use super::{Store, WorkspaceError, WorkspaceInfo};
use crate::attr::FileKind;
use crate::base;
use crate::catalog::CatalogError;
use crate::id::{Ino, WorkspaceName};

/// Why an import failed. No workspace was made.
#[derive(Debug, Error)]
pub enum ImportError {
    /// The workspace cannot be made.
    #[error(transparent)]
    Workspace(#[from] WorkspaceError),
    /// The source is no directory, or cannot be opened.
    #[error("cannot import {dir}")]
    Directory {
        /// The source.
        dir: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The store lies in the source.
    #[error("{dir} contains the store {store}, which cannot be imported into itself")]
    StoreInside {
        /// The source.
        dir: PathBuf,
        /// The store.
        store: PathBuf,
    },
    /// A file could not be read.
    #[error("cannot {action} {path}")]
    Entry {
        /// What was tried.
        action: &'static str,
        /// Which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// A file could not be taken in.
    #[error("cannot import {path}")]
    Build {
        /// Which file.
        path: PathBuf,
        /// Why.
        #[source]
        source: BuildError,
    },
    /// Whoever wanted it does not want it any more.
    #[error("the import of {dir} was interrupted")]
    Interrupted {
        /// The source.
        dir: PathBuf,
    },
    /// The catalog failed.
    #[error(transparent)]
    Catalog(#[from] CatalogError),
}

impl Store {
    /// Makes a workspace with a copy of a directory: hard links, holes, extended attributes, ACLs,
    /// devices and odd names kept. `progress` is told after each file and once before the end, and
    /// says whether to go on.
    ///
    /// # Errors
    /// [`ImportError`] names the first file that cannot be taken in.
    pub fn import_workspace(
        &self,
        name: &WorkspaceName,
        dir: &Path,
        progress: &mut dyn FnMut(&ImportProgress) -> ControlFlow<()>,
    ) -> Result<(WorkspaceInfo, ImportReport), ImportError> {
        let started = Instant::now();
        let failed = |source: io::Error| ImportError::Directory {
            dir: dir.to_owned(),
            source,
        };
        let real = dir.canonicalize().map_err(failed)?;
        if self.dir().starts_with(&real) {
            let store = self.dir().to_owned();
            return Err(ImportError::StoreInside { dir: real, store });
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let root =
            rustix::fs::open(&real, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        let mut own = HashSet::new();
        for part in [""].into_iter().chain(PARTS) {
            let stat = rustix::fs::stat(self.dir().join(part));
            let stat = stat.map_err(|errno| failed(errno.into()))?;
            own.insert((stat.st_dev, stat.st_ino));
        }
        let mut builder = self.build_workspace(name)?;
        let mut import = Import {
            links: HashMap::new(),
            report: ImportReport::default(),
            progress,
            path: real.clone(),
            dir: real,
            store: self.dir().to_owned(),
            own,
            devices: HashSet::new(),
            distrusted: false,
        };
        // Asked once more: after this the workspace is there, whoever wants it.
        let done = import
            .tree(&mut builder, root)
            .and_then(|()| import.go_on());
        match done {
            Ok(()) => {
                if import.distrusted {
                    builder.distrust();
                }
                let info = builder.finish()?;
                import.report.elapsed_us =
                    u64::try_from(started.elapsed().as_micros()).unwrap_or(u64::MAX);
                Ok((info, import.report))
            }
            Err(error) => {
                if let Err(error) = builder.abandon() {
                    tracing::warn!(%error, "a failed import is given up when the store opens next");
                }
                Err(error)
            }
        }
    }
}

/// A directory being read: the names in it still to do.
struct Frame {
    fd: OwnedFd,
    ino: Ino,
    names: Vec<Vec<u8>>,
}

struct Import<'a> {
    /// Files with several names: device and inode to the number they have here.
    links: HashMap<(u64, u64), Ino>,
    report: ImportReport,
    progress: &'a mut dyn FnMut(&ImportProgress) -> ControlFlow<()>,
    /// The source.
    dir: PathBuf,
    /// Where the walk is, for errors.
    path: PathBuf,
    /// The store, and the device and inode of its directories: a mount can show them at any place.
    store: PathBuf,
    own: HashSet<(u64, u64)>,
    /// The file systems that were walked over.
    devices: HashSet<u64>,
    /// Whether one of them is a mount of Floe's of what a sandbox could write to, or may be.
    distrusted: bool,
}

impl Import<'_> {
    /// Walks the tree depth first. One descriptor a level is open.
    fn tree(&mut self, builder: &mut Builder<'_>, root: OwnedFd) -> Result<(), ImportError> {
        let stat = rustix::fs::fstat(&root).map_err(self.entry("stat"))?;
        self.not_of_the_store((stat.st_dev, stat.st_ino))?;
        self.note_device(&root, stat.st_dev)?;
        let file = self.new_file(&stat, FileKind::Directory, root.as_fd(), None)?;
        builder.root(&file).map_err(self.build())?;
        self.report.directories += 1;
        let names = self.names(&root)?;
        let mut stack = vec![Frame {
            fd: root,
            ino: Ino::ROOT,
            names,
        }];
        while let Some(frame) = stack.last_mut() {
            let Some(name) = frame.names.pop() else {
                stack.pop();
                self.path.pop();
                continue;
            };
            self.path.push(OsStr::from_bytes(&name));
            match self.one(builder, frame.fd.as_fd(), frame.ino, &name)? {
                Some(child) => stack.push(child),
                None => {
                    self.path.pop();
                }
            }
            self.go_on()?;
        }
        Ok(())
    }

    /// Notes where a directory is. What a mount of this kind shows may have been made by whoever is root
    /// in a sandbox, or by any other user who mounted it.
    fn note_device(&mut self, dir: &OwnedFd, device: u64) -> Result<(), ImportError> {
        if self.distrusted || !self.devices.insert(device) {
            return Ok(());
        }
        let kind = rustix::fs::fstatfs(dir).map_err(self.entry("look at the file system of"))?;
        let options = rustix::fs::fstatvfs(dir).map_err(self.entry("look at the mount of"))?;
        let nosuid = options.f_flag.contains(StatVfsMountFlags::NOSUID);
        self.distrusted = kind.f_type == libc::FUSE_SUPER_MAGIC && nosuid;
        Ok(())
    }

    fn not_of_the_store(&self, key: (u64, u64)) -> Result<(), ImportError> {
        if self.own.contains(&key) {
            return Err(ImportError::StoreInside {
                dir: self.dir.clone(),
                store: self.store.clone(),
            });
        }
        Ok(())
    }

    /// Says how far it is; an error if that is far enough.
    fn go_on(&mut self) -> Result<(), ImportError> {
        let report = &self.report;
        let so_far = ImportProgress {
            files: report.files + report.directories + report.symlinks + report.special,
            bytes: report.bytes,
        };
        match (self.progress)(&so_far) {
            ControlFlow::Continue(()) => Ok(()),
            ControlFlow::Break(()) => Err(ImportError::Interrupted {
                dir: self.dir.clone(),
            }),
        }
    }

    /// Takes one name in; a directory comes back as the next frame.
    fn one(
        &mut self,
        builder: &mut Builder<'_>,
        at: BorrowedFd<'_>,
        parent: Ino,
        name: &[u8],
    ) -> Result<Option<Frame>, ImportError> {
        let stat = statat(at, name, AtFlags::SYMLINK_NOFOLLOW).map_err(self.entry("stat"))?;
        let kind = FileKind::from_mode(stat.st_mode)
            .ok_or_else(|| self.entry("import the unknown kind of")(rustix::io::Errno::INVAL))?;
        let key = (stat.st_dev, stat.st_ino);
        self.not_of_the_store(key)?;
        let linked = kind != FileKind::Directory && stat.st_nlink > 1;
        if linked && let Some(&ino) = self.links.get(&key) {
            builder.link(parent, name, ino).map_err(self.build())?;
            self.report.hard_links += 1;
            return Ok(None);
        }
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let mut next = None;
        let (ino, size) = match kind {
            FileKind::Directory => {
                let flags = flags | OFlags::DIRECTORY;
                let fd = openat(at, name, flags, Mode::empty()).map_err(self.entry("open"))?;
                self.note_device(&fd, stat.st_dev)?;
                let file = self.new_file(&stat, kind, fd.as_fd(), None)?;
                let added = builder.add(parent, name, &file, NewContents::Hole(0));
                let (ino, _) = added.map_err(self.build())?;
                let names = self.names(&fd)?;
                next = Some(Frame { fd, ino, names });
                self.report.directories += 1;
                (ino, 0)
            }
            FileKind::File => {
                let fd = openat(at, name, flags, Mode::empty()).map_err(self.entry("open"))?;
                // What was opened may be another file than the one looked at.
                let stat = rustix::fs::fstat(&fd).map_err(self.entry("stat"))?;
                if FileKind::from_mode(stat.st_mode) != Some(kind) {
                    return Err(self.entry("import the changing")(rustix::io::Errno::STALE));
                }
                let file = self.new_file(&stat, kind, fd.as_fd(), None)?;
                let source = File::from(fd);
                self.report.files += 1;
                builder
                    .add(parent, name, &file, NewContents::File(&source))
                    .map_err(self.build())?
            }
            FileKind::Symlink => {
                let target = readlinkat(at, name, Vec::new()).map_err(self.entry("read"))?;
                let file = self.new_file(&stat, kind, at, Some(name))?;
                self.report.symlinks += 1;
                let contents = NewContents::Bytes(target.as_bytes());
                let (ino, _) = builder
                    .add(parent, name, &file, contents)
                    .map_err(self.build())?;
                (ino, 0)
            }
            _ => {
                let file = self.new_file(&stat, kind, at, Some(name))?;
                self.report.special += 1;
                let added = builder.add(parent, name, &file, NewContents::Hole(0));
                (added.map_err(self.build())?.0, 0)
            }
        };
        self.report.bytes += size;
        if linked {
            self.links.insert(key, ino);
        }
        Ok(next)
    }

    fn names(&self, fd: &OwnedFd) -> Result<Vec<Vec<u8>>, ImportError> {
        let mut names = Vec::new();
        for entry in Dir::read_from(fd).map_err(self.entry("list"))? {
            let entry = entry.map_err(self.entry("list"))?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                names.push(name.to_vec());
            }
        }
        Ok(names)
    }

    fn new_file(
        &self,
        stat: &Stat,
        kind: FileKind,
        fd: BorrowedFd<'_>,
        name: Option<&[u8]>,
    ) -> Result<NewFile, ImportError> {
        let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        Ok(NewFile {
            kind,
            perm: u16::try_from(stat.st_mode & 0o7777).unwrap_or(0),
            uid: stat.st_uid,
            gid: stat.st_gid,
            rdev: if device {
                base::kernel_device(stat.st_rdev)
            } else {
                0
            },
            atime: base::time(stat.st_atime, stat.st_atime_nsec),
            mtime: base::time(stat.st_mtime, stat.st_mtime_nsec),
            xattrs: self.xattrs(fd, name)?,
        })
    }

    /// Extended attributes of an open file, or of a name that cannot be opened (a link, a device).
    fn xattrs(&self, fd: BorrowedFd<'_>, name: Option<&[u8]>) -> Result<Vec<Xattr>, ImportError> {
        base::xattrs(fd, name, false).map_err(self.entry("read the attributes of"))
    }

    fn entry(&self, action: &'static str) -> impl FnOnce(rustix::io::Errno) -> ImportError + use<> {
        let path = self.path.clone();
        move |errno| ImportError::Entry {
            action,
            path,
            source: errno.into(),
        }
    }

    fn build(&self) -> impl FnOnce(BuildError) -> ImportError + use<> {
        let path = self.path.clone();
        move |source| ImportError::Build { path, source }
    }
}
