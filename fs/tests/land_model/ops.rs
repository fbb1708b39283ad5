//! Trees by path, and random changes of them.

use std::collections::BTreeMap;

use floe_fs::View;
use floe_fs::attr::FileKind;
use floe_fs::dispatch::{Dispatch, NewNode, RenameFlags, SetAttr};
use floe_fs::id::Ino;

use crate::common::{self, ROOT_USER, read, write};

/// A file or directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Node {
    pub directory: bool,
    pub perm: u16,
    pub contents: Vec<u8>,
}

pub type Tree = BTreeMap<String, Node>;

/// What is done at a path, where it can be.
#[derive(Clone, Debug)]
pub enum Op {
    /// Writes over a file, or makes it.
    Write {
        path: usize,
        contents: u8,
    },
    /// Puts a new file in the place of one.
    Save {
        path: usize,
        contents: u8,
    },
    Mkdir {
        path: usize,
    },
    Remove {
        path: usize,
    },
    Chmod {
        path: usize,
        perm: u8,
    },
    Rename {
        from: usize,
        to: usize,
    },
    Link {
        from: usize,
        to: usize,
    },
}

/// Paths that operations are about, parents before what is in them.
pub const PATHS: [&str; 16] = [
    "a", "b", "d", "d/a", "d/b", "d/e", "d/e/a", "d/e/b", "f", "f/a", "f/g", "f/g/a", "h", "h/a",
    "h/b", "h/i",
];

/// Few, so that both sides do the same now and then. Some are too large for the catalog.
pub fn contents(number: u8) -> Vec<u8> {
    match number % 6 {
        0 => Vec::new(),
        1 => b"one\n".to_vec(),
        2 => b"two\n".to_vec(),
        3 => vec![b'x'; 9_000],
        4 => [vec![b'x'; 70_000], vec![b'y'; 200_000]].concat(),
        _ => [vec![b'x'; 70_000], vec![b'z'; 200_000]].concat(),
    }
}

pub struct At {
    parent: Ino,
    name: String,
    ino: Option<Ino>,
}

/// Where a path leads; none if a directory on the way is missing.
pub fn find(view: &View, path: &str) -> Option<At> {
    let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
    let parent = match parent {
        "" => Ino::ROOT,
        parent => find(view, parent)?.ino?,
    };
    if view.getattr(parent).unwrap().kind != FileKind::Directory {
        return None;
    }
    let found = view.lookup(parent, name.as_bytes()).unwrap();
    Some(At {
        parent,
        name: name.to_owned(),
        ino: found.map(|entry| entry.ino),
    })
}

pub fn kind(view: &View, ino: Ino) -> FileKind {
    view.getattr(ino).unwrap().kind
}

pub fn node(kind: FileKind, perm: u16) -> NewNode<'static> {
    NewNode {
        kind,
        perm,
        umask: 0,
        rdev: 0,
        target: b"",
    }
}

pub fn make(view: &View, at: &At, name: &str, kind: FileKind, bytes: &[u8]) {
    let perm = if kind == FileKind::Directory {
        0o755
    } else {
        0o644
    };
    let made = view.make(ROOT_USER, at.parent, name.as_bytes(), node(kind, perm));
    if !bytes.is_empty() {
        write(view, made.unwrap().ino, 0, bytes);
    }
}

pub fn set(view: &View, ino: Ino, size: Option<u64>, perm: Option<u16>) {
    let changes = SetAttr {
        size,
        perm,
        ..SetAttr::default()
    };
    view.setattr(ROOT_USER, ino, changes).unwrap();
}

pub fn remove(view: &View, at: &At) {
    let Some(ino) = at.ino else { return };
    if kind(view, ino) != FileKind::Directory {
        return view.unlink(at.parent, at.name.as_bytes()).unwrap();
    }
    for name in common::list(view, ino) {
        let found = view.lookup(ino, name.as_bytes()).unwrap();
        let inner = At {
            parent: ino,
            name,
            ino: found.map(|entry| entry.ino),
        };
        remove(view, &inner);
    }
    view.rmdir(at.parent, at.name.as_bytes()).unwrap();
}

pub fn apply(view: &View, op: &Op) {
    let at = |path: usize| find(view, PATHS[path % PATHS.len()]);
    match *op {
        Op::Write { path, contents: c } => {
            let Some(at) = at(path) else { return };
            match at.ino {
                None => make(view, &at, &at.name, FileKind::File, &contents(c)),
                Some(ino) if kind(view, ino) == FileKind::File => {
                    set(view, ino, Some(0), None);
                    write_all(view, ino, &contents(c));
                }
                Some(_) => {}
            }
        }
        Op::Save { path, contents: c } => {
            let Some(at) = at(path) else { return };
            if at
                .ino
                .is_some_and(|ino| kind(view, ino) == FileKind::Directory)
            {
                return;
            }
            make(view, &at, "aside", FileKind::File, &contents(c));
            let (from, to) = ((at.parent, &b"aside"[..]), (at.parent, at.name.as_bytes()));
            view.rename(from, to, RenameFlags::default()).unwrap();
        }
        Op::Mkdir { path } => {
            let Some(at) = at(path) else { return };
            if at.ino.is_none() {
                make(view, &at, &at.name, FileKind::Directory, b"");
            }
        }
        Op::Remove { path } => {
            if let Some(at) = at(path) {
                remove(view, &at);
            }
        }
        Op::Chmod { path, perm } => {
            if let Some(ino) = at(path).and_then(|at| at.ino) {
                let perm = [0o600, 0o640, 0o755][usize::from(perm) % 3];
                set(view, ino, None, Some(perm));
            }
        }
        Op::Rename { from, to } => {
            if let (Some(from), Some(to)) = (at(from), at(to)) {
                let names = (
                    (from.parent, from.name.as_bytes()),
                    (to.parent, to.name.as_bytes()),
                );
                // It may not be possible.
                drop(view.rename(names.0, names.1, RenameFlags::default()));
            }
        }
        Op::Link { from, to } => {
            if let (Some(At { ino: Some(ino), .. }), Some(to)) = (at(from), at(to)) {
                drop(view.link(ino, to.parent, to.name.as_bytes()));
            }
        }
    }
}

pub fn write_all(view: &View, ino: Ino, bytes: &[u8]) {
    if !bytes.is_empty() {
        write(view, ino, 0, bytes);
    }
}

pub fn scan(view: &View) -> Tree {
    let mut tree = Tree::new();
    let mut waiting = vec![(Ino::ROOT, String::new())];
    while let Some((directory, path)) = waiting.pop() {
        for name in common::list(view, directory) {
            let found = view.lookup(directory, name.as_bytes()).unwrap().unwrap();
            let path = match path.len() {
                0 => name,
                _ => format!("{path}/{name}"),
            };
            let is_directory = found.attr.kind == FileKind::Directory;
            if is_directory {
                waiting.push((found.ino, path.clone()));
            }
            let node = Node {
                directory: is_directory,
                perm: found.attr.perm,
                contents: match is_directory {
                    true => Vec::new(),
                    false => read(view, found.ino),
                },
            };
            tree.insert(path, node);
        }
    }
    tree
}

/// The same, but with its paths among a few.
pub fn within(op: &Op, paths: &[usize]) -> Op {
    let at = |path: usize| paths[path % paths.len()];
    let mut op = op.clone();
    match &mut op {
        Op::Write { path, .. } | Op::Save { path, .. } | Op::Chmod { path, .. } => {
            *path = at(*path)
        }
        Op::Mkdir { path } | Op::Remove { path } => *path = at(*path),
        Op::Rename { from, to } | Op::Link { from, to } => (*from, *to) = (at(*from), at(*to)),
    }
    op
}
