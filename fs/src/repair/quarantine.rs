//! The directory for what is taken out of a store and not removed: files that belong to nothing, and
//! copies of the catalog before it was repaired. Nothing in it is ever read or removed by Floe.

use std::fs::{DirBuilder, File, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, RenameFlags, renameat_with};
use thiserror::Error;

use crate::catalog::{Catalog, CatalogError};
use crate::core::Core;
use crate::engine::now_ns;
use crate::id::ObjectId;

/// Its name in a store.
const NAME: &str = "quarantine";
/// Names that are tried for one file.
const NAMES: u32 = 1000;

/// Why something could not be kept. It stays where it was.
#[derive(Debug, Error)]
pub enum QuarantineError {
    /// The directory, or a file, cannot be used.
    #[error("cannot {action} {path}")]
    Access {
        /// What was tried.
        action: &'static str,
        /// On which file.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The catalog cannot be copied.
    #[error("cannot keep a copy of the catalog in {path}")]
    Catalog {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: CatalogError,
    },
}

fn access<E: Into<io::Error>>(
    action: &'static str,
    path: &Path,
) -> impl FnOnce(E) -> QuarantineError {
    let path = path.to_owned();
    move |source| QuarantineError::Access {
        action,
        path,
        source: source.into(),
    }
}

/// The quarantine of a store, made when it is needed.
#[derive(Debug)]
pub(super) struct Quarantine {
    dir: PathBuf,
    copy: Option<PathBuf>,
    moved: bool,
}

impl Quarantine {
    pub(super) fn new(store: &Path) -> Self {
        Self {
            dir: store.join(NAME),
            copy: None,
            moved: false,
        }
    }

    /// The copy of the catalog, if one was made.
    pub(super) fn catalog_copy(&self) -> Option<&PathBuf> {
        self.copy.as_ref()
    }

    fn make(&self) -> Result<(), QuarantineError> {
        let made = DirBuilder::new().mode(0o700).create(&self.dir);
        match made {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            made => made.map_err(access("make the directory", &self.dir))?,
        }
        let meta = self.dir.symlink_metadata();
        let meta = meta.map_err(access("look at", &self.dir))?;
        if !meta.is_dir() {
            let error = io::Error::from(io::ErrorKind::NotADirectory);
            return Err(access("use", &self.dir)(error));
        }
        Ok(())
    }

    /// Keeps a copy of the catalog, once.
    pub(super) fn keep_catalog(&mut self, catalog: &Catalog) -> Result<(), QuarantineError> {
        if self.copy.is_some() {
            return Ok(());
        }
        self.make()?;
        let name = format!("catalog-{}.db", now_ns());
        let path = self.dir.join(&name);
        let dir = File::open(&self.dir).map_err(access("open", &self.dir))?;
        // SQLite takes names of text only, and the store may be called anything.
        let through = PathBuf::from(format!("/proc/self/fd/{}/{name}", dir.as_raw_fd()));
        let copied = catalog.copy_to(&through);
        copied.map_err(|source| QuarantineError::Catalog {
            path: path.clone(),
            source,
        })?;
        let file = File::open(&path).map_err(access("open", &path))?;
        file.set_permissions(Permissions::from_mode(0o600))
            .and_then(|()| file.sync_all())
            .and_then(|()| dir.sync_all())
            .map_err(access("sync", &path))?;
        self.copy = Some(path);
        Ok(())
    }

    /// Takes the file of an object away; false if there is none.
    pub(super) fn take_object(
        &mut self,
        core: &Core,
        object: ObjectId,
    ) -> Result<bool, QuarantineError> {
        self.make()?;
        core.objects.close(object);
        let from = core.objects.path(object);
        for number in 0..NAMES {
            let name = match number {
                0 => format!("{:x}", object.0),
                number => format!("{:x}.{number}", object.0),
            };
            let to = self.dir.join(name);
            match renameat_with(CWD, &from, CWD, &to, RenameFlags::NOREPLACE) {
                Ok(()) => {
                    self.moved = true;
                    return Ok(true);
                }
                Err(rustix::io::Errno::EXIST) => {}
                Err(rustix::io::Errno::NOENT) => return Ok(false),
                Err(errno) => return Err(access("move away", &from)(errno)),
            }
        }
        Err(access("move away", &from)(rustix::io::Errno::EXIST))
    }

    /// Makes durable that what was taken is here.
    pub(super) fn sync(&mut self, core: &Core) -> Result<(), QuarantineError> {
        if std::mem::take(&mut self.moved) {
            // What lies in the directories of objects as well.
            let dir = File::open(&self.dir).map_err(access("open", &self.dir))?;
            rustix::fs::syncfs(&dir).map_err(access("sync", &core.dir))?;
        }
        Ok(())
    }
}
