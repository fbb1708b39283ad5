//! Making everything new in the staging directory, where nobody sees it.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, linkat, makedev, mkdirat, mknodat, openat, readlinkat,
    statat, symlinkat,
};
use rustix::io::Errno;

use super::guard::Guard;
use super::meta::Meta;
use super::root::{Root, exchange, look};
use super::steps::{Staged, Steps};
use super::{HostLandError, NewKind, Source};
use crate::attr::FileKind;
use crate::fault;

/// The file in a staging directory that says how far the steps are.
pub(super) const TAKES: &[u8] = b"takes";
/// What it is called once everything is taken.
pub(super) const PUTS: &[u8] = b"puts";
/// Is exchanged with it once, to see whether that can be done.
const PROBE: &[u8] = b"probe";
/// Bytes written at once.
const CHUNK: usize = 1 << 20;
/// Up to so many things are synced one by one; more with all that the file system has to write.
const SYNC_EACH: usize = 32;

/// Makes the staging directory of a root.
pub(super) fn make(root: &Root, name: &str) -> Result<OwnedFd, HostLandError> {
    let failed =
        |source: io::Error| HostLandError::step("make", &root.path, name.as_bytes())(source);
    mkdirat(root.fd(), name, Mode::RWXU).map_err(|errno| failed(errno.into()))?;
    fault::step();
    let staging = match open(root, name) {
        Ok(staging) => staging,
        Err(error) => {
            // A file system that decides itself who owns what.
            rustix::fs::unlinkat(root.fd(), name, AtFlags::REMOVEDIR)
                .map_err(|errno| failed(errno.into()))?;
            return Err(failed(error));
        }
    };
    for file in [TAKES, PROBE] {
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        openat(&staging, file, flags, Mode::RUSR).map_err(|errno| failed(errno.into()))?;
    }
    // Not every file system can, and later would be too late.
    exchange(&staging, TAKES, &staging, PROBE)
        .and_then(|()| rustix::fs::unlinkat(&staging, PROBE, AtFlags::empty()))
        .map_err(HostLandError::step(
            "exchange names in",
            &root.path,
            name.as_bytes(),
        ))?;
    Ok(staging)
}

/// Opens a staging directory, if it is this user's own.
pub(super) fn open(root: &Root, name: &str) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let staging = openat(root.fd(), name, flags, Mode::empty())?;
    let stat = rustix::fs::fstat(&staging)?;
    let is_own = stat.st_uid == rustix::process::geteuid().as_raw();
    if !is_own || stat.st_mode & 0o022 != 0 {
        return Err(io::ErrorKind::PermissionDenied.into());
    }
    Ok(staging)
}

/// Makes everything new, and notes in the steps what it is.
pub(super) fn fill(
    root: &Root,
    staging: &OwnedFd,
    steps: &mut Steps,
    source: &dyn Source,
    kept: &Path,
) -> Result<(), HostLandError> {
    let each = steps.staged.len() <= SYNC_EACH;
    // A link needs what it links to.
    let (links, others): (Vec<_>, Vec<_>) = steps
        .staged
        .iter()
        .partition(|staged| matches!(staged.new.kind, NewKind::Link { .. }));
    for staged in others.into_iter().chain(links) {
        let failed = HostLandError::step("stage", &root.path, &staged.path);
        let done = one(staging, staged, steps, source, kept)
            .and_then(|()| if each { sync(staging, staged) } else { Ok(()) });
        done.map_err(failed)?;
        fault::step();
    }
    let synced = if each {
        rustix::fs::fsync(staging)
    } else {
        rustix::fs::syncfs(staging)
    };
    synced.map_err(HostLandError::step("sync", &root.path, b"."))?;
    let is = |name: &str| {
        look(staging, name.as_bytes()).map_err(HostLandError::step(
            "look at",
            &root.path,
            name.as_bytes(),
        ))
    };
    for swap in &mut steps.swaps {
        swap.is = is(&swap.with)?;
    }
    for put in steps.puts.iter_mut().filter(|put| put.is.is_none()) {
        put.is = is(&put.from)?;
    }
    let new: Vec<Option<Guard>> = steps
        .metas
        .iter()
        .map(|meta| match meta.is {
            Some(seen) => Ok(Some(seen)),
            None => steps
                .staged_at(&meta.path.0)
                .map_or(Ok(None), |staged| is(&staged.name)),
        })
        .collect::<Result<_, _>>()?;
    for (meta, is) in steps.metas.iter_mut().zip(new) {
        meta.is = is;
    }
    Ok(())
}

fn one(
    staging: &OwnedFd,
    staged: &Staged,
    steps: &Steps,
    source: &dyn Source,
    kept: &Path,
) -> io::Result<()> {
    let name = staged.name.as_bytes();
    let new = &staged.new;
    match &new.kind {
        NewKind::File { contents, size } => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let file = File::from(openat(staging, name, flags, Mode::RUSR | Mode::WUSR)?);
            write(&file, *contents, *size, source)?;
        }
        NewKind::Link { to } => {
            let linked = steps.staged_at(to).ok_or(io::ErrorKind::NotFound)?;
            linkat(
                staging,
                linked.name.as_str(),
                staging,
                name,
                AtFlags::empty(),
            )?;
            return Ok(());
        }
        NewKind::Symlink { target } => symlinkat(&target[..], staging, name)?,
        // Its own mode keeps nobody from filling it before it is set at the end.
        NewKind::Directory => return Ok(mkdirat(staging, name, Mode::RWXU)?),
        NewKind::Special { kind, rdev } => {
            mknodat(staging, name, file_type(*kind)?, Mode::RUSR, device(*rdev))?;
        }
        NewKind::Kept {
            landing, name: of, ..
        } => {
            let dir = kept.join(landing.to_string());
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
            let dir = openat(CWD, &dir, flags, Mode::empty())?;
            return link_or_copy(&dir, of.as_bytes(), staging, name);
        }
    }
    new.meta.set_new(staging, name, new.kind.kind())
}

fn sync(staging: &OwnedFd, staged: &Staged) -> io::Result<()> {
    if staged.new.kind.kind() != FileKind::File {
        return Ok(());
    }
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match openat(staging, staged.name.as_str(), flags, Mode::empty()) {
        Ok(file) => Ok(rustix::fs::fsync(&file)?),
        // A file whose mode keeps its owner out.
        Err(Errno::ACCESS) => Ok(rustix::fs::syncfs(staging)?),
        Err(errno) => Err(errno.into()),
    }
}

/// Writes what has data and leaves the rest a hole.
fn write(file: &File, contents: u64, size: u64, source: &dyn Source) -> io::Result<()> {
    file.set_len(size)?;
    let mut buffer = Vec::with_capacity(CHUNK);
    let mut at = 0;
    while let Some(range) = source.data(contents, at)? {
        let end = range.end.min(size);
        let mut from = range.start.max(at);
        while from < end {
            let length = CHUNK.min(usize::try_from(end - from).unwrap_or(CHUNK));
            buffer.clear();
            source.read(contents, from, length, &mut buffer)?;
            if buffer.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            file.write_all_at(&buffer, from)?;
            from += buffer.len() as u64;
        }
        if end <= at {
            break;
        }
        at = end;
    }
    Ok(())
}

/// Gives a thing another name in another directory, or, on another file system, a copy of it.
pub(super) fn link_or_copy(
    from: &OwnedFd,
    name: &[u8],
    to: &OwnedFd,
    new: &[u8],
) -> io::Result<()> {
    if kind_of(from, name)? != FileKind::Directory {
        match linkat(from, name, to, new, AtFlags::empty()) {
            // Another file system, or one that has no links, or a file of somebody else.
            Err(Errno::XDEV | Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP) => {}
            linked => return Ok(linked?),
        }
    }
    copy(from, name, to, new)
}

fn kind_of(dir: &OwnedFd, name: &[u8]) -> io::Result<FileKind> {
    let stat = statat(dir, name, AtFlags::SYMLINK_NOFOLLOW)?;
    FileKind::from_mode(stat.st_mode).ok_or_else(|| io::ErrorKind::InvalidData.into())
}

/// Copies a thing with its metadata, a directory without what is in it, a file with its holes.
pub(super) fn copy(from: &OwnedFd, name: &[u8], to: &OwnedFd, new: &[u8]) -> io::Result<()> {
    let stat = statat(from, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let kind = kind_of(from, name)?;
    match kind {
        FileKind::File => {
            let read = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let source = File::from(openat(from, name, read, Mode::empty())?);
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let target = File::from(openat(to, new, flags, Mode::RUSR | Mode::WUSR)?);
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            write(&target, 0, size, &Opened(source))?;
        }
        FileKind::Directory => mkdirat(to, new, Mode::RWXU)?,
        FileKind::Symlink => symlinkat(&readlinkat(from, name, Vec::new())?, to, new)?,
        _ => mknodat(to, new, file_type(kind)?, Mode::RUSR, stat.st_rdev)?,
    }
    Meta::of(from, name)?.set_new(to, new, kind)
}

/// An open file as a source.
struct Opened(File);

impl Source for Opened {
    fn read(&self, _: u64, offset: u64, len: usize, out: &mut Vec<u8>) -> io::Result<()> {
        let begin = out.len();
        out.resize(begin + len, 0);
        let read = self.0.read_at(&mut out[begin..], offset)?;
        out.truncate(begin + read);
        Ok(())
    }

    fn data(&self, _: u64, from: u64) -> io::Result<Option<std::ops::Range<u64>>> {
        use rustix::fs::{SeekFrom, seek};
        let start = match seek(&self.0, SeekFrom::Data(from)) {
            Err(Errno::NXIO) => return Ok(None),
            start => start?,
        };
        Ok(Some(start..seek(&self.0, SeekFrom::Hole(start))?))
    }
}

fn file_type(kind: FileKind) -> io::Result<FileType> {
    Ok(match kind {
        FileKind::Fifo => FileType::Fifo,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharacterDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
        _ => return Err(io::ErrorKind::InvalidInput.into()),
    })
}

/// A device number from the kernel's 32-bit encoding (`new_decode_dev` in `linux/kdev_t.h`).
pub(super) fn device(encoded: u32) -> u64 {
    let major = (encoded >> 8) & 0xfff;
    let minor = (encoded & 0xff) | ((encoded >> 12) & 0xf_ff00);
    makedev(major, minor)
}
