//! What landings took away, in the store: `landings/<id>/<part>-<name>`.

use std::collections::HashMap;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, linkat, renameat, statat, unlinkat};
use rustix::io::Errno;

use super::HostLandError;
use super::stage::copy;
use crate::core::Core;
use crate::fault;

/// Where what landings took away is.
pub(super) fn all(core: &Core) -> PathBuf {
    core.dir.join("landings")
}

/// Its name in the store of something that was staged.
pub(super) fn name(part: usize, staged: &str) -> String {
    format!("{part}-{staged}")
}

/// The directory of one landing.
pub(super) struct Kept {
    dir: File,
    /// Files that were copied, by their inode on the host: those with several names keep them.
    copied: HashMap<u64, String>,
}

impl Kept {
    /// Opens it, and makes it if need be.
    pub(super) fn open(core: &Core, id: u64) -> Result<Self, HostLandError> {
        let path = all(core).join(id.to_string());
        let made = DirBuilder::new().recursive(true).mode(0o700).create(&path);
        let dir = made
            .and_then(|()| File::open(&core.dir)?.sync_all())
            .and_then(|()| File::open(all(core))?.sync_all())
            .and_then(|()| File::open(&path));
        Ok(Self {
            dir: dir.map_err(|source| HostLandError::Kept { id, source })?,
            copied: HashMap::new(),
        })
    }

    /// Takes something over from a staging directory, if it is there still.
    pub(super) fn take(&mut self, staging: &OwnedFd, staged: &str, name: &str) -> io::Result<()> {
        match renameat(staging, staged, &self.dir, name) {
            Err(Errno::XDEV) => self.copy(staging, staged, name)?,
            // It was taken over before a crash.
            Err(Errno::NOENT) => {}
            renamed => renamed?,
        }
        fault::step();
        Ok(())
    }

    fn copy(&mut self, staging: &OwnedFd, staged: &str, name: &str) -> io::Result<()> {
        let stat = statat(staging, staged, AtFlags::SYMLINK_NOFOLLOW)?;
        let dir = OwnedFd::from(self.dir.try_clone()?);
        let part = format!("{name}.part");
        match unlinkat(&dir, part.as_str(), AtFlags::empty()) {
            Err(Errno::ISDIR) => unlinkat(&dir, part.as_str(), AtFlags::REMOVEDIR)?,
            Err(Errno::NOENT) => {}
            other => other?,
        }
        match self.copied.get(&stat.st_ino) {
            Some(other) => linkat(&dir, other.as_str(), &dir, part.as_str(), AtFlags::empty())?,
            None => copy(staging, staged.as_bytes(), &dir, part.as_bytes())?,
        }
        fault::step();
        renameat(&dir, part.as_str(), &dir, name)?;
        self.copied.insert(stat.st_ino, name.to_owned());
        Ok(())
    }

    /// Makes durable what was taken over. What was copied is still where it was as well.
    pub(super) fn sync(&self) -> io::Result<()> {
        if self.copied.is_empty() {
            self.dir.sync_all()
        } else {
            Ok(rustix::fs::syncfs(&self.dir)?)
        }
    }
}

/// Removes what a landing took away.
pub(super) fn forget(core: &Core, id: u64) {
    remove(&all(core).join(id.to_string()));
}

fn remove(path: &Path) {
    match std::fs::remove_dir_all(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "what a landing took away stays");
        }
        _ => {}
    }
}

/// Removes what belongs to no landing that could be undone.
pub(super) fn sweep(core: &Core, known: &[u64]) -> io::Result<()> {
    let entries = match std::fs::read_dir(all(core)) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        let id = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        if !id.is_some_and(|id| known.contains(&id)) {
            remove(&entry.path());
        }
    }
    Ok(())
}
