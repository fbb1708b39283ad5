//! A directory of the host, and what is beneath it. Every path is resolved by the kernel from the
//! open directory, through no symbolic link and no mount.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, Dir, Mode, OFlags, RenameFlags, ResolveFlags, openat, openat2, renameat_with,
    statat,
};
use rustix::io::Errno;

use super::HostLandError;
use super::guard::Guard;

/// Longest path handed to one system call.
const PATH_MAX: usize = 4000;

/// An open root.
pub(super) struct Root {
    pub(super) path: PathBuf,
    fd: OwnedFd,
}

/// A name in an open directory.
pub(super) struct Entry<'a> {
    pub(super) dir: OwnedFd,
    pub(super) name: &'a [u8],
}

impl Root {
    pub(super) fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let fd = openat(CWD, path, flags, Mode::empty())?;
        Ok(Self {
            path: path.to_owned(),
            fd,
        })
    }

    pub(super) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    pub(super) fn seen(&self) -> io::Result<Guard> {
        let stat = rustix::fs::fstat(&self.fd)?;
        Guard::of(&stat).ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The directory that a path is in, and its name there.
    pub(super) fn entry<'a>(&self, path: &'a [u8]) -> rustix::io::Result<Entry<'a>> {
        let (parent, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(at) => (&path[..at], &path[at + 1..]),
            None => (&b""[..], path),
        };
        if name.is_empty() || name == b"." || name == b".." {
            return Err(Errno::INVAL);
        }
        let dir = self.directory(parent)?;
        Ok(Entry { dir, name })
    }

    /// The directory at a path; the empty path is the root's.
    fn directory(&self, path: &[u8]) -> rustix::io::Result<OwnedFd> {
        let mut rest = if path.is_empty() { &b"."[..] } else { path };
        let mut at: Option<OwnedFd> = None;
        loop {
            let (head, tail) = if rest.len() <= PATH_MAX {
                (rest, &b""[..])
            } else {
                let cut = rest[..PATH_MAX].iter().rposition(|&byte| byte == b'/');
                let cut = cut.ok_or(Errno::NAMETOOLONG)?;
                (&rest[..cut], &rest[cut + 1..])
            };
            let base = at.as_ref().map_or(self.fd.as_fd(), AsFd::as_fd);
            let next = beneath(base, head, OFlags::RDONLY | OFlags::DIRECTORY)
                // Whoever may not list a directory may still be allowed to change it.
                .or_else(|_| beneath(base, head, OFlags::PATH | OFlags::DIRECTORY))?;
            if tail.is_empty() {
                return Ok(next);
            }
            (at, rest) = (Some(next), tail);
        }
    }

    /// What is at a path: nothing also where no way leads to it.
    pub(super) fn look(&self, path: &[u8]) -> io::Result<Option<Guard>> {
        let found = self.entry(path).and_then(|entry| entry.look());
        match found {
            Err(errno) if is_absent(errno) => Ok(None),
            other => Ok(other?),
        }
    }

    /// As [`Root::look`], with an error that says where.
    pub(super) fn find(&self, path: &[u8]) -> Result<Option<Guard>, HostLandError> {
        self.look(path)
            .map_err(HostLandError::step("look at", &self.path, path))
    }

    /// The names in a directory.
    pub(super) fn list(&self, path: &[u8]) -> rustix::io::Result<Vec<Vec<u8>>> {
        names(&self.directory(path)?)
    }
}

fn beneath(base: impl AsFd, path: &[u8], flags: OFlags) -> rustix::io::Result<OwnedFd> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_XDEV;
    loop {
        match openat2(&base, path, flags | OFlags::CLOEXEC, Mode::empty(), resolve) {
            // Something was renamed meanwhile.
            Err(Errno::AGAIN | Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Whether an error says that nothing is at a path, or that no way leads there any more.
pub(super) fn is_absent(errno: Errno) -> bool {
    matches!(
        errno,
        Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::XDEV
    )
}

impl Entry<'_> {
    pub(super) fn look(&self) -> rustix::io::Result<Option<Guard>> {
        look(&self.dir, self.name)
    }

    /// The thing itself, to change its metadata: links are not followed.
    pub(super) fn open(&self) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.dir, self.name, flags, Mode::empty())
    }
}

/// What has a name in an open directory.
pub(super) fn look(dir: impl AsFd, name: &[u8]) -> rustix::io::Result<Option<Guard>> {
    match statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) => Ok(Guard::of(&stat)),
        Err(Errno::NOENT) => Ok(None),
        Err(errno) => Err(errno),
    }
}

/// Renames to a name that nothing has.
pub(super) fn move_to(
    from: impl AsFd,
    name: &[u8],
    to: impl AsFd,
    new: &[u8],
) -> rustix::io::Result<()> {
    renameat_with(from, name, to, new, RenameFlags::NOREPLACE)
}

/// Has two names exchange what they mean.
pub(super) fn exchange(
    one: impl AsFd,
    name: &[u8],
    two: impl AsFd,
    other: &[u8],
) -> rustix::io::Result<()> {
    renameat_with(one, name, two, other, RenameFlags::EXCHANGE)
}

/// The names in an open directory.
pub(super) fn names(dir: &OwnedFd) -> rustix::io::Result<Vec<Vec<u8>>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
            names.push(name.to_vec());
        }
    }
    Ok(names)
}

/// A path of this process to an open file, for calls that take paths only.
pub(super) fn path_of(fd: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()))
}

/// A path of this process to a name in an open directory.
pub(super) fn path_in(dir: &OwnedFd, name: &[u8]) -> PathBuf {
    path_of(dir).join(OsStr::from_bytes(name))
}
