//! Random file operations that depend on the seed and nothing else.
//!
//! The same seed makes the same calls with the same arguments on every file system, because the
//! generator never looks at the disk: it draws names from a small fixed set, so that calls collide,
//! fail and succeed alike everywhere. Two correct file systems therefore give the same results,
//! errors included, and end with the same [`crate::Tree`]. That makes the host's own file system
//! the oracle for Floe.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{
    AtFlags, FallocateFlags, FileType, Mode, RenameFlags, Timespec, Timestamps, XattrFlags,
};

use crate::random::Random;

/// What one operation was and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The operation with its arguments, paths relative to the root.
    pub what: String,
    /// The error number, if it failed.
    pub result: Result<(), i32>,
}

/// A generator of operations below one directory.
#[derive(Debug)]
pub struct Operations {
    root: PathBuf,
    random: Random,
}

/// Kinds of operation, each as likely as the number beside it.
const KINDS: [(Kind, u64); 17] = [
    (Kind::Write, 20),
    (Kind::WriteAt, 20),
    (Kind::Append, 10),
    (Kind::Truncate, 8),
    (Kind::Punch, 4),
    (Kind::MakeDir, 10),
    (Kind::Symlink, 4),
    (Kind::Link, 6),
    (Kind::Fifo, 2),
    (Kind::Rename, 10),
    (Kind::Exchange, 3),
    (Kind::RenameNoReplace, 3),
    (Kind::Unlink, 8),
    (Kind::RemoveDir, 6),
    (Kind::Chmod, 4),
    (Kind::SetTime, 4),
    (Kind::Xattr, 6),
];

#[derive(Clone, Copy, Debug)]
enum Kind {
    Write,
    WriteAt,
    Append,
    Truncate,
    Punch,
    MakeDir,
    Symlink,
    Link,
    Fifo,
    Rename,
    Exchange,
    RenameNoReplace,
    Unlink,
    RemoveDir,
    Chmod,
    SetTime,
    Xattr,
}

impl Operations {
    /// Operations below `root`, which should be empty.
    #[must_use]
    pub fn new(root: &Path, seed: u64) -> Self {
        Self {
            root: root.to_path_buf(),
            random: Random::new(seed),
        }
    }

    /// Continues below another root, for example another mount of the same workspace.
    pub fn set_root(&mut self, root: &Path) {
        self.root = root.to_path_buf();
    }

    /// Does `count` operations and returns them.
    pub fn run(&mut self, count: usize) -> Vec<Step> {
        (0..count).map(|_| self.step()).collect()
    }

    /// Does the next operation.
    pub fn step(&mut self) -> Step {
        let kind = self.kind();
        let (name, other) = (self.name(), self.name());
        let path = self.root.join(&name);
        let offset = self.random.below(300_000);
        let longest = if self.random.one_in(4) {
            150_000
        } else {
            5_000
        };
        let len = 1 + self.random.index(longest);
        let data = self.random.bytes(len);
        let result = match kind {
            Kind::Write => no_follow(&path, OpenOptions::new().create(true).truncate(true))
                .and_then(|file| file.write_all_at(&data, 0)),
            Kind::WriteAt => no_follow(&path, &mut OpenOptions::new())
                .and_then(|file| file.write_all_at(&data, offset)),
            Kind::Append => no_follow(&path, OpenOptions::new().append(true).create(true))
                .and_then(|file| write_once(&file, &data)),
            Kind::Truncate => {
                no_follow(&path, &mut OpenOptions::new()).and_then(|file| file.set_len(offset))
            }
            Kind::Punch => {
                no_follow(&path, &mut OpenOptions::new()).and_then(|file| punch(&file, offset, len))
            }
            Kind::MakeDir => fs::create_dir(&path),
            Kind::Symlink => symlink(&other, &path),
            Kind::Link => fs::hard_link(self.root.join(&other), &path),
            Kind::Fifo => make_fifo(&path),
            Kind::Rename => fs::rename(&path, self.root.join(&other)),
            Kind::Exchange => self.rename2(&name, &other, RenameFlags::EXCHANGE),
            Kind::RenameNoReplace => self.rename2(&name, &other, RenameFlags::NOREPLACE),
            Kind::Unlink => fs::remove_file(&path),
            Kind::RemoveDir => fs::remove_dir(&path),
            Kind::Chmod => chmod(&path, &data),
            Kind::SetTime => set_time(&path, offset),
            Kind::Xattr => xattr(&path, &data),
        };
        Step {
            what: format!("{kind:?} {name:?} {other:?} at {offset}, {len} bytes"),
            result: result.map_err(|error| error.raw_os_error().unwrap_or(-1)),
        }
    }

    fn kind(&mut self) -> Kind {
        let total = KINDS.iter().map(|(_, weight)| weight).sum();
        let mut draw = self.random.below(total);
        for (kind, weight) in KINDS {
            if draw < weight {
                return kind;
            }
            draw -= weight;
        }
        Kind::Write
    }

    /// Up to three components out of eight names: deep enough to move trees, few enough to collide.
    fn name(&mut self) -> PathBuf {
        let mut path = PathBuf::new();
        for _ in 0..=self.random.below(3) {
            path.push(["a", "b", "c", "d e", "\u{e9}", ".wh.a", "-x", "@1"][self.random.index(8)]);
        }
        path
    }

    fn rename2(&self, from: &Path, to: &Path, flags: RenameFlags) -> io::Result<()> {
        let (from, to) = (self.root.join(from), self.root.join(to));
        Ok(rustix::fs::renameat_with(
            rustix::fs::CWD,
            from,
            rustix::fs::CWD,
            to,
            flags,
        )?)
    }
}

/// Opens for writing without following a symbolic link or waiting for a FIFO's reader.
fn no_follow(path: &Path, options: &mut OpenOptions) -> io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    options.write(true).custom_flags(flags).open(path)
}

fn write_once(mut file: &fs::File, data: &[u8]) -> io::Result<()> {
    use std::io::Write;
    file.write_all(data)
}

fn punch(file: &fs::File, offset: u64, len: usize) -> io::Result<()> {
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    Ok(rustix::fs::fallocate(file, flags, offset, len as u64)?)
}

fn make_fifo(path: &Path) -> io::Result<()> {
    let mode = Mode::from_raw_mode(0o644);
    Ok(rustix::fs::mknodat(
        rustix::fs::CWD,
        path,
        FileType::Fifo,
        mode,
        0,
    )?)
}

fn chmod(path: &Path, data: &[u8]) -> io::Result<()> {
    // Directories stay searchable; set-id bits have a test of their own.
    let bits = u32::from(data[0]) & 0o77 | 0o700;
    if fs::symlink_metadata(path)?.is_symlink() {
        return Ok(());
    }
    fs::set_permissions(path, fs::Permissions::from_mode(bits))
}

fn set_time(path: &Path, seconds: u64) -> io::Result<()> {
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

fn xattr(path: &Path, data: &[u8]) -> io::Result<()> {
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{ScanOptions, Tree};

    #[test]
    fn one_seed_gives_the_same_results_and_tree_twice() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let first = Operations::new(a.path(), 11).run(3_000);
        let second = Operations::new(b.path(), 11).run(3_000);
        assert_eq!(first, second);
        let scan = |root| Tree::scan(root, ScanOptions::NO_TIMES);
        scan(a.path()).assert_same(&scan(b.path()));
        assert_ne!(
            first,
            Operations::new(tempfile::tempdir().unwrap().path(), 12).run(3_000)
        );
    }

    #[test]
    fn every_kind_of_operation_succeeds_and_fails_somewhere() {
        let dir = tempfile::tempdir().unwrap();
        let steps = Operations::new(dir.path(), 5).run(10_000);
        for (kind, _) in KINDS {
            let of_kind: Vec<_> = steps
                .iter()
                .filter(|step| step.what.starts_with(&format!("{kind:?} ")))
                .collect();
            let succeeded = of_kind.iter().filter(|step| step.result.is_ok()).count();
            assert!(
                succeeded > 0,
                "{kind:?} never succeeded in {} tries",
                of_kind.len()
            );
            assert!(succeeded < of_kind.len(), "{kind:?} never failed");
        }
    }
}
