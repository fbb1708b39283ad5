//! Where on the host an inode of a base is: below which of the named directories, by which names.

use std::ffi::OsStr;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use rustix::fs::OFlags;

use super::host::Devices;
use super::{Base, Bases, changed, host};
use crate::catalog::CatalogError;
use crate::change::Name;
use crate::contents::ContentsError;
use crate::id::Ino;

/// A place on the host.
#[derive(Clone, Debug)]
pub(super) struct Place {
    /// The named directory.
    root: Ino,
    /// Its absolute path.
    root_path: Name,
    /// Names from there.
    names: Vec<Name>,
}

impl Place {
    /// The absolute path.
    pub(super) fn path(&self) -> PathBuf {
        let mut path = PathBuf::from(OsStr::from_bytes(&self.root_path));
        path.extend(self.names.iter().map(|name| OsStr::from_bytes(name)));
        path
    }

    /// The place of a name in a directory that is here.
    pub(super) fn below(&self, name: Name) -> Self {
        let mut place = self.clone();
        place.names.push(name);
        place
    }

    /// Names from the named directory, joined.
    pub(super) fn below_root(&self) -> PathBuf {
        let names = self.names.iter().map(|name| OsStr::from_bytes(name));
        names.collect()
    }

    /// The named directory it is below.
    pub(super) fn root(&self) -> Ino {
        self.root
    }
}

impl Bases {
    /// Where an inode of a base is.
    pub(super) fn place(&self, base: &Base, ino: Ino) -> Result<Arc<Place>, CatalogError> {
        let mut names = Vec::new();
        let mut at = ino;
        let above = loop {
            if let Some(place) = base.places.lock().get(&at) {
                break place.clone();
            }
            let row = self.host(at, base.layer)?;
            if row.parent == Ino(0) {
                break Arc::new(Place {
                    root: at,
                    root_path: row.name,
                    names: Vec::new(),
                });
            }
            names.push(row.name);
            if row.parent == at || names.len() > 1 << 20 {
                return Err(CatalogError::Damaged {
                    what: format!("inode {ino} of base {} lies in itself", base.layer),
                });
            }
            at = row.parent;
        };
        if names.is_empty() {
            return Ok(above);
        }
        let mut place = Place::clone(&above);
        place.names.extend(names.into_iter().rev());
        Ok(Arc::new(place))
    }

    /// As [`Bases::place`], of a directory: remembered.
    pub(super) fn place_of_dir(&self, base: &Base, dir: Ino) -> Result<Arc<Place>, CatalogError> {
        if let Some(place) = base.places.lock().get(&dir) {
            return Ok(place.clone());
        }
        let place = self.place(base, dir)?;
        base.places.lock().put(dir, place.clone());
        Ok(place)
    }

    /// Opens what an inode of a base stands for, going through no link and no mount.
    pub(super) fn open_place(
        &self,
        base: &Base,
        place: &Place,
        flags: OFlags,
    ) -> Result<(OwnedFd, Devices), ContentsError> {
        let Some(root) = self.root(base, place.root) else {
            return Err(ContentsError::HostMissing {
                dir: PathBuf::from(OsStr::from_bytes(&place.root_path)),
            });
        };
        match host::open_beneath(root.fd.as_fd(), &place.names, flags) {
            Ok(file) => Ok((file, root.devices)),
            Err(errno) if host::says_changed(errno) => Err(changed(place.path())),
            Err(errno) => Err(ContentsError::host("open", &place.path())(errno)),
        }
    }
}
