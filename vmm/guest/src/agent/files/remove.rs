//! Removing trees.
//!
//! The walk goes by descriptors and never through a link, so nobody who changes the tree meanwhile can
//! lead it elsewhere. It holds one descriptor a level, so there is a limit of levels.

use std::ffi::CString;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::Path;

use floe_guest::message::{Failure, FailureKind};
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;

use crate::agent::failure::{failed, failure};

/// Deepest tree that is removed.
const MAX_DEPTH: usize = 256;

struct Level {
    fd: OwnedFd,
    /// Its name in the level above.
    name: CString,
    /// What is left to remove in it.
    names: Vec<CString>,
}

/// Removes a file or link, or a directory with all in it.
pub fn remove(path: &Path) -> Result<(), Failure> {
    let cannot = |error: std::io::Error| failed(&format!("remove '{}'", path.display()), error);
    if !fs::symlink_metadata(path).map_err(cannot)?.is_dir() {
        return fs::remove_file(path).map_err(cannot);
    }
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let top = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| cannot(error.into()))?;
    empty(top, path)?;
    fs::remove_dir(path).map_err(cannot)
}

fn empty(top: OwnedFd, path: &Path) -> Result<(), Failure> {
    let cannot = |error: Errno| failed(&format!("remove what is in '{}'", path.display()), error);
    let names = names(&top).map_err(cannot)?;
    let mut levels = vec![Level {
        fd: top,
        name: CString::default(),
        names,
    }];
    while let Some(level) = levels.last_mut() {
        let Some(name) = level.names.pop() else {
            let done = levels.pop();
            if let (Some(done), Some(above)) = (done, levels.last()) {
                match rustix::fs::unlinkat(&above.fd, &done.name, AtFlags::REMOVEDIR) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    Err(error) => return Err(cannot(error)),
                }
            }
            continue;
        };
        match rustix::fs::unlinkat(&level.fd, &name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => continue,
            // Linux says EISDIR of a directory; POSIX says EPERM.
            Err(Errno::ISDIR | Errno::PERM) => {}
            Err(error) => return Err(cannot(error)),
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fd = rustix::fs::openat(&level.fd, &name, flags, Mode::empty()).map_err(cannot)?;
        if levels.len() >= MAX_DEPTH {
            return Err(failure(
                FailureKind::Exhausted,
                format!(
                    "'{}' is deeper than {MAX_DEPTH} levels; what was found before is removed",
                    path.display()
                ),
            ));
        }
        let names = self::names(&fd).map_err(cannot)?;
        levels.push(Level { fd, name, names });
    }
    Ok(())
}

fn names(dir: &OwnedFd) -> Result<Vec<CString>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let name = entry?.file_name().to_owned();
        if !matches!(name.as_bytes(), b"." | b"..") {
            names.push(name);
        }
    }
    Ok(names)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_goes_and_what_links_in_it_lead_to_stays() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("t");
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        fs::write(tree.join("a/b/f"), "x").unwrap();
        fs::write(dir.path().join("kept"), "x").unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        fs::write(dir.path().join("d/kept"), "x").unwrap();
        std::os::unix::fs::symlink("../d", tree.join("l")).unwrap();
        std::os::unix::fs::symlink("../kept", tree.join("m")).unwrap();
        remove(&tree).unwrap();
        assert!(!tree.exists());
        assert!(dir.path().join("kept").exists());
        assert!(dir.path().join("d/kept").exists());
    }

    #[test]
    fn a_link_to_a_directory_is_removed_itself() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("d")).unwrap();
        std::os::unix::fs::symlink("d", dir.path().join("l")).unwrap();
        remove(&dir.path().join("l")).unwrap();
        assert!(dir.path().join("d").exists());
        let error = remove(&dir.path().join("l")).unwrap_err();
        assert_eq!(error.kind, FailureKind::NotFound);
    }

    #[test]
    fn a_tree_that_is_too_deep_is_a_failure_and_not_a_crash() {
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("t");
        let mut path = top.clone();
        for _ in 0..=MAX_DEPTH {
            path.push("d");
        }
        fs::create_dir_all(&path).unwrap();
        let error = remove(&top).unwrap_err();
        assert_eq!(error.kind, FailureKind::Exhausted);
        let limit = top.join("d/d");
        remove(&limit).unwrap();
        remove(&top).unwrap();
    }
}
