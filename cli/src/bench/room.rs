//! A temporary directory that goes when its owner goes, also after an error or a panic.
//!
//! Whatever is mounted in it is unmounted by its own guard before. Removal never crosses into
//! another file system, so that a mount that could not be taken away is left alone and reported.

use std::fs::{self, DirBuilder};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

/// The directory. Dropping it removes it with everything in it.
#[derive(Debug)]
pub(super) struct Room {
    path: PathBuf,
}

impl Room {
    /// Makes a directory with a name of its own, private to the owner.
    pub(super) fn new(parent: &Path, name: &str) -> io::Result<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let parent = parent.canonicalize()?;
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = parent.join(format!("{name}-{}-{number}", std::process::id()));
        DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Self { path })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// Makes a directory in it.
    pub(super) fn dir(&self, name: &str) -> io::Result<PathBuf> {
        let path = self.path.join(name);
        fs::create_dir_all(&path)?;
        Ok(path)
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Err(error) = remove(&self.path) {
            complain(&format!("cannot remove {}: {error}", self.path.display()));
        }
    }
}

/// Removes a directory and what is in it, on its own file system only.
pub(super) fn remove(dir: &Path) -> io::Result<()> {
    let device = match fs::symlink_metadata(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        other => other?.dev(),
    };
    remove_below(dir, device)?;
    fs::remove_dir(dir)
}

fn remove_below(dir: &Path, device: u64) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        let meta = fs::symlink_metadata(&path)?;
        if meta.dev() != device {
            let what = format!("something is still mounted on {}", path.display());
            return Err(io::Error::other(what));
        }
        if meta.is_dir() {
            remove_below(&path, device)?;
            fs::remove_dir(&path)?;
        } else {
            fs::remove_file(&path)?;
        }
    }
    Ok(())
}

/// Says on stderr what went wrong while cleaning up, where nobody is left to return it to.
pub(super) fn complain(what: &str) {
    if writeln!(io::stderr().lock(), "warning: {what}").is_err() {
        tracing::warn!(what, "standard error cannot be written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_room_goes_with_everything_in_it() {
        let parent = tempfile::tempdir().unwrap();
        let room = Room::new(parent.path(), "room").unwrap();
        let other = Room::new(parent.path(), "room").unwrap();
        let path = room.path().to_owned();
        assert_ne!(path, other.path());
        fs::create_dir_all(path.join("a/b")).unwrap();
        fs::write(path.join("a/b/file"), "x").unwrap();
        std::os::unix::fs::symlink("/", path.join("a/root")).unwrap();
        drop(room);
        assert!(!path.exists() && other.path().exists());
    }

    #[test]
    fn a_room_that_is_gone_already_is_no_error() {
        let parent = tempfile::tempdir().unwrap();
        assert!(remove(&parent.path().join("nothing")).is_ok());
    }
}
