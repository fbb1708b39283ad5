//! Everything that can be read of a directory tree, as a value: its digest, and what differs from
//! another.
//!
//! What is recorded of each file: path as bytes, kind, permission bits, owner, link count and which
//! paths share the inode, size, mtime in nanoseconds, device number, symbolic link target, extended
//! attributes, and a blake3 hash of the contents. Of directories, size and link count are left out:
//! they say more about the file system than about the tree. Inode numbers are kept beside the rest
//! and take no part in comparisons.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::xattrs;

/// What takes part in a scan.
#[derive(Clone, Copy, Debug)]
pub struct ScanOptions {
    /// Modification times.
    pub times: bool,
    /// Owner and group.
    pub owners: bool,
    /// Extended attributes and ACLs.
    pub xattrs: bool,
    /// Hash regular files' contents.
    pub contents: bool,
}

impl ScanOptions {
    /// Everything.
    pub const ALL: Self = Self {
        times: true,
        owners: true,
        xattrs: true,
        contents: true,
    };
    /// Everything but modification times, to compare two trees made by the same operations.
    pub const NO_TIMES: Self = Self {
        times: false,
        ..Self::ALL
    };
    /// Names and attributes only.
    pub const NO_CONTENTS: Self = Self {
        contents: false,
        ..Self::ALL
    };
}

/// One file of a [`Tree`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    /// Kind of file: `file`, `dir`, `symlink`, `block`, `char`, `fifo` or `socket`.
    pub kind: &'static str,
    /// Permission bits.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Link count; 0 for directories.
    pub nlink: u64,
    /// Size in bytes; 0 for directories.
    pub size: u64,
    /// Modification time: seconds and nanoseconds.
    pub mtime: (i64, i64),
    /// Device number of a device node.
    pub rdev: u64,
    /// Target of a symbolic link.
    pub target: Vec<u8>,
    /// Extended attributes.
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Hash of a regular file's contents.
    pub content: Option<blake3::Hash>,
    /// The first path, in byte order, that is the same inode; `None` where this is it.
    pub same_as: Option<Vec<u8>>,
}

/// A directory tree as it was read. The root's own path is empty.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Where it was read.
    pub root: PathBuf,
    /// Every file by its path below the root.
    pub nodes: BTreeMap<Vec<u8>, Node>,
    /// Inode numbers by path.
    pub inos: BTreeMap<Vec<u8>, u64>,
}

impl Tree {
    /// Reads the tree at `root`.
    ///
    /// # Panics
    /// When anything in it cannot be read, with the path.
    #[must_use]
    #[track_caller]
    pub fn scan(root: &Path, options: ScanOptions) -> Self {
        match Self::try_scan(root, options) {
            Ok(tree) => tree,
            Err((path, error)) => panic!("scanning {}: {error}", path.display()),
        }
    }

    /// Reads the tree at `root`.
    ///
    /// # Errors
    /// The first path that could not be read, and why.
    pub fn try_scan(root: &Path, options: ScanOptions) -> Result<Self, (PathBuf, io::Error)> {
        let mut nodes = BTreeMap::new();
        let mut inos = BTreeMap::new();
        let mut waiting = vec![Vec::new()];
        while let Some(relative) = waiting.pop() {
            let path = join(root, &relative);
            let (node, ino) = read_node(&path, options).map_err(|error| (path.clone(), error))?;
            if node.kind == "dir" {
                for entry in fs::read_dir(&path).map_err(|error| (path.clone(), error))? {
                    let name = entry.map_err(|error| (path.clone(), error))?.file_name();
                    let mut child = relative.clone();
                    if !child.is_empty() {
                        child.push(b'/');
                    }
                    child.extend_from_slice(name.as_bytes());
                    waiting.push(child);
                }
            }
            inos.insert(relative.clone(), ino);
            nodes.insert(relative, node);
        }
        let mut tree = Self {
            root: root.to_path_buf(),
            nodes,
            inos,
        };
        tree.find_hard_links();
        Ok(tree)
    }

    fn find_hard_links(&mut self) {
        let mut first: HashMap<u64, &Vec<u8>> = HashMap::new();
        for (path, node) in &mut self.nodes {
            if node.nlink > 1 {
                match first.get(&self.inos[path]) {
                    Some(known) => node.same_as = Some((*known).clone()),
                    None => {
                        first.insert(self.inos[path], path);
                    }
                }
            }
        }
    }

    /// One hash over everything that was read.
    #[must_use]
    pub fn digest(&self) -> blake3::Hash {
        let mut hasher = blake3::Hasher::new();
        for (path, node) in &self.nodes {
            hasher.update(&(path.len() as u64).to_le_bytes());
            hasher.update(path);
            // Debug quotes and delimits every field, so no two nodes print alike.
            hasher.update(format!("{node:?}").as_bytes());
        }
        hasher.finalize()
    }

    /// Every difference between this tree and `other`, in path order.
    #[must_use]
    pub fn differences(&self, other: &Self) -> Vec<Difference> {
        let mut found = Vec::new();
        for (path, node) in &self.nodes {
            match other.nodes.get(path) {
                None => found.push(Difference::new(path, format!("only here: {node}"))),
                Some(theirs) if theirs != node => {
                    found.push(Difference::new(path, node.changes(theirs)));
                }
                Some(_) => {}
            }
        }
        for (path, node) in &other.nodes {
            if !self.nodes.contains_key(path) {
                found.push(Difference::new(path, format!("only there: {node}")));
            }
        }
        found.sort();
        found
    }

    /// Checks that two trees are the same.
    ///
    /// # Panics
    /// When they are not, with the first twenty differences.
    #[track_caller]
    pub fn assert_same(&self, other: &Self) {
        let differences = self.differences(other);
        if differences.is_empty() {
            assert_eq!(
                self.digest(),
                other.digest(),
                "equal trees have equal digests"
            );
            return;
        }
        let shown: Vec<_> = differences
            .iter()
            .take(20)
            .map(ToString::to_string)
            .collect();
        panic!(
            "{} differences between {} (here) and {} (there):\n{}",
            differences.len(),
            self.root.display(),
            other.root.display(),
            shown.join("\n")
        );
    }
}

/// One path that two trees disagree on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Difference {
    /// The path below the root.
    pub path: Vec<u8>,
    /// What differs.
    pub what: String,
}

impl Difference {
    fn new(path: &[u8], what: String) -> Self {
        Self {
            path: path.to_vec(),
            what,
        }
    }
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{:?}: {}",
            String::from_utf8_lossy(&self.path),
            self.what
        )
    }
}

impl Node {
    fn fields(&self) -> [(&'static str, String); 11] {
        [
            ("kind", self.kind.to_owned()),
            ("mode", format!("{:04o}", self.mode)),
            ("uid", self.uid.to_string()),
            ("gid", self.gid.to_string()),
            ("nlink", self.nlink.to_string()),
            ("size", self.size.to_string()),
            ("mtime", format!("{}.{:09}", self.mtime.0, self.mtime.1)),
            ("rdev", format!("{:#x}", self.rdev)),
            (
                "target",
                format!("{:?}", String::from_utf8_lossy(&self.target)),
            ),
            ("xattrs", format!("{:?}", lossy(&self.xattrs))),
            (
                "content",
                self.content
                    .map_or_else(String::new, |hash| hash.to_hex()[..16].into()),
            ),
        ]
    }

    fn changes(&self, other: &Self) -> String {
        let mut text = Vec::new();
        for ((name, here), (_, there)) in self.fields().iter().zip(other.fields()) {
            if *here != there {
                text.push(format!("{name} {here} here, {there} there"));
            }
        }
        if self.same_as != other.same_as {
            let name = |same: &Option<Vec<u8>>| match same {
                Some(path) => format!("{:?}", String::from_utf8_lossy(path)),
                None => "nothing before it".to_owned(),
            };
            text.push(format!(
                "linked to {} here, {} there",
                name(&self.same_as),
                name(&other.same_as)
            ));
        }
        text.join("; ")
    }
}

impl fmt::Display for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} mode {:04o}, {} bytes",
            self.kind, self.mode, self.size
        )
    }
}

fn lossy(xattrs: &BTreeMap<Vec<u8>, Vec<u8>>) -> Vec<(String, String)> {
    let text = |bytes: &[u8]| bytes.escape_ascii().to_string();
    xattrs
        .iter()
        .map(|(name, value)| (text(name), text(value)))
        .collect()
}

fn join(root: &Path, relative: &[u8]) -> PathBuf {
    if relative.is_empty() {
        return root.to_path_buf();
    }
    root.join(std::ffi::OsString::from_vec(relative.to_vec()))
}

fn read_node(path: &Path, options: ScanOptions) -> io::Result<(Node, u64)> {
    let meta = fs::symlink_metadata(path)?;
    let kind = kind_of(meta.file_type());
    let is_dir = kind == "dir";
    let node = Node {
        kind,
        mode: meta.mode() & 0o7777,
        uid: if options.owners { meta.uid() } else { 0 },
        gid: if options.owners { meta.gid() } else { 0 },
        nlink: if is_dir { 0 } else { meta.nlink() },
        size: if is_dir { 0 } else { meta.size() },
        mtime: if options.times {
            (meta.mtime(), meta.mtime_nsec())
        } else {
            (0, 0)
        },
        rdev: if matches!(kind, "block" | "char") {
            meta.rdev()
        } else {
            0
        },
        target: if kind == "symlink" {
            fs::read_link(path)?.into_os_string().into_vec()
        } else {
            Vec::new()
        },
        xattrs: if options.xattrs {
            xattrs::read(path)?
        } else {
            BTreeMap::new()
        },
        content: if options.contents && kind == "file" {
            Some(hash(path)?)
        } else {
            None
        },
        same_as: None,
    };
    Ok((node, meta.ino()))
}

fn kind_of(file_type: fs::FileType) -> &'static str {
    if file_type.is_file() {
        "file"
    } else if file_type.is_dir() {
        "dir"
    } else if file_type.is_symlink() {
        "symlink"
    } else if file_type.is_block_device() {
        "block"
    } else if file_type.is_char_device() {
        "char"
    } else if file_type.is_fifo() {
        "fifo"
    } else {
        "socket"
    }
}

fn hash(path: &Path) -> io::Result<blake3::Hash> {
    let mut hasher = blake3::Hasher::new();
    hasher.update_reader(File::open(path)?)?;
    Ok(hasher.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::{PermissionsExt, symlink};

    fn sample(root: &Path) {
        fs::create_dir(root.join("d")).unwrap();
        fs::write(root.join("d/f"), "hello").unwrap();
        fs::hard_link(root.join("d/f"), root.join("d/g")).unwrap();
        symlink("f", root.join("d/l")).unwrap();
        fs::write(root.join(std::ffi::OsStr::from_bytes(b"odd\n\xff")), "").unwrap();
    }

    fn scan(root: &Path) -> Tree {
        Tree::scan(root, ScanOptions::NO_TIMES)
    }

    #[test]
    fn equal_trees_are_the_same_wherever_they_are() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        sample(a.path());
        sample(b.path());
        scan(a.path()).assert_same(&scan(b.path()));
        assert_eq!(scan(a.path()).nodes.len(), 6);
    }

    #[test]
    fn each_kind_of_change_is_one_difference_with_its_name() {
        type Change = fn(&Path);
        let changes: [(&str, Change); 6] = [
            ("content", |root| {
                fs::write(root.join("d/f"), "hullo").unwrap()
            }),
            ("size", |root| {
                fs::write(root.join("d/f"), "hello!").unwrap()
            }),
            ("mode", |root| {
                fs::set_permissions(root.join("d"), fs::Permissions::from_mode(0o711)).unwrap();
            }),
            ("target", |root| {
                fs::remove_file(root.join("d/l")).unwrap();
                symlink("g", root.join("d/l")).unwrap();
            }),
            ("only there", |root| {
                fs::write(root.join("new"), "").unwrap()
            }),
            ("linked to", |root| {
                fs::remove_file(root.join("d/g")).unwrap();
                fs::write(root.join("d/g"), "hello").unwrap();
            }),
        ];
        for (name, change) in changes {
            let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
            sample(a.path());
            sample(b.path());
            change(b.path());
            let (a, b) = (scan(a.path()), scan(b.path()));
            let differences = a.differences(&b);
            assert!(
                differences
                    .iter()
                    .any(|difference| difference.what.contains(name)),
                "{name}: {differences:?}"
            );
            assert_ne!(a.digest(), b.digest(), "{name}");
        }
    }

    #[test]
    fn extended_attributes_are_compared() {
        let (a, b) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        sample(a.path());
        sample(b.path());
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(b.path().join("d/f"), "user.k", b"v", flags).unwrap();
        let differences = scan(a.path()).differences(&scan(b.path()));
        assert_eq!(
            differences.len(),
            2,
            "both names of the inode: {differences:?}"
        );
        assert!(differences[0].what.contains("user.k"));
    }
}
