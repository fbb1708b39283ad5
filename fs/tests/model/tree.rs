//! The model: a plain tree of nodes in memory, and what each operation does to it.
//!
//! An operation has two halves: `*_errors` says which errno the operation may fail with (none:
//! it must succeed), and the method without it does it. Inode numbers are the engine's, taken
//! over when it makes a file.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use floe_fs::attr::{FileKind, Timestamp};
use floe_fs::dispatch::{Caller, RenameFlags};

use super::acl;
use super::bytes::Bytes;

pub const ROOT: u64 = 1;
const SET_UID: u16 = 0o4000;
const SET_GID: u16 = 0o2000;
const GROUP_EXEC: u16 = 0o010;
pub const CAPABILITY: &[u8] = b"security.capability";

#[derive(Clone, Debug)]
pub enum Body {
    File(Bytes),
    Directory {
        parent: u64,
        entries: BTreeMap<Vec<u8>, Named>,
    },
    Symlink(Vec<u8>),
    Other,
}

/// What a name leads to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named {
    pub ino: u64,
    /// Another one whenever the name appears; kept while it is replaced.
    pub life: u64,
}

#[derive(Clone, Debug)]
pub struct Node {
    pub kind: FileKind,
    pub perm: u16,
    pub uid: u32,
    pub gid: u32,
    pub nlink: u32,
    pub rdev: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub btime: Timestamp,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub body: Body,
}

/// Which times of which node an operation stamped with its own time.
#[derive(Clone, Copy, Debug, Default)]
pub struct Touched {
    pub atime: bool,
    pub mtime: bool,
    pub ctime: bool,
    pub btime: bool,
}

pub type Stamps = BTreeMap<u64, Touched>;

/// The state of one view.
#[derive(Clone, Debug, Default)]
pub struct State {
    pub nodes: BTreeMap<u64, Arc<Node>>,
    /// Removed files and directories whose removal the engine was never told of in this view: it
    /// inherited them removed, and need not reclaim them.
    pub inherited: BTreeSet<u64>,
}

/// A file to make.
pub struct NewFile<'a> {
    pub caller: Caller,
    pub kind: FileKind,
    pub perm: u16,
    pub umask: u16,
    pub rdev: u32,
    pub target: &'a [u8],
}

fn changed(stamps: &mut Stamps, ino: u64, contents: bool) {
    let touched = stamps.entry(ino).or_default();
    touched.ctime = true;
    touched.mtime |= contents;
}

pub fn name_errors(name: &[u8]) -> Vec<i32> {
    let mut errors = Vec::new();
    if name.len() > 255 {
        errors.push(libc::ENAMETOOLONG);
    }
    if matches!(name, b"" | b"." | b"..") || name.contains(&b'/') || name.contains(&0) {
        errors.push(libc::EINVAL);
    }
    errors
}

impl State {
    pub fn node(&self, ino: u64) -> &Node {
        &self.nodes[&ino]
    }

    pub fn edit(&mut self, ino: u64) -> &mut Node {
        Arc::make_mut(self.nodes.get_mut(&ino).unwrap())
    }

    pub fn bytes(&self, ino: u64) -> &Bytes {
        match &self.node(ino).body {
            Body::File(bytes) => bytes,
            other => panic!("{ino} is {other:?}"),
        }
    }

    pub fn edit_bytes(&mut self, ino: u64) -> &mut Bytes {
        match &mut self.edit(ino).body {
            Body::File(bytes) => bytes,
            other => panic!("{ino} is {other:?}"),
        }
    }

    pub fn entries(&self, ino: u64) -> &BTreeMap<Vec<u8>, Named> {
        static NONE: BTreeMap<Vec<u8>, Named> = BTreeMap::new();
        match self.nodes.get(&ino).map(|node| &node.body) {
            Some(Body::Directory { entries, .. }) => entries,
            _ => &NONE,
        }
    }

    fn edit_entries(&mut self, ino: u64) -> &mut BTreeMap<Vec<u8>, Named> {
        match &mut self.edit(ino).body {
            Body::Directory { entries, .. } => entries,
            other => panic!("{ino} is {other:?}"),
        }
    }

    pub fn get(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.entries(parent).get(name).map(|named| named.ino)
    }

    pub fn is_directory(&self, ino: u64) -> bool {
        self.nodes
            .get(&ino)
            .is_some_and(|node| node.kind == FileKind::Directory)
    }

    pub fn parent(&self, ino: u64) -> u64 {
        match &self.node(ino).body {
            Body::Directory { parent, .. } => *parent,
            _ => 0,
        }
    }

    pub fn stale(&self, ino: u64) -> Vec<i32> {
        if self.nodes.contains_key(&ino) {
            Vec::new()
        } else {
            vec![libc::ESTALE]
        }
    }

    pub fn directory_errors(&self, ino: u64) -> Vec<i32> {
        match self.nodes.get(&ino) {
            None => vec![libc::ESTALE],
            Some(node) if node.kind != FileKind::Directory => vec![libc::ENOTDIR],
            Some(_) => Vec::new(),
        }
    }

    /// For what only regular files have.
    pub fn file_errors(&self, ino: u64) -> Vec<i32> {
        match self.nodes.get(&ino).map(|node| node.kind) {
            None => vec![libc::ESTALE],
            Some(FileKind::File) => Vec::new(),
            Some(FileKind::Directory) => vec![libc::EISDIR],
            Some(_) => vec![libc::EINVAL],
        }
    }

    /// Whether directory `inner` is `outer` or below it.
    fn lies_in(&self, mut inner: u64, outer: u64) -> bool {
        while inner != outer {
            if inner == ROOT || !self.nodes.contains_key(&inner) {
                return false;
            }
            inner = self.parent(inner);
        }
        true
    }

    /// For a new name in a directory.
    fn vacancy_errors(&self, parent: u64, name: &[u8]) -> Vec<i32> {
        let mut errors = name_errors(name);
        errors.extend(self.directory_errors(parent));
        if errors.is_empty() {
            if self.node(parent).nlink == 0 {
                errors.push(libc::ENOENT);
            }
            if self.get(parent, name).is_some() {
                errors.push(libc::EEXIST);
            }
        }
        errors
    }

    pub fn make_errors(&self, parent: u64, name: &[u8], new: &NewFile<'_>) -> Vec<i32> {
        let mut errors = self.vacancy_errors(parent, name);
        if new.kind == FileKind::Symlink {
            if new.target.len() > 4095 {
                errors.push(libc::ENAMETOOLONG);
            }
            if new.target.is_empty() || new.target.contains(&0) {
                errors.push(libc::EINVAL);
            }
        }
        errors
    }

    pub fn make(
        &mut self,
        parent: u64,
        name: &[u8],
        ino: u64,
        life: u64,
        new: &NewFile<'_>,
    ) -> Stamps {
        let directory = new.kind == FileKind::Directory;
        let above = self.node(parent);
        let set_gid = above.perm & SET_GID != 0;
        let default = above
            .xattrs
            .get(acl::DEFAULT)
            .filter(|_| new.kind != FileKind::Symlink);
        let (mut perm, xattrs) = match default {
            Some(default) => acl::inherit(default, new.kind, new.perm),
            None => (new.perm & !new.umask, Vec::new()),
        };
        if set_gid && directory {
            perm |= SET_GID;
        }
        let zero = Timestamp { secs: 0, nanos: 0 };
        let node = Node {
            kind: new.kind,
            perm: if new.kind == FileKind::Symlink {
                0o777
            } else {
                perm
            },
            uid: new.caller.uid,
            gid: if set_gid { above.gid } else { new.caller.gid },
            nlink: if directory { 2 } else { 1 },
            rdev: new.rdev,
            atime: zero,
            mtime: zero,
            ctime: zero,
            btime: zero,
            xattrs: xattrs.into_iter().collect(),
            body: match new.kind {
                FileKind::File => Body::File(Bytes::default()),
                FileKind::Directory => Body::Directory {
                    parent,
                    entries: BTreeMap::new(),
                },
                FileKind::Symlink => Body::Symlink(new.target.to_vec()),
                _ => Body::Other,
            },
        };
        self.nodes.insert(ino, Arc::new(node));
        self.edit(parent).nlink += u32::from(directory);
        self.edit_entries(parent)
            .insert(name.to_vec(), Named { ino, life });
        let mut stamps = Stamps::new();
        changed(&mut stamps, parent, true);
        let all = Touched {
            atime: true,
            mtime: true,
            ctime: true,
            btime: true,
        };
        stamps.insert(ino, all);
        stamps
    }

    pub fn link_errors(&self, ino: u64, parent: u64, name: &[u8]) -> Vec<i32> {
        let mut errors = self.vacancy_errors(parent, name);
        match self.nodes.get(&ino) {
            None => errors.push(libc::ESTALE),
            Some(node) if node.kind == FileKind::Directory => errors.push(libc::EPERM),
            Some(node) if node.nlink == 0 => errors.push(libc::ESTALE),
            Some(_) => {}
        }
        errors
    }

    pub fn link(&mut self, ino: u64, parent: u64, name: &[u8], life: u64) -> Stamps {
        self.edit(ino).nlink += 1;
        self.edit_entries(parent)
            .insert(name.to_vec(), Named { ino, life });
        let mut stamps = Stamps::new();
        changed(&mut stamps, parent, true);
        changed(&mut stamps, ino, false);
        stamps
    }

    pub fn remove_errors(&self, parent: u64, name: &[u8], directory: bool) -> Vec<i32> {
        let mut errors = name_errors(name);
        errors.extend(self.directory_errors(parent));
        if !errors.is_empty() {
            return errors;
        }
        match self.get(parent, name) {
            None => vec![libc::ENOENT],
            Some(ino) => match (directory, self.is_directory(ino)) {
                (true, false) => vec![libc::ENOTDIR],
                (false, true) => vec![libc::EISDIR],
                (true, true) if !self.entries(ino).is_empty() => vec![libc::ENOTEMPTY],
                _ => Vec::new(),
            },
        }
    }

    pub fn remove(&mut self, parent: u64, name: &[u8]) -> Stamps {
        let mut stamps = Stamps::new();
        if let Some(named) = self.edit_entries(parent).remove(name) {
            let directory = self.is_directory(named.ino);
            self.edit(parent).nlink -= u32::from(directory);
            self.lose_name(named.ino, &mut stamps);
        }
        changed(&mut stamps, parent, true);
        stamps
    }

    fn lose_name(&mut self, ino: u64, stamps: &mut Stamps) {
        let node = self.edit(ino);
        node.nlink = if node.kind == FileKind::Directory {
            0
        } else {
            node.nlink - 1
        };
        changed(stamps, ino, false);
    }

    pub fn rename_errors(
        &self,
        (from, from_name): (u64, &[u8]),
        (to, to_name): (u64, &[u8]),
        flags: RenameFlags,
    ) -> Vec<i32> {
        let mut errors = name_errors(from_name);
        errors.extend(name_errors(to_name));
        if flags.exchange && (flags.no_replace || flags.whiteout) {
            errors.push(libc::EINVAL);
        }
        errors.extend(self.directory_errors(from));
        errors.extend(self.directory_errors(to));
        if !errors.is_empty() {
            // Whichever is looked at first.
            if self.is_directory(from) && self.get(from, from_name).is_none() {
                errors.push(libc::ENOENT);
            }
            return errors;
        }
        let target = self.get(to, to_name);
        if self.node(to).nlink == 0 {
            errors.push(libc::ENOENT);
        }
        let Some(source) = self.get(from, from_name) else {
            errors.push(libc::ENOENT);
            return errors;
        };
        if flags.no_replace && target.is_some() {
            errors.push(libc::EEXIST);
        }
        if self.is_directory(source) && self.lies_in(to, source) {
            errors.push(libc::EINVAL);
        }
        match target {
            None if flags.exchange => errors.push(libc::ENOENT),
            Some(target) if target == source => {}
            Some(target)
                if flags.exchange && self.is_directory(target) && self.lies_in(from, target) =>
            {
                errors.push(libc::EINVAL);
            }
            Some(_) if flags.exchange => {}
            Some(target) => match (self.is_directory(source), self.is_directory(target)) {
                (true, false) => errors.push(libc::ENOTDIR),
                (source_too, true) => {
                    if !source_too {
                        errors.push(libc::EISDIR);
                    }
                    if !self.entries(target).is_empty() {
                        errors.push(libc::ENOTEMPTY);
                    }
                }
                (false, false) => {}
            },
            None => {}
        }
        errors
    }

    /// `whiteout` is the number of the device left behind, if one is.
    pub fn rename(
        &mut self,
        (from, from_name): (u64, &[u8]),
        (to, to_name): (u64, &[u8]),
        exchange: bool,
        whiteout: Option<u64>,
        life: u64,
    ) -> Stamps {
        let mut stamps = Stamps::new();
        let source = self.entries(from)[from_name];
        let target = self.entries(to).get(to_name).copied();
        if target.is_some_and(|target| target.ino == source.ino) {
            return stamps;
        }
        changed(&mut stamps, from, true);
        changed(&mut stamps, to, true);
        changed(&mut stamps, source.ino, false);
        let place = |ino, life| Named { ino, life };
        if let (true, Some(target)) = (exchange, target) {
            self.edit_entries(to)
                .insert(to_name.to_vec(), place(source.ino, target.life));
            self.edit_entries(from)
                .insert(from_name.to_vec(), place(target.ino, source.life));
            self.moved(source.ino, from, to);
            self.moved(target.ino, to, from);
            changed(&mut stamps, target.ino, false);
            return stamps;
        }
        if let Some(target) = target {
            let directory = self.is_directory(target.ino);
            self.edit(to).nlink -= u32::from(directory);
            self.lose_name(target.ino, &mut stamps);
        }
        self.edit_entries(from).remove(from_name);
        let life_there = target.map_or(life, |target| target.life);
        self.edit_entries(to)
            .insert(to_name.to_vec(), place(source.ino, life_there));
        self.moved(source.ino, from, to);
        if let Some(ino) = whiteout {
            let new = NewFile {
                caller: Caller { uid: 0, gid: 0 },
                kind: FileKind::CharDevice,
                perm: 0,
                umask: 0,
                rdev: 0,
                target: b"",
            };
            // It is the old name's place in a listing that is not kept.
            let made = self.make(from, from_name, ino, life + 1, &new);
            stamps.extend(made);
        }
        stamps
    }

    fn moved(&mut self, ino: u64, from: u64, to: u64) {
        if self.is_directory(ino) {
            self.edit(from).nlink -= 1;
            self.edit(to).nlink += 1;
            if let Body::Directory { parent, .. } = &mut self.edit(ino).body {
                *parent = to;
            }
        }
    }

    /// Contents or owner changed: set-id bits and capabilities go.
    pub fn kill_set_id(&mut self, ino: u64) {
        let node = self.edit(ino);
        node.perm &= !SET_UID;
        if node.perm & GROUP_EXEC != 0 {
            node.perm &= !SET_GID;
        }
        node.xattrs.remove(CAPABILITY);
    }

    pub fn chmod(&mut self, ino: u64, perm: u16) {
        let node = self.edit(ino);
        node.perm = perm & 0o7777;
        if let Some(value) = node.xattrs.get_mut(acl::ACCESS) {
            *value = acl::chmod(value, perm);
        }
    }

    pub fn xattr_name_errors(name: &[u8]) -> Vec<i32> {
        let mut errors = Vec::new();
        let known = [&b"user."[..], b"trusted.", b"security."]
            .iter()
            .any(|prefix| name.starts_with(prefix) && name.len() > prefix.len());
        if name.len() > 255 {
            errors.push(libc::ENAMETOOLONG);
        }
        if name.contains(&0) {
            errors.push(libc::EINVAL);
        }
        if !known && name != acl::ACCESS && name != acl::DEFAULT {
            errors.push(libc::EOPNOTSUPP);
        }
        errors
    }

    /// Sets an attribute that may be set. ACLs are tied to the mode.
    pub fn set_xattr(&mut self, caller: Caller, ino: u64, name: &[u8], value: &[u8]) -> Stamps {
        let node = self.edit(ino);
        let mut keep = true;
        if name == acl::ACCESS {
            node.perm = node.perm & !0o777 | acl::mode_bits(value);
            if caller.uid != 0 && caller.gid != node.gid {
                node.perm &= !SET_GID;
            }
            keep = !acl::is_minimal(value);
        }
        if keep {
            node.xattrs.insert(name.to_vec(), value.to_vec());
        } else {
            node.xattrs.remove(name);
        }
        let mut stamps = Stamps::new();
        changed(&mut stamps, ino, false);
        stamps
    }

    pub fn remove_xattr(&mut self, caller: Caller, ino: u64, name: &[u8]) -> Stamps {
        let mut stamps = Stamps::new();
        let node = self.edit(ino);
        if node.xattrs.remove(name).is_some() {
            if name == acl::ACCESS && caller.uid != 0 && caller.gid != node.gid {
                node.perm &= !SET_GID;
            }
            changed(&mut stamps, ino, false);
        }
        stamps
    }
}
