//! What a check can find wrong.

use std::collections::BTreeMap;

use serde::Serialize;
use thiserror::Error;

use super::data::DataReport;
use super::places::Places;
use crate::id::{Ino, LayerId, ObjectId};

/// What a check of a store found.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct CheckReport {
    /// What is wrong; empty when the store is sound. At most [`CheckReport::LISTED`].
    pub problems: Vec<Problem>,
    /// Problems beyond those listed.
    pub more: u64,
    /// Layers looked at.
    pub layers: u64,
    /// Versions of inodes looked at.
    pub inodes: u64,
    /// Versions of names looked at.
    pub names: u64,
    /// Objects looked at.
    pub objects: u64,
    /// How long it took, in microseconds.
    pub elapsed_us: u64,
    /// What was read, if contents were verified.
    pub data: Option<DataReport>,
    /// Damage that is known: reading it fails, and so it breaks no rule.
    pub known: Vec<Found>,
    /// Where the files are that problems are about, by the place of the problem in the list.
    #[serde(skip)]
    pub places: BTreeMap<usize, Places>,
    /// Whether all problems are listed, however many there are.
    #[serde(skip)]
    pub(crate) unlimited: bool,
}

/// A problem, and where the file is that it is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Found {
    /// What.
    #[serde(flatten)]
    pub problem: Problem,
    /// Where.
    #[serde(skip)]
    pub places: Places,
}

impl CheckReport {
    /// Problems that a report lists one by one.
    pub const LISTED: usize = 1000;

    /// Whether nothing is wrong.
    #[must_use]
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty() && self.more == 0
    }

    pub(super) fn found(&mut self, problem: Problem) {
        if self.unlimited || self.problems.len() < Self::LISTED {
            self.problems.push(problem);
        } else {
            self.more += 1;
        }
    }
}

/// A table of the catalog.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Table {
    /// Versions of names.
    Dentry,
    /// Versions of inodes.
    Inode,
    /// Contents of small files, targets of symbolic links.
    Inline,
    /// Where the contents of larger files are.
    Extent,
    /// Extended attributes.
    Xattr,
    /// Files with contents.
    Object,
    /// What inodes stand for on the host.
    Host,
    /// Sandboxes.
    Sandbox,
}

impl std::fmt::Display for Table {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Dentry => "dentry",
            Self::Inode => "inode",
            Self::Inline => "inline",
            Self::Extent => "extent",
            Self::Xattr => "xattr",
            Self::Object => "object",
            Self::Host => "host",
            Self::Sandbox => "sandbox",
        })
    }
}

/// Something that breaks a rule of docs/format.md.
///
/// Names of files and attributes are shown with every byte outside printable ASCII escaped.
#[derive(Clone, Debug, Error, PartialEq, Eq, Serialize)]
#[serde(tag = "problem", rename_all = "snake_case")]
#[allow(
    missing_docs,
    reason = "the message of a variant says what its fields are"
)]
pub enum Problem {
    #[error("layer {layer} is on layer {parent}, which does not exist")]
    LayerParentMissing { layer: LayerId, parent: LayerId },
    #[error("layer {layer} is on layer {parent}, whose id is not smaller")]
    LayerOrder { layer: LayerId, parent: LayerId },
    #[error("layer {layer} is on layer {parent}, which is not frozen")]
    LayerOnUnfrozen { layer: LayerId, parent: LayerId },
    #[error("layer {layer} has the unknown state {state}")]
    LayerState { layer: LayerId, state: i64 },
    #[error("layer {layer} records {recorded} bytes and shows {counted}")]
    LayerBytes {
        layer: LayerId,
        recorded: i64,
        counted: i64,
    },
    #[error("layer {layer} records {recorded} inodes and shows {counted}")]
    LayerInodes {
        layer: LayerId,
        recorded: i64,
        counted: i64,
    },
    #[error(
        "layer {layer} does not say that it belongs to the workspace of {user:?}, which has it"
    )]
    LayerOwner { layer: LayerId, user: String },
    #[error("layer {layer} has no root directory")]
    RootMissing { layer: LayerId },

    #[error("the workspace {workspace:?} has no layer")]
    WorkspaceWithoutLayer { workspace: String },
    #[error("the workspace {workspace:?} is on layer {layer}, which is not live")]
    WorkspaceLayer { workspace: String, layer: LayerId },
    #[error("layer {layer} belongs to the workspace {workspace:?} and to another one")]
    WorkspaceLayerShared { workspace: String, layer: LayerId },
    #[error("the deleted workspace {workspace:?} still has layer {layer}")]
    DeletedWorkspaceLayer { workspace: String, layer: LayerId },
    #[error("the snapshot {snapshot} is of layer {layer}, which is not frozen")]
    SnapshotLayer { snapshot: String, layer: LayerId },
    #[error("the snapshot {snapshot} is of a workspace that does not exist")]
    SnapshotWorkspace { snapshot: String },
    #[error("the row {key:?} of the table {table} names what does not exist")]
    Dangling { table: String, key: String },

    #[error("a row of the table {table} has a value out of range: {row}")]
    Value { table: Table, row: String },
    #[error("a row of the table {table} is of layer {layer}, which does not exist: {row}")]
    UnknownLayer {
        table: Table,
        layer: LayerId,
        row: String,
    },
    #[error("the {what} {number} was never handed out: the next is {next}")]
    NumberAhead {
        what: &'static str,
        number: u64,
        next: u64,
    },

    #[error(
        "layer {layer}: the name \"{name}\" in directory {parent} shadows an older one and does \
         not say so"
    )]
    NotMarkedShadowing {
        layer: LayerId,
        parent: Ino,
        name: String,
    },
    #[error("layer {layer}: two names in directory {parent} have the cookie {cookie}")]
    CookieTwice {
        layer: LayerId,
        parent: Ino,
        cookie: u64,
    },
    #[error(
        "layer {layer}: a name in directory {parent} leads to inode {ino}, which does not exist"
    )]
    NameToNothing {
        layer: LayerId,
        parent: Ino,
        ino: Ino,
    },
    #[error("layer {layer}: a name in directory {parent} gives inode {ino} another kind")]
    NameKind {
        layer: LayerId,
        parent: Ino,
        ino: Ino,
    },
    #[error(
        "layer {layer}: {names} names are in inode {ino}, which is no directory or was removed"
    )]
    NamesInNoDirectory {
        layer: LayerId,
        ino: Ino,
        names: i64,
    },

    #[error("layer {layer}: inode {ino} counts {nlink} links and has {names} names")]
    Links {
        layer: LayerId,
        ino: Ino,
        nlink: i64,
        names: i64,
    },
    #[error("layer {layer}: directory {ino} has {names} names")]
    DirectoryNames {
        layer: LayerId,
        ino: Ino,
        names: i64,
    },
    #[error("layer {layer}: directory {ino} says it is in {parent}, which has no name for it")]
    DirectoryParent {
        layer: LayerId,
        ino: Ino,
        parent: Ino,
    },
    #[error(
        "layer {layer}: directory {ino} counts {nlink} links and has {directories} directories in it"
    )]
    DirectoryLinks {
        layer: LayerId,
        ino: Ino,
        nlink: i64,
        directories: i64,
    },
    #[error("layer {layer}: directory {ino} lies in itself")]
    DirectoryLoop { layer: LayerId, ino: Ino },
    #[error("layer {layer}: inode {ino} changed its kind")]
    KindChanged { layer: LayerId, ino: Ino },
    #[error("layer {layer}: inode {ino} says it was made in layer {born}")]
    Born {
        layer: LayerId,
        ino: Ino,
        born: LayerId,
    },
    #[error("layer {layer}: inode {ino} was gone and is there again")]
    Resurrected { layer: LayerId, ino: Ino },
    #[error("layer {layer}: inode {ino} has no name, and nobody has the workspace open")]
    LeftUnlinked { layer: LayerId, ino: Ino },

    #[error("layer {layer}: the table {table} has rows of inode {ino}, the table inode none")]
    RowsWithoutInode {
        layer: LayerId,
        ino: Ino,
        table: Table,
    },
    #[error("layer {layer}: inode {ino} has contents of kind {content} and not the rows for it")]
    ContentRows {
        layer: LayerId,
        ino: Ino,
        content: i64,
    },
    #[error("layer {layer}: inode {ino} has {len} bytes inline and says {size}")]
    InlineSize {
        layer: LayerId,
        ino: Ino,
        size: i64,
        len: i64,
    },
    #[error("layer {layer}: inode {ino} has extended attributes and says it has none")]
    XattrUnannounced { layer: LayerId, ino: Ino },
    #[error("layer {layer}: the extent of inode {ino} at block {start} is empty")]
    ExtentEmpty {
        layer: LayerId,
        ino: Ino,
        start: i64,
    },
    #[error("layer {layer}: the extent of inode {ino} at block {start} overlaps the one before")]
    ExtentOverlap {
        layer: LayerId,
        ino: Ino,
        start: i64,
    },
    #[error("layer {layer}: an extent of inode {ino} is in object {object}, which has no row")]
    ExtentObject {
        layer: LayerId,
        ino: Ino,
        object: ObjectId,
    },
    #[error(
        "layer {layer}: an extent of inode {ino} is in object {object}, which belongs to another file or layer"
    )]
    ExtentForeignObject {
        layer: LayerId,
        ino: Ino,
        object: ObjectId,
    },

    #[error("layer {layer}: what inode {ino} stands for on the host is unclear")]
    Host { layer: LayerId, ino: Ino },
    #[error("layer {layer}: the contents of inode {ino} were taken from the host and are missing")]
    HostContents { layer: LayerId, ino: Ino },

    #[error("object {object} is the second of inode {ino} in layer {layer}")]
    ObjectTwice {
        object: ObjectId,
        layer: LayerId,
        ino: Ino,
    },
    #[error("no extent is in object {object}")]
    ObjectUnused { object: ObjectId },
    #[error("object {object} is in use and given up at once")]
    ObjectDoomed { object: ObjectId },
    #[error("the file of object {object} is missing")]
    ObjectFileMissing { object: ObjectId },
    #[error("the file of object {object} belongs to nothing")]
    ObjectFileOrphan { object: ObjectId },
    #[error("{path:?} does not belong into a store")]
    UnexpectedFile { path: String },

    #[error("object {object} says that it was hashed, and has no checksum")]
    ChecksumMissing { object: ObjectId },
    #[error("there is a checksum of object {object}, which does not exist or does not say so")]
    ChecksumStray { object: ObjectId },
    #[error("the checksum of object {object} is none")]
    ChecksumDamaged { object: ObjectId },
    #[error("{} (object {:x}, {why})", bytes(*start, *end), object.0)]
    Damaged {
        object: ObjectId,
        ino: Ino,
        /// The bytes of the file and of the object, from...
        start: u64,
        /// ...to before.
        end: u64,
        why: Damage,
    },
}

/// Bytes in words.
fn bytes(start: u64, end: u64) -> String {
    if end == i64::MAX.unsigned_abs() {
        return "all bytes".to_owned();
    }
    format!("bytes {start}-{}", end.saturating_sub(1))
}

/// What is wrong with bytes of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Damage {
    /// They are not what was hashed.
    Changed,
    /// The object's file ends before them.
    Short,
    /// The disk does not give them out.
    Unreadable,
    /// It is known that they are not what they were: reading them fails.
    Known,
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Changed => "not what it was",
            Self::Short => "cut off",
            Self::Unreadable => "unreadable",
            Self::Known => "known, reading it fails",
        })
    }
}

impl Problem {
    /// The layer and inode that it is about, if it is about one.
    pub(crate) fn subject(&self) -> Option<(LayerId, Ino)> {
        match *self {
            Self::NameToNothing {
                layer, parent: ino, ..
            }
            | Self::NotMarkedShadowing {
                layer, parent: ino, ..
            }
            | Self::CookieTwice {
                layer, parent: ino, ..
            }
            | Self::NameKind { layer, ino, .. }
            | Self::NamesInNoDirectory { layer, ino, .. }
            | Self::Links { layer, ino, .. }
            | Self::DirectoryNames { layer, ino, .. }
            | Self::DirectoryParent { layer, ino, .. }
            | Self::DirectoryLinks { layer, ino, .. }
            | Self::KindChanged { layer, ino }
            | Self::Born { layer, ino, .. }
            | Self::Resurrected { layer, ino }
            | Self::RowsWithoutInode { layer, ino, .. }
            | Self::ContentRows { layer, ino, .. }
            | Self::InlineSize { layer, ino, .. }
            | Self::XattrUnannounced { layer, ino }
            | Self::ExtentEmpty { layer, ino, .. }
            | Self::ExtentOverlap { layer, ino, .. }
            | Self::ExtentObject { layer, ino, .. }
            | Self::ExtentForeignObject { layer, ino, .. }
            | Self::Host { layer, ino }
            | Self::HostContents { layer, ino } => Some((layer, ino)),
            _ => None,
        }
    }
}
