//! What is told of a difference: one entry a path.

use super::pair::{Named, Pair};
use crate::attr::{Attr, FileKind};
use crate::id::{Ino, LayerId};

/// What became of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// It is there on the second side only.
    Added,
    /// It is there on the first side only.
    Deleted,
    /// Its contents differ.
    Modified,
    /// It has another place; its contents and attributes may differ as well.
    Renamed,
    /// It is of another kind.
    TypeChanged,
    /// Only attributes differ: mode, owner, group, device number, extended attributes, or the time
    /// of the last change (that of a directory does not count).
    Metadata,
}

/// A file as one side has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileVersion {
    /// Its inode.
    pub ino: Ino,
    /// The layer of the side.
    pub layer: LayerId,
    /// Its attributes there.
    pub attr: Attr,
}

/// A difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DiffEntry {
    /// The path on the second side; of what was deleted, on the first. Relative, bytes; the root
    /// is `.`.
    pub path: Vec<u8>,
    /// The path it had on the first side, if it was renamed.
    pub from: Option<Vec<u8>>,
    /// What became of it.
    pub change: FileChange,
    /// Whether its contents differ, of a file that both sides have.
    pub contents: bool,
    /// Whether its attributes differ, of a file that both sides have.
    pub metadata: bool,
    /// The file on the first side.
    pub old: Option<FileVersion>,
    /// The file on the second side.
    pub new: Option<FileVersion>,
}

/// Whether the attributes are equal that count, but for the time of the last change.
pub(crate) fn same_attributes(a: &Attr, b: &Attr) -> bool {
    (a.perm, a.uid, a.gid, a.rdev) == (b.perm, b.uid, b.gid, b.rdev)
}

fn version(named: &Named) -> FileVersion {
    FileVersion {
        ino: named.file.ino,
        layer: named.file.at,
        attr: named.file.row.attr,
    }
}

/// The entry of a pair, if it differs; `same_bytes` says whether contents were found to be equal.
pub(super) fn entry(pair: Pair, same_bytes: bool) -> Option<DiffEntry> {
    let (old, new) = (
        pair.old.as_ref().map(version),
        pair.new.as_ref().map(version),
    );
    let made = |named: Named, change| DiffEntry {
        path: named.path,
        from: None,
        change,
        contents: false,
        metadata: false,
        old,
        new,
    };
    match (pair.old, pair.new) {
        (None, None) => None,
        (Some(named), None) => Some(made(named, FileChange::Deleted)),
        (None, Some(named)) => Some(made(named, FileChange::Added)),
        (Some(before), Some(after)) => {
            let (a, b) = (before.file.row.attr, after.file.row.attr);
            let same_kind = a.kind == b.kind;
            let contents = !same_bytes || !same_kind;
            let same_time = a.mtime == b.mtime || a.kind == FileKind::Directory;
            let metadata = same_kind && !(pair.same_attributes && (contents || same_time));
            let change = match (pair.moved, same_kind) {
                (true, _) => FileChange::Renamed,
                (_, false) => FileChange::TypeChanged,
                _ if contents => FileChange::Modified,
                _ if metadata => FileChange::Metadata,
                _ => return None,
            };
            Some(DiffEntry {
                from: pair.moved.then_some(before.path),
                contents,
                metadata,
                ..made(after, change)
            })
        }
    }
}
