//! Random file operations that depend on the seed and nothing else.
//!
//! The same seed makes the same calls with the same arguments on every file system, because the
//! generator never looks at the disk: it draws names from a small fixed set, so that calls collide,
//! fail and succeed alike everywhere. Two correct file systems therefore give the same results,
//! errors included, and end with the same [`crate::Tree`]. That makes the host's own file system
//! the oracle for Floe.

mod calls;

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{FallocateFlags, RenameFlags};
use rustix::process::{RawUid, Uid};

use calls::{allocate, chmod, chown, copy, digest, list, make_fifo, no_follow, read, read_link};
use calls::{read_open, set_time, stat, write_once, xattr};

use crate::random::Random;

/// What one operation was and what came of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// The operation with its arguments, paths relative to the root.
    pub what: String,
    /// What it showed (0 if it shows nothing), or the error number.
    pub result: Result<u64, i32>,
}

/// A generator of operations below one directory.
#[derive(Debug)]
pub struct Operations {
    root: PathBuf,
    random: Random,
    /// Files kept open across other operations.
    held: [Option<File>; HELD],
}

/// Files that may be kept open at once.
const HELD: usize = 4;

/// Whom one operation in [`NOBODY_ONE_IN`] is done as.
const NOBODY: RawUid = 65534;
const NOBODY_ONE_IN: u64 = 8;

/// Kinds of operation, each as likely as the number beside it.
const KINDS: [(Kind, u64); 31] = [
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
    (Kind::Allocate, 3),
    (Kind::ZeroRange, 3),
    (Kind::CopyRange, 6),
    (Kind::Chown, 4),
    (Kind::Read, 6),
    (Kind::ReadLink, 2),
    (Kind::List, 4),
    (Kind::Stat, 6),
    (Kind::Hold, 6),
    (Kind::LetGo, 3),
    (Kind::ReadHeld, 4),
    (Kind::WriteHeld, 6),
    (Kind::TruncateHeld, 2),
    (Kind::StatHeld, 3),
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
    Allocate,
    ZeroRange,
    CopyRange,
    Chown,
    Read,
    ReadLink,
    List,
    Stat,
    Hold,
    LetGo,
    ReadHeld,
    WriteHeld,
    TruncateHeld,
    StatHeld,
}

impl Operations {
    /// Operations below `root`, which should be empty.
    #[must_use]
    pub fn new(root: &Path, seed: u64) -> Self {
        Self {
            root: root.to_path_buf(),
            random: Random::new(seed),
            held: Default::default(),
        }
    }

    /// Continues below another root, for example another mount of the same workspace, with no file
    /// open.
    pub fn set_root(&mut self, root: &Path) {
        self.root = root.to_path_buf();
        self.held = Default::default();
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
        let slot = self.random.index(HELD);
        let nobody = self.random.one_in(NOBODY_ONE_IN);
        let operation = Operation {
            kind,
            path,
            other: self.root.join(&other),
            link: &other,
            offset,
            data: &data,
        };
        let held = &mut self.held[slot];
        let result = if nobody {
            as_nobody(|| operation.run(held))
        } else {
            operation.run(held)
        };
        let who = if nobody { "nobody: " } else { "" };
        Step {
            what: format!("{who}{kind:?} {name:?} {other:?} at {offset}, {len} bytes, held {slot}"),
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
        let depth = [1, 1, 1, 2, 2, 3][self.random.index(6)];
        for _ in 0..depth {
            path.push(["a", "b", "c", "d e", "\u{e9}", ".wh.a", "-x", "@1"][self.random.index(8)]);
        }
        path
    }
}

/// One operation with everything that it may need.
struct Operation<'a> {
    kind: Kind,
    path: PathBuf,
    other: PathBuf,
    link: &'a Path,
    offset: u64,
    data: &'a [u8],
}

impl Operation<'_> {
    fn run(&self, held: &mut Option<File>) -> io::Result<u64> {
        let Self {
            path,
            other,
            offset,
            ..
        } = self;
        let shown = match self.kind {
            Kind::Read => read(path)?,
            Kind::ReadLink => read_link(path)?,
            Kind::List => list(path)?,
            Kind::Stat => stat(&fs::symlink_metadata(path)?),
            Kind::CopyRange => {
                let target = no_follow(path, &mut OpenOptions::new())?;
                let source = no_follow(other, OpenOptions::new().read(true))?;
                copy(&source, &target, *offset, self.data.len())?
            }
            Kind::Hold | Kind::LetGo => {
                *held = None;
                if matches!(self.kind, Kind::Hold) {
                    *held = Some(no_follow(path, OpenOptions::new().read(true))?);
                }
                0
            }
            Kind::ReadHeld | Kind::WriteHeld | Kind::TruncateHeld | Kind::StatHeld => {
                held.as_ref().map_or(Ok(0), |file| self.run_held(file))?
            }
            _ => self.change().map(|()| 0)?,
        };
        Ok(shown)
    }

    fn run_held(&self, file: &File) -> io::Result<u64> {
        match self.kind {
            Kind::ReadHeld => read_open(file),
            Kind::WriteHeld => file.write_all_at(self.data, self.offset).map(|()| 0),
            Kind::TruncateHeld => file.set_len(self.offset).map(|()| 0),
            _ => {
                let meta = file.metadata()?;
                Ok(digest((stat(&meta), meta.len())))
            }
        }
    }

    fn change(&self) -> io::Result<()> {
        let Self {
            path,
            other,
            offset,
            data,
            ..
        } = self;
        let open = || no_follow(path, &mut OpenOptions::new());
        let range = |flags| allocate(&open()?, flags, *offset, data.len());
        match self.kind {
            Kind::Write => no_follow(path, OpenOptions::new().create(true).truncate(true))?
                .write_all_at(data, 0),
            Kind::WriteAt => open()?.write_all_at(data, *offset),
            Kind::Append => write_once(
                &no_follow(path, OpenOptions::new().append(true).create(true))?,
                data,
            ),
            Kind::Truncate => open()?.set_len(*offset),
            Kind::Punch => range(FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE),
            Kind::Allocate => range(FallocateFlags::empty()),
            Kind::ZeroRange => range(FallocateFlags::ZERO_RANGE),
            Kind::MakeDir => fs::create_dir(path),
            Kind::Symlink => symlink(self.link, path),
            Kind::Link => fs::hard_link(other, path),
            Kind::Fifo => make_fifo(path),
            Kind::Rename => fs::rename(path, other),
            Kind::Exchange => self.rename2(RenameFlags::EXCHANGE),
            Kind::RenameNoReplace => self.rename2(RenameFlags::NOREPLACE),
            Kind::Unlink => fs::remove_file(path),
            Kind::RemoveDir => fs::remove_dir(path),
            Kind::Chmod => chmod(path, data),
            Kind::SetTime => set_time(path, *offset),
            Kind::Xattr => xattr(path, data),
            Kind::Chown => chown(path, data),
            other => unreachable!("{other:?} changes nothing"),
        }
    }

    fn rename2(&self, flags: RenameFlags) -> io::Result<()> {
        let here = rustix::fs::CWD;
        Ok(rustix::fs::renameat_with(
            here,
            &self.path,
            here,
            &self.other,
            flags,
        )?)
    }
}

/// Does something with this thread's effective user changed. Only root can, anybody else is nobody
/// enough.
fn as_nobody<T>(work: impl FnOnce() -> T) -> T {
    if !rustix::process::geteuid().is_root() {
        return work();
    }
    let become_user = |uid: RawUid| {
        rustix::thread::set_thread_res_uid(None::<Uid>, Uid::from_raw(uid), None::<Uid>)
            .expect("root may change its effective user");
    };
    become_user(NOBODY);
    let result = work();
    become_user(0);
    result
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
            // What is done to an open file meets none of the others.
            let sure = matches!(kind, Kind::LetGo | Kind::ReadHeld | Kind::StatHeld)
                || matches!(kind, Kind::WriteHeld | Kind::TruncateHeld);
            assert!(sure || succeeded < of_kind.len(), "{kind:?} never failed");
        }
    }
}
