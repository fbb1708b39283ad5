//! A directory of the host, for real and in memory: both are changed together.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Names from the directory.
pub type HostPath = Vec<String>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostKind {
    Dir,
    File(Vec<u8>),
    Link(String),
}

/// A file or directory.
#[derive(Clone, Debug)]
pub struct HostNode {
    pub kind: HostKind,
    /// Another after each change that a workspace may notice.
    pub stamp: u64,
    pub links: u64,
}

/// The directory.
pub struct Host {
    pub dir: PathBuf,
    pub nodes: BTreeMap<u64, HostNode>,
    /// Names by path; the root is the empty one.
    pub names: BTreeMap<HostPath, u64>,
    next: u64,
}

impl Host {
    pub fn new(dir: &Path) -> Self {
        fs::create_dir(dir).unwrap();
        let root = HostNode {
            kind: HostKind::Dir,
            stamp: 0,
            links: 1,
        };
        Self {
            dir: dir.to_owned(),
            nodes: BTreeMap::from([(0, root)]),
            names: BTreeMap::from([(Vec::new(), 0)]),
            next: 1,
        }
    }

    fn path(&self, path: &HostPath) -> PathBuf {
        let mut full = self.dir.clone();
        full.extend(path);
        full
    }

    /// What is at a path.
    pub fn at(&self, path: &HostPath) -> Option<(u64, &HostNode)> {
        let id = *self.names.get(path)?;
        Some((id, &self.nodes[&id]))
    }

    /// Names in a directory.
    pub fn children(&self, dir: &HostPath) -> Vec<(String, u64)> {
        let below = self.names.range(dir.clone()..);
        let below = below.take_while(|(path, _)| path.starts_with(dir));
        below
            .filter(|(path, _)| path.len() == dir.len() + 1)
            .map(|(path, id)| (path[dir.len()].clone(), *id))
            .collect()
    }

    pub fn dirs(&self) -> Vec<HostPath> {
        self.of_kind(|kind| *kind == HostKind::Dir)
    }

    pub fn files(&self) -> Vec<HostPath> {
        self.of_kind(|kind| matches!(kind, HostKind::File(_)))
    }

    fn of_kind(&self, wanted: impl Fn(&HostKind) -> bool) -> Vec<HostPath> {
        let named = self.names.iter();
        named
            .filter(|(_, id)| wanted(&self.nodes[id].kind))
            .map(|(path, _)| path.clone())
            .collect()
    }

    fn stamp(&mut self, id: u64) {
        self.next += 1;
        let next = self.next;
        if let Some(node) = self.nodes.get_mut(&id) {
            node.stamp = next;
        }
    }

    fn add(&mut self, path: HostPath, kind: HostKind) {
        self.next += 1;
        let node = HostNode {
            kind,
            stamp: self.next,
            links: 1,
        };
        self.nodes.insert(self.next, node);
        self.names.insert(path, self.next);
    }

    /// Makes something in a directory, where nothing is.
    pub fn make(&mut self, path: HostPath, kind: HostKind) {
        if self.names.contains_key(&path) {
            return;
        }
        let full = self.path(&path);
        match &kind {
            HostKind::Dir => fs::create_dir(full),
            HostKind::File(bytes) => fs::write(full, bytes),
            HostKind::Link(target) => std::os::unix::fs::symlink(target, full),
        }
        .unwrap();
        self.add(path, kind);
    }

    /// Writes a file anew, in place.
    pub fn write(&mut self, path: &HostPath, bytes: Vec<u8>) {
        let full = self.path(path);
        let ctime = || {
            let meta = fs::metadata(&full).unwrap();
            (meta.ctime(), meta.ctime_nsec())
        };
        let before = ctime();
        fs::write(&full, &bytes).unwrap();
        // A kernel whose clock for files is coarse may take two changes for one.
        while ctime() == before {
            std::thread::sleep(std::time::Duration::from_millis(2));
            fs::write(&full, &bytes).unwrap();
        }
        let id = self.names[path];
        self.nodes.get_mut(&id).unwrap().kind = HostKind::File(bytes);
        self.stamp(id);
    }

    pub fn link(&mut self, path: &HostPath, to: HostPath) {
        if self.names.contains_key(&to) {
            return;
        }
        fs::hard_link(self.path(path), self.path(&to)).unwrap();
        let id = self.names[path];
        self.names.insert(to, id);
        self.nodes.get_mut(&id).unwrap().links += 1;
        self.stamp(id);
    }

    /// Removes a file, or a directory with all that is in it.
    pub fn remove(&mut self, path: &HostPath) {
        if path.is_empty() {
            return;
        }
        let full = self.path(path);
        if self.nodes[&self.names[path]].kind == HostKind::Dir {
            fs::remove_dir_all(full).unwrap();
        } else {
            fs::remove_file(full).unwrap();
        }
        for gone in self.below(path) {
            let id = self.names.remove(&gone).unwrap();
            let node = self.nodes.get_mut(&id).unwrap();
            node.links -= 1;
            if node.links == 0 {
                self.nodes.remove(&id);
            } else {
                self.stamp(id);
            }
        }
    }

    fn below(&self, path: &HostPath) -> Vec<HostPath> {
        let named = self.names.keys();
        named
            .filter(|name| name.starts_with(path))
            .cloned()
            .collect()
    }

    /// Moves something to where nothing is.
    pub fn rename(&mut self, path: &HostPath, to: HostPath) {
        if path.is_empty() || to.starts_with(path) || self.names.contains_key(&to) {
            return;
        }
        fs::rename(self.path(path), self.path(&to)).unwrap();
        self.stamp(self.names[path]);
        for old in self.below(path) {
            let id = self.names.remove(&old).unwrap();
            let mut new = to.clone();
            new.extend_from_slice(&old[path.len()..]);
            self.names.insert(new, id);
        }
    }
}
