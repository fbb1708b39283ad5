//! The kernel's mount table, read from `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::{UnmountFlags, unmount};

/// One mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountPoint {
    /// Where it is mounted.
    pub dir: PathBuf,
    /// File-system type, such as `ext4` or `fuse`.
    pub fs_type: String,
    /// Mount source as the file system gave it.
    pub source: String,
    /// Options of this mount, such as `rw`, `nosuid`.
    pub options: Vec<String>,
}

/// Every mount of this process's mount namespace, in the kernel's order.
///
/// # Panics
/// When `/proc` is not mounted.
#[must_use]
pub fn all() -> Vec<MountPoint> {
    let table = fs::read("/proc/self/mountinfo").expect("/proc/self/mountinfo");
    table
        .split(|&byte| byte == b'\n')
        .filter_map(parse_line)
        .collect()
}

/// The mounts at `dir` and below it, in the kernel's order (a mount comes after its parent).
#[must_use]
pub fn below(dir: &Path) -> Vec<MountPoint> {
    all()
        .into_iter()
        .filter(|mount| mount.dir.starts_with(dir))
        .collect()
}

/// Whether something is mounted exactly at `dir`.
#[must_use]
pub fn is_mounted(dir: &Path) -> bool {
    all().iter().any(|mount| mount.dir == dir)
}

/// Detaches every mount at `dir` and below, even if it is in use, and returns what it detached.
///
/// # Panics
/// When the kernel refuses.
pub fn detach_below(dir: &Path) -> Vec<MountPoint> {
    let mut mounts = below(dir);
    mounts.reverse();
    for mount in &mounts {
        match unmount(&mount.dir, UnmountFlags::DETACH) {
            // INVAL: gone with its parent or by its own server in the meantime.
            Ok(()) | Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => {}
            Err(error) => panic!("cannot unmount {}: {error}", mount.dir.display()),
        }
    }
    mounts
}

/// `ID PARENT MAJOR:MINOR ROOT DIR OPTIONS [TAG...] - TYPE SOURCE SUPER_OPTIONS`
fn parse_line(line: &[u8]) -> Option<MountPoint> {
    let mut fields = line.split(|&byte| byte == b' ');
    let dir = unescape(fields.nth(4)?);
    let options = String::from_utf8_lossy(fields.next()?)
        .split(',')
        .map(str::to_owned)
        .collect();
    fields.find(|field| *field == b"-")?;
    Some(MountPoint {
        dir: PathBuf::from(OsString::from_vec(dir)),
        fs_type: String::from_utf8_lossy(fields.next()?).into_owned(),
        source: String::from_utf8_lossy(&unescape(fields.next()?)).into_owned(),
        options,
    })
}

/// The kernel writes space, tab, newline, backslash and '#' as three octal digits.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let [first, tail @ ..] = rest {
        if let (
            b'\\',
            [
                a @ b'0'..=b'3',
                b @ b'0'..=b'7',
                c @ b'0'..=b'7',
                after @ ..,
            ],
        ) = (*first, tail)
        {
            out.push((a - b'0') * 64 + (b - b'0') * 8 + (c - b'0'));
            rest = after;
        } else {
            out.push(*first);
            rest = tail;
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_line_with_tags_and_escapes_is_read() {
        let line = b"36 35 98:0 /mnt1 /mnt\\0402\\134x rw,noatime master:1 shared:2 - fuse.floe \
            floe:00:w rw,errors=continue";
        let mount = parse_line(line).unwrap();
        assert_eq!(mount.dir.as_os_str().as_bytes(), b"/mnt 2\\x");
        assert_eq!(
            (mount.fs_type.as_str(), mount.source.as_str()),
            ("fuse.floe", "floe:00:w")
        );
        assert_eq!(mount.options, ["rw", "noatime"]);
    }

    #[test]
    fn proc_is_mounted_and_a_fresh_directory_is_not() {
        assert!(is_mounted(Path::new("/proc")));
        let dir = tempfile::tempdir().unwrap();
        assert!(!is_mounted(dir.path()) && below(dir.path()).is_empty());
        assert!(detach_below(dir.path()).is_empty());
    }
}
