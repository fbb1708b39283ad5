//! The kernel's table of mounts, `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundMount {
    /// The kernel's number of the mount, reused once it is gone.
    pub id: u64,
    /// The mount that it is mounted on.
    pub parent: u64,
    /// Where.
    pub dir: PathBuf,
    /// Type of file system: `fuse.floe` for Floe's.
    pub kind: String,
    /// What it was mounted with: `floe:STORE:NAME` for Floe's.
    pub source: String,
    /// Shows the whole file system, not a directory of it that somebody bound elsewhere.
    pub whole: bool,
    /// Major and minor number of its file system.
    pub device: (u32, u32),
}

impl FoundMount {
    /// Whether it is a FUSE mount of Floe's, of whatever store.
    #[must_use]
    pub fn is_floe(&self) -> bool {
        self.kind.starts_with("fuse") && self.source.starts_with("floe:")
    }
}

/// Where the kernel's table is.
pub(super) const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Every mount that this process can see, of whatever file system.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn every_mount() -> io::Result<Vec<FoundMount>> {
    let table = std::fs::read(MOUNTINFO)?;
    Ok(table
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .collect())
}

/// Every FUSE mount of Floe's that this process can see.
pub(super) fn all() -> io::Result<Vec<FoundMount>> {
    let mut found = every_mount()?;
    found.retain(FoundMount::is_floe);
    Ok(found)
}

/// Mounts of the store with this id.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn floe_mounts(store_id: &str) -> io::Result<Vec<FoundMount>> {
    let prefix = format!("floe:{store_id}:");
    let mut found = all()?;
    found.retain(|mount| mount.source.starts_with(&prefix));
    Ok(found)
}

/// The directories of mounts that stand on one of a file system's, at any depth, except those that
/// cover the whole of one; the deepest last.
pub(super) fn inside(table: &[FoundMount], device: (u32, u32)) -> Vec<PathBuf> {
    let mut on: HashMap<u64, Vec<&FoundMount>> = HashMap::new();
    for mount in table {
        on.entry(mount.parent).or_default().push(mount);
    }
    let standing_on = |id: u64| on.get(&id).into_iter().flatten().copied();
    let mut found: Vec<&FoundMount> = Vec::new();
    for ours in table.iter().filter(|mount| mount.device == device) {
        found.extend(standing_on(ours.id).filter(|mount| mount.dir != ours.dir));
    }
    let mut dirs = Vec::new();
    let mut seen = HashSet::new();
    while let Some(mount) = found.pop() {
        if seen.insert(mount.id) {
            dirs.push(mount.dir.clone());
            found.extend(standing_on(mount.id));
        }
    }
    dirs.sort();
    dirs.dedup();
    dirs
}

/// Unmounts with the set-user-id helper of Debian's package fuse3.
pub(super) fn fusermount_unmount(dir: &Path, lazy: bool) -> io::Result<()> {
    let flags = if lazy { "-uz" } else { "-u" };
    let output = std::process::Command::new("fusermount3")
        .arg(flags)
        .arg(dir)
        .output()?;
    if output.status.success() {
        return Ok(());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    if said.contains("busy") {
        return Err(rustix::io::Errno::BUSY.into());
    }
    Err(io::Error::other(said))
}

/// One line; `None` if it is none.
fn parse(line: &[u8]) -> Option<FoundMount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let number = |field: &[u8]| std::str::from_utf8(field).ok()?.parse().ok();
    let (id, parent) = (number(fields.next()?)?, number(fields.next()?)?);
    let device = std::str::from_utf8(fields.next()?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let (root, dir) = (fields.next()?, fields.next()?);
    // Optional fields end with a lone dash.
    fields.by_ref().find(|field| *field == b"-")?;
    let (kind, source) = (fields.next()?, fields.next()?);
    Some(FoundMount {
        id,
        parent,
        dir: PathBuf::from(OsString::from_vec(unescape(dir))),
        kind: String::from_utf8_lossy(kind).into_owned(),
        source: String::from_utf8_lossy(&unescape(source)).into_owned(),
        whole: root == b"/",
        device: (major.parse().unwrap_or(0), minor.parse().unwrap_or(0)),
    })
}

/// Undoes the table's octal escapes of blanks, newlines and backslashes.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        let digits = tail
            .get(..3)
            .filter(|d| byte == b'\\' && d.iter().all(u8::is_ascii_digit));
        let code =
            digits.and_then(|digits| u8::from_str_radix(std::str::from_utf8(digits).ok()?, 8).ok());
        match code {
            Some(code) => {
                out.push(code);
                rest = &tail[3..];
            }
            None => {
                out.push(byte);
                rest = tail;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_kernels_table_are_read() {
        let line =
            b"75 28 0:53 / /mnt/a\\040b rw,nosuid shared:1 - fuse.floe floe:0123:w rw,user_id=0";
        let found = parse(line).unwrap();
        assert_eq!(found.dir, Path::new("/mnt/a b"));
        assert_eq!(found.source, "floe:0123:w");
        assert_eq!(found.device, (0, 53));
        assert!(found.whole && found.is_floe());
        assert_eq!((found.id, found.parent), (75, 28));
        let part = b"76 28 0:53 /sub /x rw - fuse.floe floe:0123:w rw";
        assert!(!parse(part).unwrap().whole);
        for other in [
            "75 28 0:53 / /mnt rw - fuse.sshfs host: rw",
            "75 28 8:1 / / rw - ext4 floe:0123:w rw",
        ] {
            assert!(!parse(other.as_bytes()).unwrap().is_floe());
        }
        assert_eq!(parse(b""), None);
        assert_eq!(parse(b"75 28 broken"), None);
    }

    #[test]
    fn what_stands_on_a_file_system_is_found_at_any_depth() {
        // A mount of it twice, one of them covered; a bind of a directory of it; what is in them.
        let table: Vec<FoundMount> = "\
9 7 0:60 / /w/proc/deep rw - tmpfs t rw
5 1 0:53 / /w rw - fuse.floe floe:0:w rw
6 1 0:53 / /w2 rw - fuse.floe floe:0:w rw
7 5 0:61 / /w/proc rw - tmpfs t rw
8 6 0:62 / /w2 rw - tmpfs t rw
10 1 0:53 /sub /bound rw - fuse.floe floe:0:w rw
11 10 0:54 / /bound/x rw - fuse.floe floe:0:v rw
12 1 0:63 / /w3 rw - tmpfs t rw"
            .lines()
            .filter_map(|line| parse(line.as_bytes()))
            .collect();
        let dirs: Vec<_> = ["/bound/x", "/w/proc", "/w/proc/deep"]
            .map(PathBuf::from)
            .into();
        assert_eq!(inside(&table, (0, 53)), dirs);
        assert!(inside(&table, (0, 54)).is_empty());
    }

    #[test]
    fn octal_escapes_are_undone_and_other_backslashes_kept() {
        assert_eq!(unescape(b"a\\134\\011b\\9x\\"), b"a\\\tb\\9x\\");
    }
}
