//! Directories to mount on: made when missing, refused where a mount would hide the store.
//!
//! Invariant: nothing is made before it is clear where the mount goes and that it may go there, and
//! what was made for a mount that then failed is removed again.

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Component, Path, PathBuf};

use tracing::warn;

use crate::error::{ApiError, ErrorKind, shell_word};

/// How often making a directory is tried while others remove its parents.
const MAKE_TRIES: usize = 5;

/// A directory that can be mounted on.
pub(super) struct Prepared {
    /// What was made for it, parents first.
    made: Vec<PathBuf>,
}

impl Prepared {
    /// Removes what was made for a mount that then failed.
    pub(super) fn undo(&self) {
        remove(&self.made);
    }
}

/// Where a directory is, or will be once it is made: its path without symbolic links. Changes
/// nothing; refuses places that would hide the store.
pub(super) fn resolve(dir: &Path, store: &Path) -> Result<PathBuf, ApiError> {
    if !dir.is_absolute() {
        let what = format!("'{}' is not an absolute path", dir.display());
        return Err(ApiError::new(ErrorKind::Usage, what));
    }
    let path = canonical(dir).map_err(|error| unusable(dir, &error))?;
    let store = store
        .canonicalize()
        .map_err(|error| unusable(dir, &error))?;
    let own_place = path
        .parent()
        .is_some_and(|parent| parent == store.join("mnt"));
    if store.starts_with(&path) || (path.starts_with(&store) && !own_place) {
        return Err(ApiError::new(
            ErrorKind::Usage,
            format!(
                "a mount on '{}' would hide the store '{}'",
                path.display(),
                store.display()
            ),
        ));
    }
    Ok(path)
}

/// The nearest ancestor that exists, resolved, and the rest of the path below it.
fn canonical(dir: &Path) -> io::Result<PathBuf> {
    match dir.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound || is_disconnected(&error) => {
            // A dead mount is resolved by its parent, too: it is no symbolic link.
            match (dir.parent(), dir.components().next_back()) {
                (Some(parent), Some(Component::Normal(name))) => Ok(canonical(parent)?.join(name)),
                // What is not there has no parent that `..` could mean.
                _ => Err(error),
            }
        }
        other => other,
    }
}

/// Makes a resolved directory if it is missing. The caller has reserved it. Inside the store it
/// is private to the owner.
pub(super) fn prepare(path: &Path, store: &Path) -> Result<Prepared, ApiError> {
    let mode = if path.starts_with(store) {
        0o700
    } else {
        0o777
    };
    let made = make(path, mode).map_err(|error| unusable(path, &error))?;
    let checked = fs::metadata(path).and_then(|meta| {
        let wrong = io::Error::from(io::ErrorKind::NotADirectory);
        meta.is_dir().then_some(()).ok_or(wrong)
    });
    match checked {
        Ok(()) => Ok(Prepared { made }),
        Err(error) => {
            remove(&made);
            Err(unusable(path, &error))
        }
    }
}

/// Makes a directory and its missing parents; returns those that were made.
fn make(path: &Path, mode: u32) -> io::Result<Vec<PathBuf>> {
    let mut tries = 0;
    loop {
        tries += 1;
        let mut made = Vec::new();
        match make_missing(path, mode, &mut made) {
            Ok(()) => return Ok(made),
            Err(error) => {
                remove(&made);
                // Somebody else gave up a mount below the same new parent at this moment.
                if error.kind() != io::ErrorKind::NotFound || tries == MAKE_TRIES {
                    return Err(error);
                }
            }
        }
    }
}

fn make_missing(path: &Path, mode: u32, made: &mut Vec<PathBuf>) -> io::Result<()> {
    let is_missing = |dir: &&Path| {
        fs::symlink_metadata(dir).is_err_and(|error| error.kind() == io::ErrorKind::NotFound)
    };
    let missing: Vec<&Path> = path.ancestors().take_while(is_missing).collect();
    for dir in missing.into_iter().rev() {
        match DirBuilder::new().mode(mode).create(dir) {
            Ok(()) => made.push(dir.to_owned()),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn remove(made: &[PathBuf]) {
    for dir in made.iter().rev() {
        match fs::remove_dir(dir) {
            // Another mount has been made below it meanwhile.
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => return,
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                warn!(dir = %dir.display(), %error, "cannot remove an unused mount point");
            }
            _ => {}
        }
    }
}

fn unusable(dir: &Path, error: &io::Error) -> ApiError {
    let what = format!("cannot use '{}' as a mount point", dir.display());
    let made = ApiError::new(ErrorKind::Failed, what).caused_by(error);
    if is_disconnected(error) {
        made.hint(detach_hint(dir))
    } else {
        made
    }
}

/// How to get a dead mount that is not this store's out of the way.
pub(super) fn detach_hint(dir: &Path) -> String {
    let dead = shell_word(&dir.to_string_lossy());
    format!("a dead mount of another program is there; detach it: `umount -l {dead}`")
}

/// ENOTCONN: a FUSE file system whose server is gone.
fn is_disconnected(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error())
}

/// Removes a mount point inside the store that is free again.
pub(super) fn remove_own_place(dir: &Path) {
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            warn!(dir = %dir.display(), %error, "cannot remove a mount point of the store");
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_are_made_with_their_parents_and_removed_with_them() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        let store = root.join("store");
        fs::create_dir_all(store.join("run")).unwrap();

        let deep = resolve(&root.join("new/deep"), &store).unwrap();
        assert!(!root.join("new").exists());
        let made = prepare(&deep, &store).unwrap();
        assert!(deep.is_dir());
        made.undo();
        // Once only the last directory was removed.
        assert!(!root.join("new").exists());

        // What somebody else needs meanwhile stays.
        let made = prepare(&deep, &store).unwrap();
        fs::create_dir(root.join("new/other")).unwrap();
        made.undo();
        assert!(root.join("new/other").exists() && !deep.exists());

        let own = resolve(&store.join("mnt/w"), &store).unwrap();
        assert_eq!(prepare(&own, &store).unwrap().made.len(), 2);
        fs::write(root.join("file"), "").unwrap();
        for file in ["file", "file/below"] {
            let refused = resolve(&root.join(file), &store).and_then(|path| prepare(&path, &store));
            assert_eq!(refused.err().unwrap().kind, ErrorKind::Failed, "{file}");
        }
    }

    #[test]
    fn what_is_not_there_yet_is_resolved_by_its_nearest_ancestor() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        let store = root.join("store");
        fs::create_dir_all(root.join("real")).unwrap();
        fs::create_dir(&store).unwrap();
        std::os::unix::fs::symlink(root.join("real"), root.join("link")).unwrap();
        let resolved = |dir: &str| resolve(&root.join(dir), &store);
        assert_eq!(resolved("link/a/b").unwrap(), root.join("real/a/b"));
        assert_eq!(resolved("link/../c").unwrap(), root.join("c"));
        assert!(resolved("none/../c").is_err());
    }

    #[test]
    fn places_that_hide_the_store_are_refused_and_nothing_is_made() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        let store = root.join("store");
        fs::create_dir_all(store.join("run")).unwrap();
        for hiding in [
            store.clone(),
            store.join("run"),
            store.join("mnt"),
            store.join("foo/bar"),
            root.clone(),
        ] {
            let refused = resolve(&hiding, &store).unwrap_err();
            assert_eq!(refused.kind, ErrorKind::Usage, "{}", hiding.display());
        }
        assert!(!store.join("foo").exists());
        let relative = resolve(Path::new("relative"), &store).unwrap_err();
        assert_eq!(relative.kind, ErrorKind::Usage);
    }
}
