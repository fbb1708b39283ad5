//! Copy-on-write workspaces with constant-time snapshots and forks.
//!
//! # The model in one page
//!
//! A [`Store`] is one directory: a catalog (SQLite) and objects (files with contents). It holds
//! *layers*, each a set of changes against one parent layer. A *workspace* is a name for a `live`
//! layer; a *snapshot* is a `frozen` layer with an id. A frozen layer never changes again.
//!
//! Every version of a thing carries the layer that wrote it: directory entries are keyed
//! `(parent inode, name, layer)`, inodes `(inode, layer)`, contents likewise. A read at a layer
//! sees, for each key, the version whose layer is the nearest ancestor-or-self. Deletions are
//! explicit versions. So
//!
//! * a snapshot marks the live layer frozen and adds an empty live layer on it: a few rows, whatever
//!   the size of the workspace;
//! * a fork adds an empty live layer on a snapshot: two rows;
//! * a rollback moves the workspace to an empty live layer on an older snapshot;
//! * a read costs the number of versions of *that key*, never the length of the chain.
//!
//! A [`View`] shows a workspace or snapshot as a file system through one trait of typed operations,
//! [`dispatch::Dispatch`]; [`dispatch::fuser`] mounts it. Nothing here knows of virtual machines or
//! networks.

#![deny(unsafe_code)]

pub mod attr;
mod background;
mod base;
mod catalog;
mod change;
mod check;
mod contents;
mod core;
mod diff;
pub mod dispatch;
mod elapsed;
mod engine;
mod fault;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
mod hash;
pub mod id;
mod image;
mod land;
mod layers;
mod lock;
mod private;
mod repair;
mod retention;
mod sandbox;
mod space;
mod store;
#[allow(unsafe_code)]
mod sys;
pub mod units;

pub use base::ExcludeError;
pub use catalog::CatalogError;
pub use check::{
    CheckError, CheckReport, Damage, DataProgress, DataReport, Found, Place, Places, Problem,
    SeenIn, Table,
};
pub use contents::ContentsError;
pub use diff::{
    DiffEntry, DiffError, DiffOptions, DiffSide, FileChange, FileDiff, FileVersion, TEXT_MAX,
};
pub use engine::{Attachment, FreezeError, Quota, View, ViewTarget};
#[cfg(debug_assertions)]
pub use fault::fail_writes;
pub use hash::{HashError, HashReport};
pub use image::ImageState;
pub use land::host::{
    Guard, HostChange, HostConflict, HostLandError, HostLandOptions, HostLanded, HostPart,
    HostPlan, HostReport, Meta, NewKind, NewThing, Ours, Source, Theirs,
};
pub use land::{LandConflict, LandEntry, LandError, LandOptions, LandReport};
pub use layers::TreeError;
pub use repair::{
    QuarantineError, RepairError, RepairLeft, RepairOptions, RepairReport, RepairStep,
};
pub use retention::{RetentionRule, RetireReason, RuleSource, SnapshotClass};
pub use sandbox::{OnTimeout, SandboxKind, SandboxRecord, SandboxState};
pub use space::{CollectError, CollectReport, StoreUsage, WorkspaceUsage};
pub use store::{
    AdoptError, AdoptProgress, AdoptReport, BaseDir, BaseError, BaseInfo, BaseState, BuildError,
    Builder, CursorError, DeleteError, DeleteSelection, DeletedSnapshot, DeletedSnapshots, Edit,
    EditError, Fidelity, FindError, ForkError, ForkSource, ImageError, ImportError, ImportProgress,
    ImportReport, KeptBy, LogEntry, LogError, LogKind, MountRecord, MountTarget, NewContents,
    NewFile, ObjectFile, ObjectFiles, OpenError, RescueError, RetentionError, RetentionReport,
    RetentionSetting, RetiredSnapshot, RollbackError, RollbackReport, SETTINGS, SandboxCursor,
    SandboxError, SandboxFilter, Setting, SettingError, SettingInfo, SnapshotCursor, SnapshotEdit,
    SnapshotError, SnapshotFilter, SnapshotHold, SnapshotImage, SnapshotInfo, SnapshotOptions,
    SnapshotUsage, Store, StoreInfo, TemplateError, TemplateRecord, WorkspaceError, WorkspaceInfo,
    Xattr,
};
