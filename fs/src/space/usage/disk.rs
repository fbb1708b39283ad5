//! What lies beside the objects in a store's directory.

use std::collections::HashSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// Bytes of blocks, by what they are for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Beside {
    pub(super) catalog: u64,
    pub(super) reserve: u64,
    pub(super) landings: u64,
    pub(super) images: u64,
    pub(super) other: u64,
}

/// Looks at everything in a store's directory but the files of objects.
pub(super) fn beside_objects(store: &Path) -> io::Result<Beside> {
    let mut beside = Beside {
        other: blocks(&store.symlink_metadata()?),
        ..Beside::default()
    };
    for entry in std::fs::read_dir(store)? {
        let entry = entry?;
        let Some(bytes) = gone(tree(&entry.path(), entry.file_name() == "objects"))? else {
            continue;
        };
        let name = entry.file_name();
        let of = match name.to_str() {
            Some("catalog.db" | "catalog.db-wal" | "catalog.db-shm") => &mut beside.catalog,
            Some("reserve") => &mut beside.reserve,
            Some("landings") => &mut beside.landings,
            Some("images") => &mut beside.images,
            _ => &mut beside.other,
        };
        *of += bytes;
    }
    Ok(beside)
}

fn blocks(meta: &Metadata) -> u64 {
    meta.blocks() * 512
}

/// Nothing if somebody removed it meanwhile.
fn gone<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        // A mount whose daemon has just ended.
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => Ok(None),
        // What a landing kept of somebody else's: it cannot be looked at, and counts as nothing.
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => Ok(None),
        found => found.map(Some),
    }
}

/// Bytes of a file, or of a directory with everything in it on the same file system; `dirs` leaves
/// files out.
fn tree(root: &Path, dirs: bool) -> io::Result<u64> {
    let meta = root.symlink_metadata()?;
    let mut bytes = blocks(&meta);
    if !meta.is_dir() {
        return Ok(bytes);
    }
    let mut todo = vec![root.to_owned()];
    // Files with several names count once.
    let mut several = HashSet::new();
    while let Some(dir) = todo.pop() {
        let Some(entries) = gone(std::fs::read_dir(&dir))? else {
            continue;
        };
        for entry in entries {
            let entry = entry?;
            if dirs && !entry.file_type()?.is_dir() {
                continue;
            }
            let Some(found) = gone(entry.path().symlink_metadata())? else {
                continue;
            };
            // What is mounted there lies elsewhere.
            if found.dev() != meta.dev() {
                continue;
            }
            if found.nlink() > 1 && !found.is_dir() && !several.insert(found.ino()) {
                continue;
            }
            bytes += blocks(&found);
            if found.is_dir() {
                todo.push(entry.path());
            }
        }
    }
    Ok(bytes)
}
