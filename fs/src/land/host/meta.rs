//! Mode, owner, time and extended attributes of a thing on the host.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Gid, Mode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmod,
    chownat, lgetxattr, listxattr, llistxattr, lremovexattr, lsetxattr, removexattr, setxattr,
    statat, utimensat,
};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::guard::{Guard, Instant};
use super::root::{path_in, path_of};
use super::steps::Bytes;
use crate::attr::{FileKind, Timestamp};

/// Largest list of names, and largest value, that Linux has.
const XATTR_MAX: usize = 64 << 10;

/// Attributes that are a thing's own, and are landed.
const PREFIXES: [&[u8]; 4] = [
    b"user.",
    b"trusted.",
    b"security.capability",
    b"system.posix_acl_",
];

/// How a call ended.
type Done = rustix::io::Result<()>;

/// The metadata of a thing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Meta {
    perm: u16,
    uid: u32,
    gid: u32,
    mtime: Instant,
    xattrs: Vec<(Bytes, Bytes)>,
}

impl Meta {
    /// Metadata with attributes in any order.
    #[must_use]
    pub fn new(
        perm: u16,
        uid: u32,
        gid: u32,
        mtime: Timestamp,
        xattrs: impl IntoIterator<Item = (Vec<u8>, Vec<u8>)>,
    ) -> Self {
        let xattrs = xattrs.into_iter().filter(|(name, _)| is_landed(name));
        let xattrs = xattrs.map(|(name, value)| (Bytes(name), Bytes(value)));
        let mut xattrs: Vec<_> = xattrs.collect();
        xattrs.sort();
        Self {
            perm,
            uid,
            gid,
            mtime: mtime.into(),
            xattrs,
        }
    }

    /// The same without set-id bits and capabilities. The set-group-id bit of a directory gives nobody
    /// anything.
    pub(super) fn without_privileges(mut self, kind: FileKind) -> Self {
        if kind != FileKind::Directory {
            self.perm &= 0o1777;
        }
        self.xattrs
            .retain(|(name, _)| name.0 != b"security.capability");
        self
    }

    /// The metadata of a thing now; links are not followed.
    ///
    /// # Errors
    /// When it cannot be read.
    pub fn at(path: &Path) -> io::Result<Self> {
        let stat = statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Self::from_stat(&stat, xattrs(path)?))
    }

    /// The metadata of an open file or directory now.
    pub(super) fn of_open(fd: &OwnedFd) -> io::Result<Self> {
        let stat = rustix::fs::fstat(fd)?;
        Ok(Self::from_stat(&stat, listed(&path_of(fd), false)?))
    }

    /// What something is once it has this metadata.
    pub(super) fn dated(&self, was: Guard) -> Guard {
        was.dated(self.mtime)
    }

    fn from_stat(stat: &Stat, xattrs: Vec<(Bytes, Bytes)>) -> Self {
        Self {
            perm: u16::try_from(stat.st_mode & 0o7777).unwrap_or(0),
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime: Instant(
                stat.st_mtime,
                u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            ),
            xattrs,
        }
    }

    /// The metadata of a name in an open directory.
    pub(super) fn of(dir: &OwnedFd, name: &[u8]) -> io::Result<Self> {
        Self::at(&path_in(dir, name))
    }

    /// Whether two things have the same metadata, but for their times. Only root sets owners.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        let owners = !is_root() || (self.uid, self.gid) == (other.uid, other.gid);
        owners && (self.perm, &self.xattrs) == (other.perm, &other.xattrs)
    }

    /// Whether something has the metadata that it was left with. What another user than root could not
    /// set does not count.
    pub(super) fn is_as_left(&self, left: &Self) -> bool {
        if is_root() {
            return self.is_like(left);
        }
        let perm = |meta: &Self| meta.perm & 0o1777;
        perm(self) == perm(left) && (self.xattrs == left.xattrs || self.xattrs.is_empty())
    }

    /// Whether this is seen on the way from one metadata to another: it takes several calls, and a
    /// crash may have been between them. Some of them change more than they are asked to: set-id bits
    /// and capabilities go with a change of owner, an ACL has the group's bits of the mode.
    pub(super) fn is_between(&self, before: &Self, after: &Self) -> bool {
        let sides = [before, after];
        let is_own = |name: &Bytes| name.0.starts_with(b"user.") || name.0.starts_with(b"trusted.");
        // Whoever is not root makes it writable for a moment.
        let mask = if is_root() { 0o1777 } else { 0o1077 };
        let perm = |meta: &Self| meta.perm & mask;
        let owners = sides.iter().any(|side| side.uid == self.uid)
            && sides.iter().any(|side| side.gid == self.gid);
        let present = self.xattrs.iter().filter(|(name, _)| is_own(name));
        let kept = before.xattrs.iter().filter(|(name, _)| is_own(name));
        (owners || !is_root())
            && sides.iter().any(|side| perm(side) == perm(self))
            && present
                .into_iter()
                .all(|one| sides.iter().any(|side| side.xattrs.contains(one)))
            && kept
                .into_iter()
                .all(|one| !after.xattrs.contains(one) || self.xattrs.contains(one))
    }

    /// Gives a new thing this metadata. Owners that this user may not set stay the user's, as with
    /// `cp -a`; so do attributes.
    pub(super) fn set_new(&self, dir: &OwnedFd, name: &[u8], kind: FileKind) -> io::Result<()> {
        let path = path_in(dir, name);
        self.set_owner(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
        // Before the mode, which may forbid it.
        let write = |name: &[u8], value: &[u8]| lsetxattr(&path, name, value, XattrFlags::empty());
        self.set_xattrs(&xattrs(&path)?, &write, &|name| lremovexattr(&path, name))?;
        if kind != FileKind::Symlink {
            chmod(&path, Mode::from_raw_mode(self.perm.into()))?;
        }
        self.set_time(dir, name)
    }

    /// Gives an open file or directory this metadata.
    pub(super) fn set_open(&self, fd: &OwnedFd) -> io::Result<()> {
        let path = path_of(fd);
        self.set_owner(fd, b"", AtFlags::EMPTY_PATH)?;
        let write = |name: &[u8], value: &[u8]| setxattr(&path, name, value, XattrFlags::empty());
        let present = listed(&path, false)?;
        if present != self.xattrs && !is_root() {
            make_writable(fd)?;
        }
        self.set_xattrs(&present, &write, &|name| removexattr(&path, name))?;
        chmod(&path, Mode::from_raw_mode(self.perm.into()))?;
        Ok(utimensat(CWD, &path, &self.times(), AtFlags::empty())?)
    }

    fn set_owner(&self, dir: &OwnedFd, name: &[u8], flags: AtFlags) -> io::Result<()> {
        let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
        match chownat(dir, name, Some(uid), Some(gid), flags) {
            // A group of one's own may be given away all the same.
            Err(Errno::PERM) if !is_root() => match chownat(dir, name, None, Some(gid), flags) {
                Err(Errno::PERM) => Ok(()),
                other => Ok(other?),
            },
            other => Ok(other?),
        }
    }

    fn set_xattrs(
        &self,
        present: &[(Bytes, Bytes)],
        write: &dyn Fn(&[u8], &[u8]) -> Done,
        remove: &dyn Fn(&[u8]) -> Done,
    ) -> io::Result<()> {
        let allowed = |done: Done| match done {
            Err(Errno::PERM | Errno::OPNOTSUPP) if !is_root() => Ok(()),
            Err(Errno::NODATA) => Ok(()),
            other => other,
        };
        for (name, _) in present {
            if !self.xattrs.iter().any(|(wanted, _)| wanted == name) {
                allowed(remove(&name.0))?;
            }
        }
        for one in &self.xattrs {
            if !present.contains(one) {
                allowed(write(&one.0.0, &one.1.0))?;
            }
        }
        Ok(())
    }

    fn set_time(&self, dir: &OwnedFd, name: &[u8]) -> io::Result<()> {
        Ok(utimensat(
            dir,
            name,
            &self.times(),
            AtFlags::SYMLINK_NOFOLLOW,
        )?)
    }

    fn times(&self) -> Timestamps {
        Timestamps {
            last_access: Timespec {
                tv_sec: 0,
                tv_nsec: UTIME_OMIT,
            },
            last_modification: Timespec {
                tv_sec: self.mtime.0,
                tv_nsec: self.mtime.1.into(),
            },
        }
    }
}

/// Lets the owner of an open file or directory change what is in it.
pub(super) fn make_writable(fd: &OwnedFd) -> io::Result<()> {
    let mode = Mode::from_raw_mode(rustix::fs::fstat(fd)?.st_mode & 0o7777);
    Ok(chmod(path_of(fd), mode | Mode::RWXU)?)
}

fn is_landed(attribute: &[u8]) -> bool {
    PREFIXES.iter().any(|prefix| attribute.starts_with(prefix))
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// The attributes of what a path names, sorted; a link's own.
fn xattrs(path: &Path) -> io::Result<Vec<(Bytes, Bytes)>> {
    listed(path, true)
}

fn listed(path: &Path, of_link: bool) -> io::Result<Vec<(Bytes, Bytes)>> {
    let mut list = vec![0; XATTR_MAX];
    let length = if of_link {
        llistxattr(path, &mut list[..])
    } else {
        listxattr(path, &mut list[..])
    };
    let length = match length {
        Err(Errno::OPNOTSUPP) => return Ok(Vec::new()),
        other => other?,
    };
    let mut found = Vec::new();
    for name in list[..length].split(|&byte| byte == 0) {
        if !is_landed(name) {
            continue;
        }
        let mut value = vec![0; XATTR_MAX];
        let read = if of_link {
            lgetxattr(path, name, &mut value[..])
        } else {
            rustix::fs::getxattr(path, name, &mut value[..])
        };
        match read {
            // Removed since it was listed.
            Err(Errno::NODATA) => {}
            length => {
                value.truncate(length?);
                found.push((Bytes(name.to_vec()), Bytes(value)));
            }
        }
    }
    found.sort();
    Ok(found)
}
