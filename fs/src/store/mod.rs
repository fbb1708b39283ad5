//! A store: one directory with everything of one installation, and what can be done to its
//! workspaces and snapshots.
//!
//! Invariants: one process has a store open (a lock file with its process id); each operation
//! takes effect whole or not at all; operations on one workspace are serialised by its control
//! mutex, names of workspaces by the catalog's unique index and the names mutex.

mod adopt;
mod base;
mod builder;
mod chores;
mod control;
mod cursor;
mod delete;
mod edit;
mod fork;
mod hash;
mod images;
mod import;
mod land;
mod log;
mod mounts;
mod open;
mod owner;
mod place;
mod quota;
mod recover;
mod rescue;
mod retention;
mod rollback;
mod sandboxes;
mod settings;
mod snapshots;
mod templates;
mod trust;
mod types;
mod usage;
mod views;
mod workspaces;

use std::path::Path;
use std::sync::Arc;

pub use adopt::AdoptError;
pub use base::{BaseDir, BaseError};
pub use builder::{BuildError, Builder, NewContents, NewFile, Xattr};
pub use cursor::{CursorError, SandboxCursor, SnapshotCursor};
pub(crate) use delete::drop_snapshots;
pub use delete::{DeleteError, DeleteSelection};
pub use edit::{Edit, EditError, SnapshotEdit};
pub use fork::ForkError;
pub use images::{ImageError, SnapshotHold};
pub use import::ImportError;
pub use log::{LogEntry, LogError, LogKind};
pub use open::OpenError;
pub use rescue::{ObjectFile, ObjectFiles, RescueError};
pub use retention::{RetentionError, RetentionReport, RetentionSetting, RetiredSnapshot};
pub use rollback::RollbackError;
pub use sandboxes::{SandboxError, SandboxFilter};
pub use settings::{SETTINGS, Setting, SettingError, SettingInfo};
pub use snapshots::{FindError, SnapshotError};
pub use templates::{TemplateError, TemplateRecord};
pub use types::{
    AdoptProgress, AdoptReport, BaseInfo, BaseState, DeletedSnapshot, DeletedSnapshots, Fidelity,
    ForkSource, ImportProgress, ImportReport, MountRecord, MountTarget, RollbackReport,
    SnapshotFilter, SnapshotImage, SnapshotInfo, SnapshotOptions, StoreInfo, WorkspaceInfo,
};
pub use usage::{KeptBy, SnapshotUsage};
pub use workspaces::WorkspaceError;
pub(crate) use workspaces::directory_row;

use crate::background::Background;
use crate::catalog::{CatalogError, FORMAT};
use crate::core::Core;

/// An open store. Shared as `Arc<Store>`.
pub struct Store {
    id: String,
    created_at: i64,
    controls: control::Controls,
    // They end before the rest goes, in this order: those that hand chores on before the chores.
    #[expect(dead_code, reason = "held for its Drop")]
    background: [Background; 4],
    /// Somebody repairs it: nobody else opens anything.
    repairing: std::sync::atomic::AtomicBool,
    pub(crate) core: Arc<Core>,
}

impl Store {
    /// Where the store is.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.core.dir
    }

    /// The store's random id.
    #[must_use]
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Identity and counts.
    ///
    /// # Errors
    /// When the catalog cannot be read.
    pub fn info(&self) -> Result<StoreInfo, CatalogError> {
        let summary = self.core.catalog.summary()?;
        Ok(StoreInfo {
            id: self.id.clone(),
            dir: self.core.dir.clone(),
            format: FORMAT,
            created_at: types::rfc3339(self.created_at),
            workspaces: summary.workspaces,
            snapshots: summary.snapshots,
            layers: summary.layers,
            objects: summary.objects,
            hashed: summary.hashed,
            catalog_bytes: self.core.catalog.bytes_on_disk(),
            reflink: Some(self.core.objects.can_reflink()),
        })
    }

    /// Set while somebody repairs the store.
    pub(crate) fn repairing(&self) -> &std::sync::atomic::AtomicBool {
        &self.repairing
    }

    /// Makes everything acknowledged so far survive power loss.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync(&self) -> Result<(), crate::dispatch::OpError> {
        self.core.objects.sync_all()?;
        self.core.sync_catalog()
    }

    /// As [`Store::sync`], for a store that nobody changes any more: it also notes that nothing has
    /// to be put in order when it is opened again.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn settle(&self) -> Result<(), crate::dispatch::OpError> {
        self.core.wait_for_chores();
        self.sync()?;
        self.core.catalog.empty_log()?;
        Ok(self.core.note_clean_end()?)
    }
}
