//! Taking a directory of the host in: its names, and what is known of each, become rows of the base.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{Dir, OFlags, Statx, readlinkat};
use rustix::io::Errno;

use super::{Base, Bases, Place, changed, host, host_object};
use crate::attr::{Attr, FileKind, Timestamp};
use crate::catalog::CatalogError;
use crate::change::{
    BLOCK_END, Change, ContentKind, EntryRow, HostRow, HostState, InodeRow, Name, Row, Seen,
};
use crate::contents::ContentsError;
use crate::core::Core;
use crate::dispatch::OpError;
use crate::id::{Ino, LayerId};

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
    /// Its mount and device.
    mount: u64,
    dev: u64,
    /// What mount points in it are shown as having.
    owner: Owner,
    path: PathBuf,
    change: Change,
    /// Files with several names that were met here.
    links: HashMap<(u64, u64), (Ino, Seen)>,
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
    let found = match opened {
        Err(error @ ContentsError::HostChanged { .. }) => {
            bases.report(dir, base.layer);
            return Err(error.into());
        }
        other => other?,
    };
    let stat = host::look(found.as_fd(), Path::new("")).map_err(failed())?;
    if !row.seen.is_same_file(&host::seen(&stat), base.same_boot) {
        bases.report(dir, base.layer);
        return Err(OpError::Contents(changed(path)));
    }
    let flags = OFlags::RDONLY | OFlags::DIRECTORY;
    let fd = host::reopen(found.as_fd(), flags).map_err(failed())?;
    let names = names(&fd).map_err(failed())?;
    let excluded = (!base.exclude.is_empty())
        .then(|| bases.shown_at(base, &place))
        .transpose()?;
    let mut listing = Listing {
        bases,
        core,
        layer: base.layer,
        dir,
        fd,
        mount: stat.stx_mnt_id,
        dev: host::device(&stat),
        owner: Owner {
            uid: stat.stx_uid,
            gid: stat.stx_gid,
            mtime: host::statx_time(stat.stx_mtime),
        },
        path,
        change: Change::new(),
        links: HashMap::new(),
    };
    // What an interrupted listing left.
    listing.change.push(Row::DropEntries {
        parent: dir,
        layer: base.layer,
    });
    for (name, kind) in names {
        if let Some(shown) = &excluded
            && base.exclude.leaves_out(
                &shown.join(as_path(&name)),
                kind == Some(FileKind::Directory),
            )
        {
            continue;
        }
        listing.name(&name, kind)?;
        if listing.change.len() >= BATCH {
            core.catalog.apply(&listing.change)?;
            listing.change = Change::new();
        }
    }
    listing.change.push(Row::SetHostState {
        ino: dir,
        layer: base.layer,
        state: HostState::Taken,
    });
    core.catalog.apply(&listing.change)?;
    Ok(())
}

fn as_path(name: &[u8]) -> &Path {
    use std::os::unix::ffi::OsStrExt;
    Path::new(std::ffi::OsStr::from_bytes(name))
}

/// Names in a directory, with their kinds where the file system tells.
fn names(fd: &OwnedFd) -> Result<Vec<(Vec<u8>, Option<FileKind>)>, Errno> {
    let mut names = Vec::new();
    for entry in Dir::read_from(fd)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if name != b"." && name != b".." {
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
    /// Takes one name in. One that is gone by now is not.
    fn name(&mut self, name: &[u8], kind: Option<FileKind>) -> Result<(), OpError> {
        let path = as_path(name);
        let shown = self.path.join(path);
        let failed = || ContentsError::host("look at", &shown);
        // Before a server is asked: this may be a mount of this very process.
        if kind.is_none_or(|kind| kind == FileKind::Directory) {
            match host::mount_of(self.fd.as_fd(), path) {
                Err(Errno::NOENT) => return Ok(()),
                mount if mount.map_err(failed())? != self.mount => {
                    return self.elsewhere(name, FileKind::Directory);
                }
                _ => {}
            }
        }
        let stat = match host::look(self.fd.as_fd(), path) {
            Err(Errno::NOENT) => return Ok(()),
            other => other.map_err(failed())?,
        };
        let Some(kind) = FileKind::from_mode(u32::from(stat.stx_mode)) else {
            return Ok(());
        };
        let directory = kind == FileKind::Directory;
        if stat.stx_mnt_id != self.mount || (directory && host::device(&stat) != self.dev) {
            return self.elsewhere(name, kind);
        }
        if directory && self.bases.is_own(host::device(&stat), stat.stx_ino) {
            return self.elsewhere(name, kind);
        }
        let seen = host::seen(&stat);
        if let Some(ino) = self.linked(kind, &seen)? {
            return self.entry(name, ino, kind);
        }
        self.file(name, kind, &stat, seen)
    }

    /// A file or directory that was not met before.
    fn file(
        &mut self,
        name: &[u8],
        kind: FileKind,
        stat: &Statx,
        seen: Seen,
    ) -> Result<(), OpError> {
        let shown = self.path.join(as_path(name));
        let failed = |action| ContentsError::host(action, &shown);
        let target = match kind {
            FileKind::Symlink => match readlinkat(&self.fd, as_path(name), Vec::new()) {
                Err(Errno::NOENT | Errno::INVAL) => return Ok(()),
                other => Some(other.map_err(failed("read"))?.into_bytes()),
            },
            _ => None,
        };
        let xattrs = match host::xattrs(self.fd.as_fd(), Some(name)) {
            Err(Errno::NOENT) => return Ok(()),
            other => other.map_err(failed("read the attributes of"))?,
        };
        let (ino, layer) = (self.core.numbers.ino()?, self.layer);
        let mut row = inode_row(stat, kind, self.dir, layer, !xattrs.is_empty());
        if let Some(target) = target {
            // What was read may be newer than what was looked at.
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
        self.change.push(Row::PutHost {
            ino,
            layer,
            host: HostRow {
                parent: self.dir,
                name: Name::from(name),
                seen,
                state: if to_take {
                    HostState::InPlace
                } else {
                    HostState::Taken
                },
                changed: false,
            },
        });
        if seen.links > 1 && kind != FileKind::Directory {
            self.links.insert((seen.dev, seen.inode), (ino, seen));
        }
        self.entry(name, ino, kind)
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

    /// What is mounted there, or the store itself, is not taken in: an empty directory or file
    /// stands for it.
    fn elsewhere(&mut self, name: &[u8], kind: FileKind) -> Result<(), OpError> {
        let directory = kind == FileKind::Directory;
        let kind = if directory { kind } else { FileKind::File };
        let (ino, layer, owner) = (self.core.numbers.ino()?, self.layer, self.owner);
        let row = InodeRow {
            attr: Attr {
                kind,
                perm: if directory { 0o755 } else { 0o644 },
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
        xattrs: host::xattrs(dir.as_fd(), Some(b"."))?,
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
