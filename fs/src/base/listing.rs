//! Taking a directory of the host in: its names, and what is known of each, become rows of the base.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Dir, OFlags, Statx, readlinkat};
use rustix::io::Errno;

use super::exclude::Exclude;
use super::host::Devices;
use super::{Base, Bases, Place, changed, host, host_object};
use crate::attr::{Attr, FileKind, Timestamp};
use crate::catalog::CatalogError;
use crate::change::{
    BLOCK_END, Change, ContentKind, EntryRow, HostRow, HostState, InodeRow, Name, Row, Seen,
};
use crate::contents::ContentsError;
use crate::core::Core;
use crate::dispatch::OpError;
use crate::engine::FILE_NAME_MAX;
use crate::id::{Ino, LayerId};
use crate::land::host::STAGING;

/// Rows in one transaction: others are not kept waiting for the writer for long.
const BATCH: usize = 512;
/// Size of a directory, as the engine's own have it.
const DIRECTORY_SIZE: u64 = 4096;

/// A directory being taken in.
struct Listing<'a> {
    bases: &'a Bases,
    core: &'a Core,
    layer: LayerId,
    dir: Ino,
    fd: OwnedFd,
    dev: u64,
    devices: Devices,
    /// What stands for what is not taken in belongs to the directory's owner.
    owner: Owner,
    path: PathBuf,
    /// Tells what is left out for its permissions.
    hides: Option<&'a Exclude>,
    change: Change,
    /// Files with several names that were met here.
    links: HashMap<(u64, u64), (Ino, Seen)>,
    /// What an interrupted listing left, by name.
    leftover: HashMap<Name, Ino>,
}

#[derive(Clone, Copy)]
struct Owner {
    uid: u32,
    gid: u32,
    mtime: Timestamp,
}

/// Takes a directory in. The caller holds the base's mutex for that.
pub(super) fn take_in(
    bases: &Bases,
    core: &Core,
    base: &Base,
    dir: Ino,
    row: &HostRow,
) -> Result<(), OpError> {
    let place = bases.place_of_dir(base, dir)?;
    let path = place.path();
    let failed = || ContentsError::host("list", &path);
    let opened = bases.open_place(base, &place, OFlags::PATH | OFlags::DIRECTORY);
    let (found, devices) = match opened {
        Err(error @ ContentsError::HostChanged { .. }) => {
            bases.report(dir, base.layer);
            return Err(error.into());
        }
        other => other?,
    };
    let stat = host::look(found.as_fd(), Path::new("")).map_err(failed())?;
    if !row.seen.is_same_file(&host::seen(&stat), devices) {
        bases.report(dir, base.layer);
        return Err(OpError::Contents(changed(path)));
    }
    // It was public when its name was taken in; the host may have closed it since.
    let hidden = base.exclude.as_ref();
    if hidden.is_some_and(|exclude| exclude.hides(FileKind::Directory, stat.stx_mode.into())) {
        bases.report(dir, base.layer);
        return Err(OpError::Contents(changed(path)));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd = host::reopen(found.as_fd(), flags).map_err(failed())?;
    let names = names(&fd).map_err(failed())?;
    let exclude = base.exclude.as_ref().filter(|exclude| !exclude.is_empty());
    let excluded = exclude
        .map(|exclude| Ok::<_, CatalogError>((exclude, bases.shown_at(base, &place)?)))
        .transpose()?;
    let mut listing = Listing {
        bases,
        core,
        layer: base.layer,
        dir,
        fd,
        dev: host::device(&stat),
        devices,
        owner: Owner {
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            mtime: host::statx_time(stat.stx_mtime),
        },
        path,
        hides: base.exclude.as_ref(),
        change: Change::new(),
        links: HashMap::new(),
        leftover: HashMap::new(),
    };
    listing.take_over_leftover()?;
    for (name, kind) in names {
        let left_out = |directory: bool| {
            excluded.as_ref().is_some_and(|(exclude, shown)| {
                exclude.leaves_out(&shown.join(as_path(&name)), directory)
            })
        };
        listing.name(&name, kind, &left_out)?;
        if listing.change.len() >= BATCH {
            listing.apply()?;
        }
    }
    listing.drop_leftover();
    listing.change.push(Row::SetHostState {
        ino: dir,
        layer: base.layer,
        state: HostState::Taken,
    });
    Ok(listing.apply()?)
}

fn as_path(name: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(name))
}

/// A name in a directory, with its kind where the file system tells.
type Listed = (Vec<u8>, Option<FileKind>);

/// Names in a directory.
fn names(fd: &OwnedFd) -> Result<Vec<Listed>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name.len() > FILE_NAME_MAX {
            // Some file systems have longer ones than Linux lets anybody look up.
            tracing::warn!(name = %name.escape_ascii(), "a name is too long to be taken in");
        } else if name != b"." && name != b".." && !name.starts_with(STAGING.as_bytes()) {
            let kind = FileKind::from_mode(entry.file_type().as_raw_mode());
            names.push((name.to_vec(), kind));
        }
    }
    Ok(names)
}

/// The row of a file of the host, but for its contents.
fn inode_row(
    stat: &Statx,
    kind: FileKind,
    parent: Ino,
    layer: LayerId,
    has_xattr: bool,
) -> InodeRow {
    let directory = kind == FileKind::Directory;
    let device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
    let rdev = rustix::fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor);
    let regular = kind == FileKind::File;
    InodeRow {
        attr: Attr {
            kind,
            perm: stat.stx_mode & 0o7777,
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            nlink: if directory { 1 } else { stat.stx_nlink.max(1) },
            rdev: if device { host::kernel_device(rdev) } else { 0 },
            size: match kind {
                FileKind::Directory => DIRECTORY_SIZE,
                FileKind::File | FileKind::Symlink => stat.stx_size,
                _ => 0,
            },
            blocks: if regular { stat.stx_blocks } else { 0 },
            atime: host::statx_time(stat.stx_atime),
            mtime: host::statx_time(stat.stx_mtime),
            ctime: host::statx_time(stat.stx_ctime),
            btime: host::birth(stat).unwrap_or(host::statx_time(stat.stx_ctime)),
        },
        born: layer,
        parent: if directory { parent } else { Ino(0) },
        content: match kind {
            FileKind::Directory => ContentKind::Host,
            FileKind::File if stat.stx_size > 0 => ContentKind::Extents,
            FileKind::Symlink => ContentKind::Inline,
            _ => ContentKind::Empty,
        },
        has_xattr,
    }
}

impl Listing<'_> {
    fn apply(&mut self) -> Result<(), CatalogError> {
        let change = std::mem::take(&mut self.change);
        self.core.catalog.apply(&change)
    }

    /// What an interrupted listing left is written anew, with the numbers that it has.
    fn take_over_leftover(&mut self) -> Result<(), CatalogError> {
        let left = self.core.catalog.names_of(self.dir, self.layer)?;
        for (name, ino, links) in left {
            // One with several names may have been met elsewhere since.
            if links < 2 {
                self.leftover.insert(name, ino);
            }
        }
        self.change.push(Row::DropEntries {
            parent: self.dir,
            layer: self.layer,
        });
        Ok(())
    }

    fn drop_leftover(&mut self) {
        for (_, ino) in std::mem::take(&mut self.leftover) {
            self.drop_rows(ino);
            let layer = self.layer;
            self.change.push(Row::DropInode { ino, layer });
        }
    }

    /// Forgets what belongs to an inode, but not the inode itself.
    fn drop_rows(&mut self, ino: Ino) {
        let layer = self.layer;
        self.change.push(Row::DropHost { ino, layer });
        self.change.push(Row::DropXattrs { ino, layer });
        self.change.push(Row::DropInline { ino, layer });
        self.change.push(Row::DropExtents { ino, layer });
    }

    /// A number for what has a name here.
    fn number(&mut self, name: &[u8]) -> Result<Ino, CatalogError> {
        match self.leftover.remove(name) {
            Some(ino) => {
                self.drop_rows(ino);
                Ok(ino)
            }
            None => self.core.numbers.ino(),
        }
    }

    /// Takes one name in. One that is gone by now is not; one that cannot be looked at does not keep
    /// the others from being seen.
    fn name(
        &mut self,
        name: &[u8],
        kind: Option<FileKind>,
        left_out: &dyn Fn(bool) -> bool,
    ) -> Result<(), OpError> {
        let found = match self.open(name) {
            Err(Errno::NOENT) => return Ok(()),
            // Something is mounted there; no server is asked what it is.
            Err(Errno::XDEV) if left_out(kind == Some(FileKind::Directory)) => return Ok(()),
            Err(Errno::XDEV) => return self.stand_in(name, kind, false),
            Err(errno) => return self.unreadable(name, kind, errno, left_out),
            Ok(found) => found,
        };
        let stat = match host::look(found.as_fd(), Path::new("")) {
            Err(errno) => return self.unreadable(name, kind, errno, left_out),
            Ok(stat) => stat,
        };
        let Some(kind) = FileKind::from_mode(u32::from(stat.stx_mode)) else {
            return Ok(());
        };
        let directory = kind == FileKind::Directory;
        let hidden = self
            .hides
            .is_some_and(|exclude| exclude.hides(kind, stat.stx_mode.into()));
        if hidden || left_out(directory) {
            return Ok(());
        }
        let dev = host::device(&stat);
        if directory && (dev != self.dev || self.bases.is_own(dev, stat.stx_ino)) {
            return self.stand_in(name, Some(kind), false);
        }
        let mut seen = host::seen(&stat);
        seen.dev = self.devices.record(seen.dev);
        if let Some(ino) = self.linked(kind, &seen)? {
            return self.entry(name, ino, kind);
        }
        match details(&found, kind) {
            Ok((target, xattrs)) => self.file(name, (kind, &stat, seen), target, xattrs),
            Err(errno) => self.unreadable(name, Some(kind), errno, left_out),
        }
    }

    /// Opens what has a name, to look at only: nothing is asked to do anything by that, and nothing
    /// that is mounted there is met.
    fn open(&self, name: &[u8]) -> Result<OwnedFd, Errno> {
        let name = [Name::from(name)];
        host::open_beneath(self.fd.as_fd(), &name, OFlags::PATH)
    }

    fn unreadable(
        &mut self,
        name: &[u8],
        kind: Option<FileKind>,
        errno: Errno,
        left_out: &dyn Fn(bool) -> bool,
    ) -> Result<(), OpError> {
        if left_out(kind == Some(FileKind::Directory)) {
            return Ok(());
        }
        let path = self.path.join(as_path(name));
        tracing::warn!(path = %path.display(), %errno, "cannot be looked at and is not taken in");
        self.stand_in(name, kind, true)
    }

    /// A file or directory that was not met before.
    fn file(
        &mut self,
        name: &[u8],
        (kind, stat, seen): (FileKind, &Statx, Seen),
        target: Option<Vec<u8>>,
        xattrs: host::Xattrs,
    ) -> Result<(), OpError> {
        let (ino, layer) = (self.number(name)?, self.layer);
        let mut row = inode_row(stat, kind, self.dir, layer, !xattrs.is_empty());
        if let Some(target) = target {
            row.attr.size = target.len() as u64;
            self.change.push(Row::PutInline {
                ino,
                layer,
                data: Arc::from(target),
            });
        }
        if row.content == ContentKind::Extents {
            self.change.push(Row::PutExtent {
                ino,
                layer,
                start: 0,
                end: BLOCK_END,
                object: Some(host_object(ino)),
            });
        }
        let to_take = matches!(row.content, ContentKind::Extents | ContentKind::Host);
        self.change.push(Row::PutInode {
            ino,
            layer,
            row: Some(row),
        });
        push_xattrs(&mut self.change, ino, layer, xattrs);
        self.host(name, ino, seen, !to_take, false);
        if seen.links > 1 && kind != FileKind::Directory {
            self.links.insert((seen.dev, seen.inode), (ino, seen));
        }
        self.entry(name, ino, kind)
    }

    fn host(&mut self, name: &[u8], ino: Ino, seen: Seen, taken: bool, changed: bool) {
        self.change.push(Row::PutHost {
            ino,
            layer: self.layer,
            host: HostRow {
                parent: self.dir,
                name: Name::from(name),
                seen,
                state: if taken {
                    HostState::Taken
                } else {
                    HostState::InPlace
                },
                changed,
            },
        });
    }

    /// The inode of a file that has been met under another name, and is still the same.
    fn linked(&self, kind: FileKind, seen: &Seen) -> Result<Option<Ino>, OpError> {
        if seen.links < 2 || kind == FileKind::Directory {
            return Ok(None);
        }
        if let Some((ino, before)) = self.links.get(&(seen.dev, seen.inode)) {
            return Ok((before == seen).then_some(*ino));
        }
        let known = self.core.catalog.host_links(self.layer, seen)?;
        let same = known.into_iter().find(|(_, before)| before == seen);
        Ok(same.map(|(ino, _)| ino))
    }

    fn entry(&mut self, name: &[u8], ino: Ino, kind: FileKind) -> Result<(), OpError> {
        self.change.push(Row::PutEntry {
            parent: self.dir,
            name: Name::from(name),
            layer: self.layer,
            entry: Some(EntryRow {
                ino,
                kind,
                cookie: self.core.numbers.cookie()?,
                shadows: false,
            }),
        });
        Ok(())
    }

    /// An empty directory or file stands for what is mounted there, for the store itself, and for
    /// what cannot be looked at; nobody may open the last, and it is reported.
    fn stand_in(
        &mut self,
        name: &[u8],
        kind: Option<FileKind>,
        unreadable: bool,
    ) -> Result<(), OpError> {
        let directory = kind.is_none_or(|kind| kind == FileKind::Directory);
        let kind = if directory {
            FileKind::Directory
        } else {
            FileKind::File
        };
        let (ino, layer, owner) = (self.number(name)?, self.layer, self.owner);
        if unreadable {
            self.host(name, ino, Seen::NOTHING, true, true);
        }
        let row = InodeRow {
            attr: Attr {
                kind,
                perm: match (unreadable, directory) {
                    (true, _) => 0,
                    (false, true) => 0o755,
                    (false, false) => 0o644,
                },
                uid: owner.uid,
                gid: owner.gid,
                nlink: if directory { 2 } else { 1 },
                rdev: 0,
                size: if directory { DIRECTORY_SIZE } else { 0 },
                blocks: 0,
                atime: owner.mtime,
                mtime: owner.mtime,
                ctime: owner.mtime,
                btime: owner.mtime,
            },
            born: layer,
            parent: if directory { self.dir } else { Ino(0) },
            content: ContentKind::Empty,
            has_xattr: false,
        };
        self.change.push(Row::PutInode {
            ino,
            layer,
            row: Some(row),
        });
        self.entry(name, ino, kind)
    }
}

/// What is read of a file besides its attributes: where a link leads, extended attributes.
fn details(found: &OwnedFd, kind: FileKind) -> Result<(Option<Vec<u8>>, host::Xattrs), Errno> {
    let target = match kind {
        FileKind::Symlink => Some(readlinkat(found, "", Vec::new())?.into_bytes()),
        _ => None,
    };
    Ok((target, host::xattrs(found.as_fd(), None, true)?))
}

/// A directory that is named when a base is made.
pub(crate) struct NamedDir {
    /// Its row, but for where it is.
    pub(crate) row: InodeRow,
    pub(crate) seen: Seen,
    pub(crate) xattrs: host::Xattrs,
}

/// Looks at a directory that is to be named.
pub(crate) fn look_at_named(dir: &OwnedFd) -> Result<NamedDir, Errno> {
    let stat = host::look(dir.as_fd(), Path::new(""))?;
    Ok(NamedDir {
        row: inode_row(&stat, FileKind::Directory, Ino::ROOT, LayerId(0), false),
        seen: host::seen(&stat),
        xattrs: host::xattrs(dir.as_fd(), None, true)?,
    })
}

/// Adds the rows of extended attributes.
pub(crate) fn push_xattrs(change: &mut Change, ino: Ino, layer: LayerId, xattrs: host::Xattrs) {
    for (name, value) in xattrs {
        change.push(Row::PutXattr {
            ino,
            name: Name::from(name),
            layer,
            value: Some(Arc::from(value)),
        });
    }
}

impl Bases {
    /// Where in the workspace a directory of the host is shown.
    fn shown_at(&self, base: &Base, place: &Place) -> Result<PathBuf, CatalogError> {
        let mut shown = self.shown_at_root(base.layer, place.root())?;
        shown.push(place.below_root());
        Ok(shown)
    }

    /// Where in the workspace a named directory is shown.
    pub(crate) fn shown_at_root(&self, layer: LayerId, root: Ino) -> Result<PathBuf, CatalogError> {
        let mut names = Vec::new();
        let mut at = root;
        while at != Ino::ROOT {
            let damaged = || CatalogError::Damaged {
                what: format!("directory {at} of base {layer} has no place"),
            };
            let row = self.catalog.inode_at(at, layer)?.ok_or_else(damaged)?;
            let name = self.catalog.name_in(row.parent, at, layer)?;
            names.push(name.ok_or_else(damaged)?);
            at = row.parent;
        }
        let mut shown = PathBuf::from("/");
        shown.extend(names.iter().rev().map(|name| as_path(name)));
        Ok(shown)
    }
}
