//! Reading files of the host, as long as they are what they were.

use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};

use rustix::fs::OFlags;

use super::host::Devices;
use super::{Bases, changed, host, host_inode};
use crate::catalog::CatalogError;
use crate::change::{HostState, Seen};
use crate::contents::{ContentsError, Guarded, HostObjects, StillTheSame};
use crate::id::{Ino, LayerId, ObjectId};

/// What a file of the host was when it was seen.
struct Guard {
    bases: Weak<Bases>,
    ino: Ino,
    layer: LayerId,
    seen: Seen,
    devices: Devices,
    path: PathBuf,
}

impl StillTheSame for Guard {
    fn check(&self, file: &File) -> Result<(), ContentsError> {
        let stat = host::look(file.as_fd(), Path::new(""))
            .map_err(ContentsError::host("look at", &self.path))?;
        if self.seen.is_unchanged(&host::seen(&stat), self.devices) {
            return Ok(());
        }
        if let Some(bases) = self.bases.upgrade() {
            bases.report_if_in_place(self.ino, self.layer);
        }
        Err(changed(self.path.clone()))
    }
}

/// Gives the objects directory what is not in it. Weak: the catalog, which bases hold, holds the
/// objects itself.
pub(crate) struct HostFiles(pub(crate) Weak<Bases>);

impl HostObjects for HostFiles {
    fn open(&self, object: ObjectId) -> Result<Option<Guarded>, ContentsError> {
        match host_inode(object).zip(self.0.upgrade()) {
            Some((ino, bases)) => bases.open_file(ino),
            None => Ok(None),
        }
    }
}

impl Bases {
    /// Opens the file of the host that an inode stands for; none if its contents are in the store.
    fn open_file(self: &Arc<Self>, ino: Ino) -> Result<Option<Guarded>, ContentsError> {
        let rows = self.catalog.host(ino)?;
        let Some((layer, row)) = rows.into_iter().next() else {
            return Err(CatalogError::Damaged {
                what: format!("inode {ino} stands for nothing on the host"),
            }
            .into());
        };
        if row.state == HostState::Taken {
            return Ok(None);
        }
        let base = self.known(layer)?;
        let parent = self.place_of_dir(&base, row.parent)?;
        let place = parent.below(row.name.clone());
        // Not for reading yet: what is there now may be a device, or a FIFO that nobody writes to.
        let opened = self.open_place(&base, &place, OFlags::PATH);
        let (found, devices) = match opened {
            Err(error @ ContentsError::HostChanged { .. }) => {
                self.report(ino, layer);
                return Err(error);
            }
            other => other?,
        };
        let guard = Guard {
            bases: Arc::downgrade(self),
            ino,
            layer,
            seen: row.seen,
            devices,
            path: place.path(),
        };
        let found = File::from(found);
        guard.check(&found)?;
        let file = host::reopen(found.as_fd(), OFlags::RDONLY)
            .map_err(ContentsError::host("open", &guard.path))?;
        Ok(Some(Guarded {
            file: Arc::new(File::from(file)),
            guard: Some(Arc::new(guard)),
        }))
    }
}
