//! Whether a store's files can be believed: only those that nobody but this user can have put there.
//!
//! What a catalog says becomes files with any owner and mode, and mounts made with the daemon's
//! rights. So a store of another user, or one that others can write to, is refused before anything
//! in it is opened: a name in it may lead elsewhere, or to a pipe that never answers.

use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use super::open::OpenError;

/// What is looked at in a store besides the directory itself; none of it has to be there.
const PARTS: [&str; 10] = [
    "catalog.db",
    "catalog.db-wal",
    "catalog.db-shm",
    "lock",
    "reserve",
    "objects",
    "run",
    "mnt",
    "quarantine",
    "images",
];
/// Permission of group and others to write.
const WRITABLE: u32 = 0o022;

/// Finds a store's directory, which may be named through symbolic links, and makes sure that it
/// belongs to the user of this process. Says nothing about what is in it.
pub(super) fn own_directory(dir: &Path) -> Result<PathBuf, OpenError> {
    let dir = dir.canonicalize().map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => OpenError::NotFound {
            dir: dir.to_owned(),
        },
        _ => cannot_look_at(dir, source),
    })?;
    let meta = look_at(&dir)?.ok_or_else(|| OpenError::NotFound { dir: dir.clone() })?;
    owned(&dir, &meta)?;
    Ok(dir)
}

/// Makes sure that a store's directory and everything that is opened in it belong to the user of
/// this process, that nobody else can change them, and that no name in it leads elsewhere.
pub(super) fn check(dir: &Path) -> Result<(), OpenError> {
    one(dir.to_owned())?;
    check_parts(dir)
}

/// As [`check`], but says nothing about who may make something new in the directory.
pub(super) fn check_parts(dir: &Path) -> Result<(), OpenError> {
    PARTS.iter().try_for_each(|part| one(dir.join(part)))
}

fn one(path: PathBuf) -> Result<(), OpenError> {
    let Some(meta) = look_at(&path)? else {
        return Ok(());
    };
    if meta.is_symlink() {
        return Err(OpenError::Symlink { path });
    }
    owned(&path, &meta)?;
    if meta.mode() & WRITABLE != 0 {
        let mode = meta.mode() & 0o7777;
        return Err(OpenError::Writable { path, mode });
    }
    Ok(())
}

fn owned(path: &Path, meta: &Metadata) -> Result<(), OpenError> {
    let user = rustix::process::geteuid().as_raw();
    if meta.uid() == user {
        return Ok(());
    }
    Err(OpenError::Foreign {
        path: path.to_owned(),
        owner: meta.uid(),
        user,
    })
}

fn look_at(path: &Path) -> Result<Option<Metadata>, OpenError> {
    match path.symlink_metadata() {
        Ok(meta) => Ok(Some(meta)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(cannot_look_at(path, source)),
    }
}

fn cannot_look_at(path: &Path, source: io::Error) -> OpenError {
    OpenError::Access {
        action: "look at",
        path: path.to_owned(),
        source,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{self, Permissions};
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn what_others_can_change_and_what_leads_elsewhere_is_not_believed() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = own_directory(scratch.path()).unwrap();
        check(&dir).unwrap();
        for part in PARTS {
            let path = dir.join(part);
            fs::write(&path, "").unwrap();
            fs::set_permissions(&path, Permissions::from_mode(0o644)).unwrap();
            check(&dir).unwrap();
            for mode in [0o620, 0o602] {
                fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
                let error = check(&dir).unwrap_err();
                assert!(matches!(error, OpenError::Writable { .. }), "{error}");
                assert!(error.to_string().contains(part), "{error}");
            }
            fs::remove_file(&path).unwrap();
            std::os::unix::fs::symlink("/nowhere", &path).unwrap();
            let error = check(&dir).unwrap_err();
            assert!(matches!(error, OpenError::Symlink { .. }), "{error}");
            fs::remove_file(&path).unwrap();
        }
        fs::set_permissions(&dir, Permissions::from_mode(0o777)).unwrap();
        assert!(matches!(check(&dir), Err(OpenError::Writable { .. })));
        // Enough for a directory that a store is only to be made in.
        own_directory(&dir).unwrap();
    }

    #[test]
    fn the_directory_may_be_named_through_a_link() {
        let scratch = tempfile::tempdir().unwrap();
        let real = scratch.path().join("real");
        fs::create_dir(&real).unwrap();
        let link = scratch.path().join("link");
        std::os::unix::fs::symlink(&real, &link).unwrap();
        assert_eq!(own_directory(&link).unwrap(), own_directory(&real).unwrap());
        let missing = own_directory(&scratch.path().join("missing"));
        assert!(matches!(missing, Err(OpenError::NotFound { .. })));
    }
}
