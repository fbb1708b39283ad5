//! The same operations done directly and as a guest, each in a store of its own, have the same results.
//!
//! The operations are those of the model (model/op.rs). Inode numbers and positions in listings come from
//! counters of the store, so both stores give the same. What a snapshot, a rollback and the like do is no
//! business of a transport, and left out.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::Arc;

use floe_fs::attr::{Attr, FileKind};
use floe_fs::dispatch::wire::ServerOptions;
use floe_fs::dispatch::{
    Dispatch, Entry, Errno, NewNode, OpError, OpenMode, SetAttr, SetTime, Write,
};
use floe_fs::id::Ino;
use floe_fs::{Store, View};
use proptest::test_runner::TestCaseError;

use crate::client::Client;
use crate::common::sequences::{Cases, run};
use crate::model::acl;
use crate::model::bytes::pattern;
use crate::model::op::{self, NamePick, Op, Pick, Step, Time, furniture, steps};
use crate::remote::Remote;
use crate::workspace;

const CASES: Cases = Cases {
    short: 60,
    long: 5_000,
    regressions: None,
};

/// An inode that the guest holds.
struct Held {
    kind: FileKind,
    count: u64,
}

/// Both sides, and what a guest's kernel would know.
struct Twins {
    direct: Arc<View>,
    guest: Remote,
    held: BTreeMap<u64, Held>,
    opens: Vec<(u64, OpenMode)>,
}

/// Attributes without what depends on the moment or the disk.
fn steady(attr: Attr) -> Attr {
    let epoch = floe_fs::attr::Timestamp { secs: 0, nanos: 0 };
    Attr {
        blocks: 0,
        atime: epoch,
        mtime: epoch,
        ctime: epoch,
        btime: epoch,
        ..attr
    }
}

fn steady_entry(entry: Entry) -> (u64, Attr) {
    (entry.ino.0, steady(entry.attr))
}

impl Twins {
    /// Does something on both sides, and says what came of it if that is the same.
    fn both<T: Debug + PartialEq>(
        &self,
        act: impl Fn(&dyn Dispatch) -> Result<T, OpError>,
    ) -> Result<Option<T>, String> {
        let errno = |error: OpError| Errno::from(&error).0;
        let direct = act(&*self.direct).map_err(errno);
        let guest = act(&self.guest).map_err(errno);
        if direct == guest {
            Ok(direct.ok())
        } else {
            Err(format!("directly {direct:?}, as a guest {guest:?}"))
        }
    }

    /// One of those that are held, mostly of a kind.
    fn pick(&self, kind: Option<FileKind>, pick: Pick) -> Ino {
        let all: Vec<u64> = self.held.keys().copied().collect();
        let fitting = self
            .held
            .iter()
            .filter(|(_, held)| kind.is_none_or(|k| k == held.kind));
        let fitting: Vec<u64> = fitting.map(|(&ino, _)| ino).collect();
        let from = if pick >= 65_000 || fitting.is_empty() {
            all
        } else {
            fitting
        };
        Ino(from[usize::from(pick) % from.len()])
    }

    fn directory(&self, pick: Pick) -> Ino {
        self.pick(Some(FileKind::Directory), pick)
    }

    fn file(&self, pick: Pick) -> Ino {
        self.pick(Some(FileKind::File), pick)
    }

    fn name(&self, parent: Ino, pick: NamePick) -> Vec<u8> {
        let mut names = Vec::new();
        let listed = self.direct.readdir(parent, 2, false, &mut |entry| {
            names.push(entry.name.to_vec());
            true
        });
        if !pick.existing || listed.is_err() || names.is_empty() {
            return op::name(pick.number);
        }
        names.sort();
        names.swap_remove(usize::from(pick.number) % names.len())
    }

    fn hold(&mut self, ino: u64, kind: FileKind) {
        let held = self.held.entry(ino).or_insert(Held { kind, count: 0 });
        held.count += 1;
    }

    /// An operation that hands a reference out.
    fn entry(
        &mut self,
        act: impl Fn(&dyn Dispatch) -> Result<Entry, OpError>,
    ) -> Result<Option<u64>, String> {
        let told = self.both(|fs| act(fs).map(steady_entry))?;
        Ok(told.map(|(ino, attr)| {
            self.hold(ino, attr.kind);
            ino
        }))
    }

    /// With a file open, as it has to be.
    fn with_open<T: Debug + PartialEq>(
        &self,
        ino: Ino,
        act: impl Fn(&dyn Dispatch) -> Result<T, OpError>,
    ) -> Result<(), String> {
        let mode = OpenMode::ReadWrite;
        if self.both(|fs| fs.open(ino, mode))?.is_some() {
            self.both(act)?;
            self.both(|fs| {
                fs.release(ino, mode);
                Ok(())
            })?;
        }
        Ok(())
    }

    fn list(&mut self, parent: Ino, plus: bool) -> Result<(), String> {
        let listed = self.both(|fs| {
            let mut all = Vec::new();
            fs.readdir(parent, 0, plus, &mut |entry| {
                let is_dots = matches!(entry.name, b"." | b"..");
                let attr = entry.attr.filter(|_| !is_dots).map(steady);
                let name = entry.name.to_vec();
                all.push((entry.ino.0, entry.kind, name, entry.cookie, attr));
                true
            })?;
            Ok(all)
        })?;
        for (ino, kind, _, _, attr) in listed.unwrap_or_default() {
            if attr.is_some() {
                self.hold(ino, kind);
            }
        }
        Ok(())
    }

    fn step(&mut self, op: &Op) -> Result<(), String> {
        match op {
            Op::Make { .. } => return self.make(op),
            Op::Lookup { parent, name } => {
                let parent = self.directory(*parent);
                let name = self.name(parent, *name);
                let found = self.both(|fs| Ok(fs.lookup(parent, &name)?.map(steady_entry)))?;
                if let Some(Some((ino, attr))) = found {
                    self.hold(ino, attr.kind);
                }
            }
            Op::Forget { pick, all } => self.forget(*pick, *all),
            Op::Remove {
                parent,
                name,
                directory,
            } => {
                let parent = self.directory(*parent);
                let name = self.name(parent, *name);
                if *directory {
                    self.both(|fs| fs.rmdir(parent, &name))?
                } else {
                    self.both(|fs| fs.unlink(parent, &name))?
                };
            }
            Op::Rename { from, to, flags } => {
                let (from, to) = (
                    (self.directory(from.0), from.1),
                    (self.directory(to.0), to.1),
                );
                let (old, new) = (self.name(from.0, from.1), self.name(to.0, to.1));
                let flags = *flags;
                self.both(|fs| fs.rename((from.0, &old), (to.0, &new), flags))?;
            }
            Op::Link { pick, parent, name } => {
                let (ino, parent) = (self.file(*pick), self.directory(*parent));
                let name = self.name(parent, *name);
                self.entry(|fs| fs.link(ino, parent, &name))?;
            }
            Op::List { parent, plus, .. } => {
                let parent = self.directory(*parent);
                self.list(parent, *plus)?;
            }
            Op::Open { pick, write } => {
                let (ino, mode) = (self.file(*pick), mode(*write));
                if self.both(|fs| fs.open(ino, mode))?.is_some() {
                    self.opens.push((ino.0, mode));
                }
            }
            Op::Release { number } if !self.opens.is_empty() => {
                let at = usize::from(*number) % self.opens.len();
                let (ino, mode) = self.opens.swap_remove(at);
                self.direct.release(Ino(ino), mode);
                self.guest.release(Ino(ino), mode);
            }
            Op::Sync { file } => {
                match file {
                    Some(pick) => {
                        let ino = self.file(*pick);
                        self.both(|fs| fs.fsync(ino))?
                    }
                    None => self.both(|fs| fs.sync())?,
                };
            }
            Op::Write { .. }
            | Op::Read { .. }
            | Op::Seek { .. }
            | Op::Truncate { .. }
            | Op::Fallocate { .. }
            | Op::CopyRange { .. } => return self.contents(op),
            Op::SetAttr { .. } | Op::SetXattr { .. } | Op::RemoveXattr { .. } => {
                return self.attributes(op);
            }
            _ => {}
        }
        Ok(())
    }

    fn make(&mut self, op: &Op) -> Result<(), String> {
        let Op::Make {
            parent,
            name,
            kind,
            perm,
            umask,
            caller,
            target,
            open,
        } = op
        else {
            return Ok(());
        };
        let parent = self.directory(*parent);
        let name = self.name(parent, *name);
        let target = op::target(*target);
        let is_link = *kind == FileKind::Symlink;
        let is_device = matches!(kind, FileKind::CharDevice | FileKind::BlockDevice);
        let node = NewNode {
            kind: *kind,
            // A guest's kernel sends no mode of a link.
            perm: if is_link { 0o777 } else { *perm },
            umask: if is_link { 0 } else { *umask },
            rdev: if is_device { 0x0102_0304 } else { 0 },
            target: if is_link { &target } else { b"" },
        };
        match open {
            Some(write) if *kind == FileKind::File => {
                let mode = mode(*write);
                let made = self.entry(|fs| fs.create(*caller, parent, &name, node, mode))?;
                self.opens.extend(made.map(|ino| (ino, mode)));
            }
            _ => {
                self.entry(|fs| fs.make(*caller, parent, &name, node))?;
            }
        }
        Ok(())
    }

    fn forget(&mut self, pick: Pick, all: bool) {
        let ino = self.pick(None, pick);
        // A kernel holds what it has open.
        if self.opens.iter().any(|(open, _)| *open == ino.0) {
            return;
        }
        let Some(held) = self.held.get_mut(&ino.0) else {
            return;
        };
        // The root has one that nobody handed out.
        let of_root = u64::from(ino == Ino::ROOT);
        let count = if all {
            held.count - of_root
        } else {
            1.min(held.count - of_root)
        };
        held.count -= count;
        if held.count == 0 {
            self.held.remove(&ino.0);
        }
        if count > 0 {
            self.direct.forget(ino, count);
            self.guest.forget(ino, count);
        }
    }

    fn contents(&self, op: &Op) -> Result<(), String> {
        match op {
            Op::Write {
                file,
                offset,
                count,
                seed,
                kill_set_id,
                ..
            } => {
                let data = pattern(*seed, *count);
                let write = Write {
                    offset: *offset,
                    data: &data,
                    append: false,
                    kill_set_id: *kill_set_id,
                };
                let ino = self.file(*file);
                self.with_open(ino, |fs| fs.write(ino, write))
            }
            Op::Read {
                file,
                offset,
                count,
            } => {
                let ino = self.file(*file);
                self.with_open(ino, |fs| {
                    let mut out = Vec::new();
                    fs.read(ino, *offset, *count, &mut out)?;
                    Ok(out)
                })
            }
            Op::Seek { file, offset, hole } => {
                let ino = self.file(*file);
                self.with_open(ino, |fs| fs.seek(ino, *offset, *hole))
            }
            Op::Truncate { file, size, caller } => {
                let ino = self.pick(Some(FileKind::File), *file);
                let set = SetAttr {
                    size: Some(*size),
                    ..SetAttr::default()
                };
                self.both(|fs| fs.setattr(*caller, ino, set).map(steady))?;
                Ok(())
            }
            Op::Fallocate {
                file,
                mode,
                offset,
                count,
            } => {
                let ino = self.file(*file);
                let caller = crate::common::ROOT_USER;
                self.with_open(ino, |fs| fs.fallocate(caller, ino, *mode, *offset, *count))
            }
            Op::CopyRange { from, to, count } => {
                let (source, target) = (self.file(from.0), self.file(to.0));
                let caller = crate::common::ROOT_USER;
                let read = OpenMode::Read;
                if self.both(|fs| fs.open(source, read))?.is_some() {
                    self.with_open(target, |fs| {
                        fs.copy_range(caller, (source, from.1), (target, to.1), *count)
                    })?;
                    self.direct.release(source, read);
                    self.guest.release(source, read);
                }
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn attributes(&self, op: &Op) -> Result<(), String> {
        match op {
            Op::SetAttr {
                pick,
                caller,
                perm,
                uid,
                gid,
                atime,
                mtime,
            } => {
                let ino = self.pick(None, *pick);
                let time = |time: &Option<Time>| {
                    time.map(|time| match time {
                        Time::Now => SetTime::Now,
                        Time::At(at) => SetTime::At(at),
                    })
                };
                let set = SetAttr {
                    perm: *perm,
                    uid: *uid,
                    gid: *gid,
                    atime: time(atime),
                    mtime: time(mtime),
                    ..SetAttr::default()
                };
                let at = |set: Option<SetTime>| matches!(set, Some(SetTime::At(_)));
                self.both(|fs| {
                    let attr = fs.setattr(*caller, ino, set)?;
                    let atime = at(set.atime).then_some(attr.atime);
                    let mtime = at(set.mtime).then_some(attr.mtime);
                    Ok((steady(attr), atime, mtime))
                })?;
                Ok(())
            }
            Op::SetXattr {
                pick,
                caller,
                name,
                shape,
                mode,
            } => {
                let (ino, name) = (self.pick(None, *pick), op::xattr_name(*name));
                let is_acl = name == acl::ACCESS || name == acl::DEFAULT;
                let value = match *shape {
                    shape if is_acl => acl::value(shape),
                    0 => vec![b'v'; 65_537],
                    1 => vec![b'v'; 65_536],
                    shape => pattern(shape, usize::from(shape) % 40),
                };
                self.both(|fs| fs.setxattr(*caller, ino, &name, &value, *mode))?;
                self.xattrs(ino)
            }
            Op::RemoveXattr { pick, caller, name } => {
                let (ino, name) = (self.pick(None, *pick), op::xattr_name(*name));
                self.both(|fs| fs.removexattr(*caller, ino, &name))?;
                self.xattrs(ino)
            }
            _ => Ok(()),
        }
    }

    fn xattrs(&self, ino: Ino) -> Result<(), String> {
        self.both(|fs| {
            let mut names = fs.listxattr(ino)?;
            names.sort();
            let value = |name: Vec<u8>| Ok((fs.getxattr(ino, &name)?, name));
            let values: Result<Vec<_>, OpError> = names.into_iter().map(value).collect();
            Ok((values?, steady(fs.getattr(ino)?)))
        })?;
        Ok(())
    }
}

fn mode(write: bool) -> OpenMode {
    if write {
        OpenMode::ReadWrite
    } else {
        OpenMode::Read
    }
}

/// All that is in a workspace, by path.
fn tree(view: &View) -> BTreeMap<Vec<u8>, (u64, Attr, Vec<u8>)> {
    let mut found = BTreeMap::new();
    let mut todo = vec![(Vec::new(), Ino::ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let attr = view.getattr(ino).unwrap();
        let mut contents = Vec::new();
        match attr.kind {
            FileKind::File => view.read(ino, 0, 600_000, &mut contents).unwrap(),
            FileKind::Symlink => contents = view.readlink(ino).unwrap(),
            FileKind::Directory => view
                .readdir(ino, 2, false, &mut |entry| {
                    todo.push(([&path, &b"/"[..], entry.name].concat(), entry.ino));
                    true
                })
                .unwrap(),
            _ => {}
        }
        found.insert(path, (ino.0, steady(attr), contents));
    }
    found
}

fn sequence(furnished: bool, steps: &[Step]) -> Result<(), String> {
    let dirs = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let stores: [(Arc<Store>, Arc<View>); 2] = [workspace(dirs.0.path()), workspace(dirs.1.path())];
    let remote = stores[1].1.clone();
    let root = Held {
        kind: FileKind::Directory,
        count: 1,
    };
    let mut twins = Twins {
        direct: stores[0].1.clone(),
        guest: Remote(Client::mount(remote.clone(), ServerOptions::default())),
        held: BTreeMap::from([(Ino::ROOT.0, root)]),
        opens: Vec::new(),
    };
    let before = if furnished { furniture() } else { Vec::new() };
    for (number, step) in before.iter().chain(steps).enumerate() {
        twins
            .step(&step.op)
            .map_err(|error| format!("step {number} {step:?}: {error}"))?;
    }
    let (direct, guest) = (tree(&twins.direct), tree(&remote));
    if direct != guest {
        return Err(format!(
            "in the end directly {direct:?}, as a guest {guest:?}"
        ));
    }
    let Twins { guest, .. } = twins;
    guest.0.hang_up().map_err(|error| error.to_string())?;
    if remote.known() != [Ino::ROOT] {
        return Err(format!("the guest left {:?}", remote.known()));
    }
    for (store, _) in &stores {
        let report = store.check().map_err(|error| error.to_string())?;
        if !report.is_clean() {
            return Err(format!("{report:?}"));
        }
    }
    Ok(())
}

#[test]
fn a_guest_sees_what_the_engine_does() {
    run(&steps(), &CASES, |(furnished, steps)| {
        sequence(furnished, &steps).map_err(TestCaseError::fail)
    });
}
