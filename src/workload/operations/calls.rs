//! The system calls that the operations make, with what they show of the file system as a number.

use std::fs::{self, OpenOptions};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

use rustix::fs::{AtFlags, FallocateFlags, FileType, Mode, Timespec, Timestamps, XattrFlags};

/// What was seen, as one number.
pub(super) fn digest(value: impl Hash) -> u64 {
    let mut hasher = DefaultHasher::new();
    value.hash(&mut hasher);
    hasher.finish()
}

/// Opens for writing without following a symbolic link or waiting for a FIFO's reader.
pub(super) fn no_follow(path: &Path, options: &mut OpenOptions) -> io::Result<fs::File> {
    no_wait(options).write(true).open(path)
}

fn no_wait(options: &mut OpenOptions) -> &mut OpenOptions {
    options.custom_flags(libc::O_NOFOLLOW | libc::O_NONBLOCK)
}

pub(super) fn write_once(mut file: &fs::File, data: &[u8]) -> io::Result<()> {
    use std::io::Write;
    file.write_all(data)
}

pub(super) fn allocate(
    file: &fs::File,
    flags: FallocateFlags,
    offset: u64,
    len: usize,
) -> io::Result<()> {
    Ok(rustix::fs::fallocate(file, flags, offset, len as u64)?)
}

/// The contents of a file, up to a size that no operation exceeds.
pub(super) fn read(path: &Path) -> io::Result<u64> {
    let mut options = OpenOptions::new();
    // A FIFO would keep a reader waiting.
    let file = no_wait(&mut options).read(true).open(path)?;
    read_open(&file)
}

/// The contents of an open file.
pub(super) fn read_open(file: &fs::File) -> io::Result<u64> {
    let mut bytes = vec![0; 1 << 20];
    let len = file.read_at(&mut bytes, 0)?;
    Ok(digest(&bytes[..len]))
}

/// The names in a directory.
pub(super) fn list(path: &Path) -> io::Result<u64> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.push(entry?.file_name());
    }
    names.sort();
    Ok(digest(names))
}

/// What `stat` tells of a file, but for what a file system chooses by itself.
pub(super) fn stat(meta: &fs::Metadata) -> u64 {
    let size = if meta.is_dir() { 0 } else { meta.size() };
    let owner = (meta.uid(), meta.gid());
    digest((meta.mode(), meta.nlink(), size, owner, meta.rdev()))
}

/// Where a symbolic link leads.
pub(super) fn read_link(path: &Path) -> io::Result<u64> {
    Ok(digest(fs::read_link(path)?.as_os_str().as_bytes()))
}

/// Copies within the kernel, until it will not copy more.
pub(super) fn copy(from: &fs::File, to: &fs::File, offset: u64, len: usize) -> io::Result<u64> {
    let (mut source, mut target, mut copied) = (offset / 2, offset, 0);
    while copied < len {
        let rest = len - copied;
        let more =
            rustix::fs::copy_file_range(from, Some(&mut source), to, Some(&mut target), rest)?;
        if more == 0 {
            break;
        }
        copied += more;
    }
    Ok(copied as u64)
}

/// Gives a file to another owner or group, or to root again.
pub(super) fn chown(path: &Path, data: &[u8]) -> io::Result<()> {
    let id = |byte: u8| match byte % 3 {
        0 => None,
        1 => Some(0),
        _ => Some(65534),
    };
    std::os::unix::fs::lchown(path, id(data[0]), id(data[data.len() - 1]))
}

pub(super) fn make_fifo(path: &Path) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o644);
    Ok(rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        FileType::Fifo,
        mode,
        0,
    )?)
}

pub(super) fn chmod(path: &Path, data: &[u8]) -> io::Result<()> {
    // Directories stay searchable; set-id bits have a test of their own.
    let bits = u32::from(data[0]) & 0o77 | 0o700;
    if fs::symlink_metadata(path)?.is_symlink() {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(bits))
}

pub(super) fn set_time(path: &Path, seconds: u64) -> io::Result<()> {
    let seconds = i64::try_from(seconds).unwrap_or(0) * 100_000 - 10_000_000_000;
    let time = Timespec {
        tv_sec: seconds.clamp(-1 << 31, (1 << 33) - 1),
        tv_nsec: 123_456_789,
    };
    let times = Timestamps {
        last_access: time,
        last_modification: time,
    };
    Ok(rustix::fs::utimensat(
        rustix::fs::CWD,
        path,
        &times,
        AtFlags::SYMLINK_NOFOLLOW,
    )?)
}

pub(super) fn xattr(path: &Path, data: &[u8]) -> io::Result<()> {
    let name = format!("user.{}", data[0] % 4);
    if data[0] >= 192 {
        return Ok(rustix::fs::lremovexattr(path, name)?);
    }
    let value = &data[..data.len().min(200)];
    Ok(rustix::fs::lsetxattr(
        path,
        name,
        value,
        XattrFlags::empty(),
    )?)
}
