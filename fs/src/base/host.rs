//! Looking at files of the host: opening them without being led elsewhere, and telling whether
//! they are what they were.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, ResolveFlags, Statx, StatxFlags, StatxTimestamp, openat2};
use rustix::io::Errno;

use crate::attr::Timestamp;
use crate::change::{HostRow, Name, Seen};

/// Names and values of extended attributes.
pub(crate) type Xattrs = Vec<(Vec<u8>, Vec<u8>)>;

/// Attributes that a workspace keeps.
const KEPT: [&[u8]; 4] = [b"user.", b"trusted.", b"security.", b"system.posix_acl_"];
/// Bytes of a path that the kernel takes at a time, with room to spare.
const PATH_BYTES: usize = 3500;

/// A time of a `stat`.
pub(crate) fn time(secs: i64, nanos: u64) -> Timestamp {
    Timestamp {
        secs,
        nanos: u32::try_from(nanos).unwrap_or(0).min(999_999_999),
    }
}

/// Everything that is to be known of a file.
const WANTED: StatxFlags = StatxFlags::BASIC_STATS
    .union(StatxFlags::BTIME)
    .union(StatxFlags::MNT_ID);

/// Looks at a name in a directory, or at an open file itself if the name is empty. Follows no link.
pub(super) fn look(at: BorrowedFd<'_>, name: &Path) -> Result<Statx, Errno> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT;
    rustix::fs::statx(at, name, flags | of_itself(name), WANTED)
}

fn of_itself(name: &Path) -> AtFlags {
    if name.as_os_str().is_empty() {
        AtFlags::EMPTY_PATH
    } else {
        AtFlags::empty()
    }
}

/// The device that a file is on.
pub(super) fn device(stat: &Statx) -> u64 {
    rustix::fs::makedev(stat.stx_dev_major, stat.stx_dev_minor)
}

/// A time of a `statx`.
pub(super) fn statx_time(time: StatxTimestamp) -> Timestamp {
    self::time(time.tv_sec, u64::from(time.tv_nsec))
}

/// What a file is now.
pub(super) fn seen(stat: &Statx) -> Seen {
    Seen {
        dev: device(stat),
        inode: stat.stx_ino,
        links: u64::from(stat.stx_nlink),
        size: stat.stx_size,
        mtime: statx_time(stat.stx_mtime),
        ctime: statx_time(stat.stx_ctime),
        btime: birth(stat).unwrap_or(self::time(0, 0)),
    }
}

/// When a file was born, where that is known.
pub(super) fn birth(stat: &Statx) -> Option<Timestamp> {
    let known = StatxFlags::from_bits_retain(stat.stx_mask).contains(StatxFlags::BTIME);
    known.then(|| statx_time(stat.stx_btime))
}

/// What device numbers that were recorded mean now: a file system may get another with each mount,
/// and with each start of the host.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Devices {
    /// That of the named directory, as recorded.
    pub(super) recorded: u64,
    /// As it is now.
    pub(super) now: u64,
    /// Whether the host was not started again since.
    pub(super) same_boot: bool,
}

impl Devices {
    fn match_up(self, recorded: u64, now: u64) -> bool {
        if recorded == self.recorded {
            now == self.now
        } else {
            now == recorded || !self.same_boot
        }
    }

    /// What to record of a number.
    pub(super) fn record(self, now: u64) -> u64 {
        if now == self.now { self.recorded } else { now }
    }
}

impl Seen {
    /// Whether it is the same file, whatever is in it.
    pub(crate) fn is_same_file(&self, now: &Self, devices: Devices) -> bool {
        self.is_same_number(now) && devices.match_up(self.dev, now.dev)
    }

    /// Whether a file with the same number is the same.
    fn is_same_number(&self, now: &Self) -> bool {
        let unknown = time(0, 0);
        let born = self.btime == now.btime || self.btime == unknown || now.btime == unknown;
        self.inode == now.inode && born
    }

    /// Whether it is the same file with the same contents.
    pub(crate) fn is_unchanged(&self, now: &Self, devices: Devices) -> bool {
        self.is_same_file(now, devices)
            && self.size == now.size
            && self.mtime == now.mtime
            && self.ctime == now.ctime
    }
}

/// Opens a directory that was named when the base was made. Its file system may have been mounted
/// again since.
pub(super) fn open_root(row: &HostRow, same_boot: bool) -> Result<Root, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(&row.name[..], flags, Mode::empty())?;
    let now = seen(&look(fd.as_fd(), Path::new(""))?);
    let devices = Devices {
        recorded: row.seen.dev,
        now: now.dev,
        same_boot,
    };
    if row.seen.is_same_number(&now) {
        Ok(Root { fd, devices })
    } else {
        Err(Errno::STALE)
    }
}

/// A named directory, open.
pub(super) struct Root {
    pub(super) fd: OwnedFd,
    pub(super) devices: Devices,
}

/// Opens what the names lead to, below a directory, through no link and no mount.
pub(super) fn open_beneath(
    root: BorrowedFd<'_>,
    names: &[Name],
    flags: OFlags,
) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    let way = OFlags::PATH | OFlags::DIRECTORY;
    let mut from: Option<OwnedFd> = None;
    let mut rest = names;
    loop {
        let mut path = Vec::new();
        let mut taken = 0;
        for name in rest {
            if taken > 0 && path.len() + name.len() > PATH_BYTES {
                break;
            }
            if taken > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(name);
            taken += 1;
        }
        rest = &rest[taken..];
        if path.is_empty() {
            path.push(b'.');
        }
        let step = if rest.is_empty() { flags } else { way } | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let at = from.as_ref().map_or(root, |fd| fd.as_fd());
        let next = openat2(at, &path[..], step, Mode::empty(), resolve)?;
        if rest.is_empty() {
            return Ok(next);
        }
        from = Some(next);
    }
}

/// Whether an error of [`open_beneath`] says that something else is there now.
pub(super) fn says_changed(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV | Errno::STALE
    )
}

/// A way to an open file that can be opened again.
pub(super) fn reopen(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = flags | OFlags::CLOEXEC;
    // Reading must not write the time of the last access, where that can be asked for.
    match rustix::fs::open(&path, flags | OFlags::NOATIME, Mode::empty()) {
        Err(Errno::PERM) => rustix::fs::open(&path, flags, Mode::empty()),
        other => other,
    }
}

type Get = fn(&[u8], &[u8], &mut [u8]) -> Result<usize, Errno>;
type List = fn(&[u8], &mut [u8]) -> Result<usize, Errno>;

/// Extended attributes of an open file, which may be a descriptor that only points, or of a name that
/// cannot be opened (a link, a device). One that may not be read is an error, unless it is to be left
/// out.
pub(crate) fn xattrs(
    fd: BorrowedFd<'_>,
    name: Option<&[u8]>,
    only_readable: bool,
) -> Result<Xattrs, Errno> {
    let mut path = format!("/proc/self/fd/{}", fd.as_raw_fd()).into_bytes();
    let Some(name) = name else {
        // Through the descriptor's own name, which leads to a link itself if it is for one.
        let get: Get = |path, name, value| rustix::fs::getxattr(path, name, value);
        let list: List = |path, names| rustix::fs::listxattr(path, names);
        return xattrs_at(&path, only_readable, get, list);
    };
    path.push(b'/');
    path.extend_from_slice(name);
    let get: Get = |path, name, value| rustix::fs::lgetxattr(path, name, value);
    let list: List = |path, names| rustix::fs::llistxattr(path, names);
    xattrs_at(&path, only_readable, get, list)
}

fn xattrs_at(path: &[u8], only_readable: bool, get: Get, list: List) -> Result<Xattrs, Errno> {
    let listed = match grown(|buffer| list(path, buffer)) {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    let names = listed.split(|&byte| byte == 0);
    for attribute in names.filter(|name| KEPT.iter().any(|prefix| name.starts_with(prefix))) {
        match grown(|buffer| get(path, attribute, buffer)) {
            // Removed since it was listed.
            Err(Errno::NODATA) => {}
            // Whoever asks for it there is refused as well.
            Err(Errno::ACCESS | Errno::PERM) if only_readable => {}
            other => found.push((attribute.to_vec(), other?)),
        }
    }
    Ok(found)
}

/// Calls with a larger buffer if a small one does not do; most files have no attribute.
fn grown(mut call: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut small = [0; 256];
    match call(&mut small[..]) {
        Err(Errno::RANGE) => {}
        other => return Ok(small[..other?].to_vec()),
    }
    // The most that the kernel hands out.
    let mut large = vec![0; 64 << 10];
    let len = call(&mut large)?;
    large.truncate(len);
    Ok(large)
}

/// A device number in the kernel's 32-bit encoding (`new_encode_dev` in `linux/kdev_t.h`).
pub(crate) fn kernel_device(device: u64) -> u32 {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12)
}

/// Number of the mount that an open file is on. No server is asked.
fn mount_of(file: BorrowedFd<'_>) -> Result<u64, Errno> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::NO_AUTOMOUNT | AtFlags::STATX_DONT_SYNC;
    // What the mount is comes with whatever is asked for.
    let stat = rustix::fs::statx(file, "", flags, StatxFlags::empty())?;
    Ok(stat.stx_mnt_id)
}

/// Whether a file is in a mount of Floe's, of this process or of another.
pub(crate) fn is_mount_of_floe(file: BorrowedFd<'_>) -> std::io::Result<bool> {
    let id = mount_of(file)?.to_string();
    let mounts = std::fs::read_to_string("/proc/self/mountinfo")?;
    // The first field is the mount's number; after " - " comes the kind of file system.
    let line = mounts
        .lines()
        .find(|line| line.split(' ').next() == Some(&id));
    let kind = line.and_then(|line| line.split_once(" - "));
    Ok(kind.is_some_and(|(_, rest)| rest.starts_with("fuse.floe ")))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn names(path: &str) -> Vec<Name> {
        let names = path.split('/').filter(|name| !name.is_empty());
        names.map(|name| Name::from(name.as_bytes())).collect()
    }

    #[test]
    fn nothing_outside_the_directory_is_opened() {
        let scratch = tempfile::tempdir().unwrap();
        let dir = scratch.path().join("dir");
        fs::create_dir_all(dir.join("a/b")).unwrap();
        fs::write(dir.join("a/b/f"), "x").unwrap();
        fs::write(scratch.path().join("secret"), "s").unwrap();
        std::os::unix::fs::symlink("b", dir.join("a/link")).unwrap();
        std::os::unix::fs::symlink("/etc", dir.join("out")).unwrap();
        let root = fs::File::open(&dir).unwrap();
        let open = |path| open_beneath(root.as_fd(), &names(path), OFlags::RDONLY);
        assert!(open("a/b/f").is_ok() && open("").is_ok());
        for path in ["a/link/f", "out/passwd", "a/link", "../secret", "a/none"] {
            let errno = open(path).unwrap_err();
            assert!(says_changed(errno), "{path}: {errno}");
        }
    }

    #[test]
    fn a_path_longer_than_the_kernel_takes_is_opened_in_pieces() {
        let scratch = tempfile::tempdir().unwrap();
        let root = fs::File::open(scratch.path()).unwrap();
        let name = Name::from(&[b'd'; 200][..]);
        let mut at: OwnedFd = root.try_clone().unwrap().into();
        for _ in 0..40 {
            rustix::fs::mkdirat(&at, &name[..], Mode::RWXU).unwrap();
            at = open_beneath(at.as_fd(), std::slice::from_ref(&name), OFlags::RDONLY).unwrap();
        }
        let path = vec![name; 40];
        let end = open_beneath(root.as_fd(), &path, OFlags::RDONLY).unwrap();
        let inode = |fd: &OwnedFd| rustix::fs::fstat(fd).unwrap().st_ino;
        assert_eq!(inode(&end), inode(&at));
    }

    #[test]
    fn a_file_is_unchanged_only_if_nothing_of_it_is_another() {
        let scratch = tempfile::tempdir().unwrap();
        let path = scratch.path().join("f");
        fs::write(&path, "one").unwrap();
        let dir = fs::File::open(scratch.path()).unwrap();
        let look = || seen(&look(dir.as_fd(), Path::new("f")).unwrap());
        let first = look();
        let devices = |now, same_boot| Devices {
            recorded: first.dev,
            now,
            same_boot,
        };
        let here = devices(first.dev, true);
        assert!(first.is_unchanged(&look(), here));
        fs::write(&path, "two").unwrap();
        assert!(first.is_same_file(&look(), here) && !first.is_unchanged(&look(), here));
        let other_disk = Seen {
            dev: first.dev + 1,
            ..first
        };
        assert!(!first.is_unchanged(&other_disk, here));
        // The disk was mounted again.
        let again = devices(first.dev + 1, true);
        assert!(first.is_unchanged(&other_disk, again));
        assert_eq!(again.record(first.dev + 1), first.dev);
        // Of another disk, of which nothing is known after a start of the host.
        let elsewhere = Seen {
            dev: first.dev + 2,
            ..first
        };
        assert!(elsewhere.is_unchanged(&other_disk, devices(first.dev + 7, false)));
        assert!(!elsewhere.is_unchanged(&other_disk, devices(first.dev + 7, true)));
        // The number of a file that is gone, used again.
        let born_later = Seen {
            btime: time(first.btime.secs + 1, 0),
            ..first
        };
        assert!(!first.is_same_file(&born_later, here));
    }
}
