//! Directories to mount on: made when missing, refused where a mount would hide the store.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, StatxAttributes, StatxFlags};
use tracing::{info, warn};

use crate::error::{ApiError, ErrorKind, shell_word};
use crate::store_dir::make_private_dir;

/// A directory that can be mounted on.
pub(super) struct Prepared {
    /// Its path without symbolic links.
    pub(super) path: PathBuf,
    created: bool,
}

impl Prepared {
    /// Removes the directory again if it was made for a mount that then failed.
    pub(super) fn undo(&self) {
        if self.created
            && let Err(error) = fs::remove_dir(&self.path)
        {
            warn!(dir = %self.path.display(), %error, "cannot remove an unused mount point");
        }
    }
}

/// Resolves a directory and makes it if missing. `is_stale` tells whether a directory carries a
/// dead mount of this store, which is then detached.
pub(super) fn prepare(
    dir: &Path,
    store: &Path,
    is_stale: &dyn Fn(&Path) -> bool,
) -> Result<Prepared, ApiError> {
    let failed = |error: &io::Error| {
        let what = format!("cannot use '{}' as a mount point", dir.display());
        ApiError::new(ErrorKind::Failed, what).caused_by(error)
    };
    if !dir.is_absolute() {
        let what = format!("'{}' is not an absolute path", dir.display());
        return Err(ApiError::new(ErrorKind::Usage, what));
    }
    let mut resolved = dir.canonicalize();
    if resolved.as_ref().is_err_and(is_disconnected) {
        if !is_stale(dir) {
            let dead = shell_word(&dir.to_string_lossy());
            return Err(resolved
                .map_or_else(|error| failed(&error), |_| unreachable_dir(dir))
                .hint(format!(
                    "a dead mount of another program is there; detach it: `umount -l {dead}`"
                )));
        }
        info!(dir = %dir.display(), "detaching a dead mount");
        floe_fs::dispatch::fuser::detach_stale(dir).map_err(|error| failed(&error))?;
        resolved = dir.canonicalize();
    }
    let mut created = false;
    let path = match resolved {
        Ok(path) => path,
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            if dir.starts_with(store) {
                make_private_dir(dir).map_err(|error| failed(&error))?;
            } else {
                fs::create_dir_all(dir).map_err(|error| failed(&error))?;
            }
            created = true;
            dir.canonicalize().map_err(|error| failed(&error))?
        }
        Err(error) => return Err(failed(&error)),
    };
    if !path.is_dir() {
        return Err(failed(&io::Error::from(io::ErrorKind::NotADirectory)));
    }
    let store = store.canonicalize().map_err(|error| failed(&error))?;
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
    Ok(Prepared { path, created })
}

fn unreachable_dir(dir: &Path) -> ApiError {
    ApiError::new(
        ErrorKind::Failed,
        format!("'{}' cannot be reached", dir.display()),
    )
}

/// ENOTCONN: a FUSE file system whose server is gone.
fn is_disconnected(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::NOTCONN.raw_os_error())
}

/// The source of the topmost mount on exactly this directory, if that is one of Floe's, of
/// whatever store.
pub(super) fn floe_mount_on(dir: &Path) -> Result<Option<String>, ApiError> {
    if is_no_mount_point(dir) {
        return Ok(None);
    }
    let table = fs::read("/proc/self/mountinfo").map_err(|error| {
        ApiError::new(ErrorKind::Failed, "cannot read the table of mounts").caused_by(&error)
    })?;
    Ok(topmost_source(&table, dir).filter(|source| source.starts_with("floe:")))
}

/// Whether the kernel says that nothing is mounted there. Reading the table instead takes as long
/// as it is long, for each of many mounts.
fn is_no_mount_point(dir: &Path) -> bool {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    let root = StatxAttributes::MOUNT_ROOT;
    rustix::fs::statx(CWD, dir, flags, StatxFlags::empty()).is_ok_and(|stat| {
        stat.stx_attributes_mask.contains(root) && !stat.stx_attributes.contains(root)
    })
}

/// Finds the source of the last line whose mount point is `dir`; later lines cover earlier ones.
fn topmost_source(table: &[u8], dir: &Path) -> Option<String> {
    use std::os::unix::ffi::OsStrExt;
    let wanted = dir.as_os_str().as_bytes();
    let lines = table.split(|&byte| byte == b'\n').rev();
    lines
        .filter_map(mount_point_and_source)
        .find_map(|(point, source)| {
            (point == wanted).then(|| String::from_utf8_lossy(&source).into_owned())
        })
}

/// Fields 5 (mount point) and, after the separator, 2 (source) of a line of mountinfo(5).
fn mount_point_and_source(line: &[u8]) -> Option<(Vec<u8>, Vec<u8>)> {
    let mut fields = line.split(|&byte| byte == b' ');
    let point = fields.nth(4)?;
    let source = fields.skip_while(|field| *field != b"-").nth(2)?;
    Some((unescape(point), unescape(source)))
}

/// Undoes the kernel's octal escapes of space, tab, newline and backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let octal = |digits: &[u8]| {
            let text = std::str::from_utf8(digits).ok()?;
            u8::from_str_radix(text, 8).ok()
        };
        match (byte, tail.get(..3).and_then(octal)) {
            (b'\\', Some(value)) => {
                out.push(value);
                rest = &tail[3..];
            }
            _ => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
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

    const TABLE: &[u8] = b"\
21 1 254:1 / / rw,relatime - ext4 /dev/root rw
90 21 0:40 / /mnt/a\\040b rw shared:5 - fuse.floe floe:00:old rw
91 21 0:41 / /mnt/a\\040b rw shared:6 master:1 - fuse.floe floe:00:new rw
92 21 0:42 / /mnt/c rw - tmpfs none rw
broken line
";

    #[test]
    fn the_topmost_mount_counts() {
        let source = |dir: &str| topmost_source(TABLE, Path::new(dir));
        assert_eq!(source("/mnt/a b").as_deref(), Some("floe:00:new"));
        assert_eq!(source("/mnt/c").as_deref(), Some("none"));
        assert_eq!(source("/mnt"), None);
    }

    #[test]
    fn mount_points_are_told_from_other_directories() {
        let scratch = tempfile::tempdir().unwrap();
        assert!(is_no_mount_point(scratch.path()));
        assert!(!is_no_mount_point(Path::new("/proc")));
        assert_eq!(floe_mount_on(Path::new("/proc")).unwrap(), None);
    }

    #[test]
    fn escapes_are_undone_and_other_backslashes_kept() {
        assert_eq!(unescape(b"a\\040b\\134c"), b"a b\\c");
        assert_eq!(unescape(b"a\\9x\\04"), b"a\\9x\\04");
    }

    #[test]
    fn directories_are_made_and_those_that_hide_the_store_refused() {
        let scratch = tempfile::tempdir().unwrap();
        let root = scratch.path().canonicalize().unwrap();
        let store = root.join("store");
        fs::create_dir_all(store.join("run")).unwrap();
        let prepare = |dir: &Path| prepare(dir, &store, &|_| false);

        let made = prepare(&root.join("new/deep")).unwrap();
        assert!(made.created && made.path.is_dir());
        made.undo();
        assert!(!made.path.exists());

        assert!(prepare(&store.join("mnt/w")).unwrap().created);
        for hiding in [
            store.clone(),
            store.join("run"),
            store.join("mnt"),
            root.clone(),
        ] {
            let refused = prepare(&hiding).err().unwrap();
            assert_eq!(refused.kind, ErrorKind::Usage, "{}", hiding.display());
        }
        assert_eq!(
            prepare(Path::new("relative")).err().unwrap().kind,
            ErrorKind::Usage
        );
        fs::write(root.join("file"), "").unwrap();
        assert_eq!(
            prepare(&root.join("file")).err().unwrap().kind,
            ErrorKind::Failed
        );
    }
}
