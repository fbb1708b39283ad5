//! What is known of a file.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use floe_guest::message::{Entry, EntryKind, Modified};
use rustix::fs::FileType;

use crate::agent::users::Database;

/// What is there; a link is not followed, but looked behind.
pub fn look(path: &Path, names: &Database) -> io::Result<Entry> {
    Ok(describe(path, &fs::symlink_metadata(path)?, names))
}

/// The entry of a file whose metadata are at hand.
pub fn describe(path: &Path, metadata: &Metadata, names: &Database) -> Entry {
    let kind = kind(metadata);
    let (symlink_target, target_kind) = if kind == EntryKind::Symlink {
        behind(path)
    } else {
        (None, None)
    };
    let name = path.file_name().unwrap_or(path.as_os_str());
    Entry {
        name: name.to_string_lossy().into_owned(),
        path: path.to_string_lossy().into_owned(),
        kind,
        size: metadata.len(),
        mode: metadata.mode() & 0o7777,
        permissions: permissions(metadata.mode()),
        owner: names.user_name(metadata.uid()),
        group: names.group_name(metadata.gid()),
        modified: Modified {
            secs: metadata.mtime(),
            nanos: u32::try_from(metadata.mtime_nsec()).unwrap_or(0),
        },
        symlink_target,
        target_kind,
    }
}

fn kind(metadata: &Metadata) -> EntryKind {
    let file_type = metadata.file_type();
    if file_type.is_file() {
        EntryKind::File
    } else if file_type.is_dir() {
        EntryKind::Directory
    } else if file_type.is_symlink() {
        EntryKind::Symlink
    } else {
        EntryKind::Other
    }
}

/// Where a link leads, and to what.
fn behind(path: &Path) -> (Option<String>, Option<EntryKind>) {
    match fs::canonicalize(path) {
        Ok(target) => {
            let kind = fs::symlink_metadata(&target).ok().map(|found| kind(&found));
            (Some(target.to_string_lossy().into_owned()), kind)
        }
        Err(_) => {
            let text = fs::read_link(path).ok();
            (text.map(|text| text.to_string_lossy().into_owned()), None)
        }
    }
}

/// Kind and permissions as ls(1) writes them.
fn permissions(mode: u32) -> String {
    let kind = match FileType::from_raw_mode(mode) {
        FileType::Directory => 'd',
        FileType::Symlink => 'l',
        FileType::BlockDevice => 'b',
        FileType::CharacterDevice => 'c',
        FileType::Fifo => 'p',
        FileType::Socket => 's',
        FileType::RegularFile => '-',
        FileType::Unknown => '?',
    };
    let mut text = String::from(kind);
    for (shift, special, set, unset) in [
        (6, 0o4000, 's', 'S'),
        (3, 0o2000, 's', 'S'),
        (0, 0o1000, 't', 'T'),
    ] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (bits & 1 != 0, mode & special != 0) {
            (true, false) => 'x',
            (false, false) => '-',
            (true, true) => set,
            (false, true) => unset,
        });
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn permissions_are_those_of_ls() {
        assert_eq!(permissions(0o100_644), "-rw-r--r--");
        assert_eq!(permissions(0o040_755), "drwxr-xr-x");
        assert_eq!(permissions(0o041_777), "drwxrwxrwt");
        assert_eq!(permissions(0o104_755), "-rwsr-xr-x");
        assert_eq!(permissions(0o102_640), "-rw-r-S---");
        assert_eq!(permissions(0o120_777), "lrwxrwxrwx");
        assert_eq!(permissions(0o010_600), "prw-------");
    }

    #[test]
    fn links_are_looked_behind() {
        let dir = tempfile::tempdir().unwrap();
        let dir = dir.path().canonicalize().unwrap();
        fs::create_dir(dir.join("d")).unwrap();
        std::os::unix::fs::symlink("d", dir.join("l")).unwrap();
        std::os::unix::fs::symlink("nowhere", dir.join("n")).unwrap();
        let names = Database::read();
        let link = look(&dir.join("l"), &names).unwrap();
        assert_eq!(link.kind, EntryKind::Symlink);
        assert_eq!(link.target_kind, Some(EntryKind::Directory));
        let target = dir.join("d").to_string_lossy().into_owned();
        assert_eq!(link.symlink_target, Some(target));
        let broken = look(&dir.join("n"), &names).unwrap();
        assert_eq!(broken.symlink_target.as_deref(), Some("nowhere"));
        assert_eq!(broken.target_kind, None);
        assert!(look(&dir.join("x"), &names).is_err());
    }
}
