//! The kernel's table of mounts, `/proc/self/mountinfo` (proc_pid_mountinfo(5)).

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use rustix::mount::UnmountFlags;

/// A mount of Floe's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FoundMount {
    /// Where.
    pub dir: PathBuf,
    /// The source it was mounted with: `floe:STORE:NAME`.
    pub source: String,
    /// Shows the whole file system, not a directory of it that somebody bound elsewhere.
    pub whole: bool,
    /// Major and minor number of its file system.
    pub device: (u32, u32),
}

/// Where the kernel's table is.
pub(super) const MOUNTINFO: &str = "/proc/self/mountinfo";

/// Every FUSE mount of Floe's that this process can see.
pub(super) fn all() -> io::Result<Vec<FoundMount>> {
    let table = std::fs::read(MOUNTINFO)?;
    Ok(table
        .split(|&byte| byte == b'\n')
        .filter_map(parse)
        .collect())
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

/// Whether anything is mounted on a directory.
///
/// # Errors
/// When the kernel's table cannot be read.
pub fn is_mount_point(dir: &Path) -> io::Result<bool> {
    let table = std::fs::read(MOUNTINFO)?;
    let mut lines = table.split(|&byte| byte == b'\n');
    Ok(lines.any(|line| {
        let point = line.split(|&byte| byte == b' ').nth(4);
        point.is_some_and(|point| Path::new(&OsString::from_vec(unescape(point))) == dir)
    }))
}

/// Takes a mount whose server is gone out of the way, even while processes are in it.
///
/// # Errors
/// When the kernel refuses; nothing mounted there is fine.
pub fn detach_stale(dir: &Path) -> io::Result<()> {
    match rustix::mount::unmount(dir, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::NOENT) => Ok(()),
        Err(rustix::io::Errno::PERM) => fusermount_unmount(dir, true),
        other => Ok(other?),
    }
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

/// One line; `None` unless it is a FUSE mount of Floe's.
fn parse(line: &[u8]) -> Option<FoundMount> {
    let mut fields = line.split(|&byte| byte == b' ');
    let device = std::str::from_utf8(fields.nth(2)?).ok()?;
    let (major, minor) = device.split_once(':')?;
    let (root, dir) = (fields.next()?, fields.next()?);
    // Optional fields end with a lone dash.
    fields.by_ref().find(|field| *field == b"-")?;
    let (kind, source) = (fields.next()?, fields.next()?);
    let source = String::from_utf8(unescape(source)).ok()?;
    (kind.starts_with(b"fuse") && source.starts_with("floe:")).then(|| FoundMount {
        dir: PathBuf::from(OsString::from_vec(unescape(dir))),
        source,
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
        assert!(found.whole);
        let part = b"76 28 0:53 /sub /x rw - fuse.floe floe:0123:w rw";
        assert!(!parse(part).unwrap().whole);
        assert_eq!(parse(b"75 28 0:53 / /mnt rw - fuse.sshfs host: rw"), None);
        assert_eq!(parse(b"75 28 8:1 / / rw - ext4 /dev/sda1 rw"), None);
        assert_eq!(parse(b""), None);
    }

    #[test]
    fn octal_escapes_are_undone_and_other_backslashes_kept() {
        assert_eq!(unescape(b"a\\134\\011b\\9x\\"), b"a\\\tb\\9x\\");
    }
}
