//! A thread that does file operations, picked at random.

use floe_fs::View;
use floe_fs::attr::FileKind;
use floe_fs::dispatch::{
    Dispatch, Errno, Fallocate, OpError, OpenMode, RenameFlags, SetAttr, Write, XattrMode,
};
use floe_fs::id::Ino;

use super::support::{Random, Watchdog};
use crate::common::{ROOT_USER, node};

/// One of the threads that do file operations, all on the same few paths.
pub struct Worker<'a> {
    pub view: &'a View,
    pub random: Random,
    pub watchdog: &'a Watchdog,
    /// References to return, as a kernel would hold them.
    pub held: Vec<Ino>,
    pub done: u64,
}

impl Worker<'_> {
    pub fn name(&mut self) -> [u8; 1] {
        [b'a' + u8::try_from(self.random.below(6)).unwrap()]
    }

    pub fn held(&mut self) -> Ino {
        match self.held.len() as u64 {
            0 => Ino::ROOT,
            count => self.held[usize::try_from(self.random.below(count)).unwrap()],
        }
    }

    /// A directory: mostly one that exists, sometimes one that was removed.
    pub fn directory(&mut self) -> Ino {
        let mut at = Ino::ROOT;
        for _ in 0..self.random.below(3) {
            let name = self.name();
            match self.view.lookup(at, &name) {
                Ok(Some(entry)) => {
                    self.held.push(entry.ino);
                    if entry.attr.kind == FileKind::Directory {
                        at = entry.ino;
                    }
                }
                Ok(None) => {}
                Err(error) => Self::expected(&error),
            }
        }
        if self.random.below(8) == 0 {
            self.held()
        } else {
            at
        }
    }

    /// Only what a race explains: never an error of the store itself.
    pub fn expected(error: &OpError) {
        let Errno(code) = Errno::from(error);
        let fine = [
            libc::ENOENT,
            libc::EEXIST,
            libc::ENOTDIR,
            libc::EISDIR,
            libc::ENOTEMPTY,
            libc::EINVAL,
            libc::EPERM,
            libc::ESTALE,
            libc::ENODATA,
            libc::ENXIO,
        ];
        assert!(fine.contains(&code), "{error:?}");
    }

    pub fn step(&mut self) {
        let (view, choice) = (self.view, self.random.below(100));
        let (parent, other) = (self.directory(), self.directory());
        let (from, to) = (self.name(), self.name());
        let file = self.held();
        let offset = [0, 4096, 8190, 65_530, 262_144][usize::try_from(choice % 5).unwrap()];
        let kinds = [
            FileKind::File,
            FileKind::File,
            FileKind::Directory,
            FileKind::Symlink,
        ];
        let mut made = None;
        let result = match choice {
            0..20 => {
                self.watchdog.at("make");
                let kind = kinds[usize::try_from(self.random.below(4)).unwrap()];
                view.make(ROOT_USER, parent, &from, node(kind))
                    .map(|entry| made = Some(entry.ino))
            }
            20..30 => {
                self.watchdog.at("unlink");
                view.unlink(parent, &from)
            }
            30..35 => {
                self.watchdog.at("rmdir");
                view.rmdir(parent, &from)
            }
            35..50 => {
                self.watchdog.at("rename");
                let flags = RenameFlags {
                    no_replace: choice == 35,
                    exchange: (36..42).contains(&choice),
                    whiteout: choice == 42,
                };
                view.rename((parent, &from), (other, &to), flags)
            }
            50..55 => {
                self.watchdog.at("link");
                view.link(file, parent, &from)
                    .map(|entry| made = Some(entry.ino))
            }
            55..70 => {
                self.watchdog.at("write");
                let data = vec![u8::try_from(choice).unwrap(); 5000];
                let write = Write {
                    offset,
                    data: &data,
                    append: choice < 58,
                    kill_set_id: choice == 69,
                };
                view.write(file, write)
            }
            70..75 => {
                self.watchdog.at("truncate");
                let set = SetAttr {
                    size: Some(offset),
                    ..SetAttr::default()
                };
                view.setattr(ROOT_USER, file, set).map(drop)
            }
            75..78 => {
                self.watchdog.at("fallocate");
                view.fallocate(ROOT_USER, file, Fallocate::PunchHole, offset, 70_000)
            }
            78..80 => {
                self.watchdog.at("copy_range");
                let target = self.held();
                view.copy_range(ROOT_USER, (file, 0), (target, offset), 10_000)
                    .map(drop)
            }
            80..84 => {
                self.watchdog.at("setxattr");
                view.setxattr(ROOT_USER, file, b"user.x", &from, XattrMode::Set)
            }
            84..86 => {
                self.watchdog.at("removexattr");
                view.removexattr(ROOT_USER, file, b"user.x")
            }
            86..92 => {
                self.watchdog.at("readdir");
                let mut taken = Vec::new();
                let listed = view.readdir(parent, 0, true, &mut |entry| {
                    if entry.attr.is_some() && !matches!(entry.name, b"." | b"..") {
                        taken.push(entry.ino);
                    }
                    true
                });
                self.held.extend(taken);
                listed
            }
            92..96 => {
                self.watchdog.at("open");
                let mode = match choice % 3 {
                    0 => OpenMode::Read,
                    1 => OpenMode::Write,
                    _ => OpenMode::ReadWrite,
                };
                view.open(file, mode).map(|()| view.release(file, mode))
            }
            _ => {
                self.watchdog.at("read");
                view.read(file, offset, 70_000, &mut Vec::new())
            }
        };
        self.held.extend(made);
        if let Err(error) = result {
            Self::expected(&error);
        }
        self.watchdog.at("forget");
        while self.held.len() > 24 {
            let at = usize::try_from(self.random.below(self.held.len() as u64)).unwrap();
            let ino = self.held.swap_remove(at);
            view.forget(ino, 1);
        }
        self.done += 1;
    }
}
