//! After a daemon that was killed: its dead mounts go, and what was mounted is mounted again.

use floe_fs::MountTarget;
use floe_fs::id::{SnapshotId, WorkspaceId};
use tracing::{info, warn};

use super::{Mounts, Subject};
use crate::error::ApiError;

impl Mounts {
    /// Detaches what a killed daemon of this store left mounted, and mounts what the catalog
    /// remembers. What cannot be mounted is logged and forgotten.
    pub(crate) fn recover(&self) {
        match floe_fs::dispatch::fuser::floe_mounts(self.store.id()) {
            Ok(found) => {
                for mount in found.iter().rev() {
                    info!(dir = %mount.dir.display(), "detaching a mount of a killed daemon");
                    if let Err(error) = floe_fs::dispatch::fuser::detach_stale(&mount.dir) {
                        warn!(dir = %mount.dir.display(), %error, "cannot detach");
                    }
                }
            }
            Err(error) => warn!(%error, "cannot look for mounts of a killed daemon"),
        }
        let mut records = match self.store.recorded_mounts() {
            Ok(records) => records,
            Err(error) => {
                warn!(%error, "cannot read which mounts to restore");
                return;
            }
        };
        // A mount inside another comes after it.
        records.sort_by(|a, b| a.dir.cmp(&b.dir));
        for record in records {
            let restored = self
                .subject(&record.target)
                .and_then(|subject| self.mount(&subject, Some(&record.dir)));
            match restored {
                Ok(dir) => info!(dir = %dir.display(), "restored"),
                Err(error) => {
                    warn!(dir = %record.dir.display(), error = error.error,
                        causes = ?error.causes, "cannot restore a mount");
                    self.forget(&record.target, &record.dir);
                    self.tidy(&[record.dir]);
                }
            }
        }
    }

    fn subject(&self, target: &MountTarget) -> Result<Subject, ApiError> {
        match target {
            MountTarget::Workspace(id) => self.workspace_by_id(*id),
            MountTarget::Snapshot(id) => self.snapshot_by_id(id),
        }
    }

    fn workspace_by_id(&self, id: WorkspaceId) -> Result<Subject, ApiError> {
        let found = self
            .store
            .workspaces()?
            .into_iter()
            .find(|info| info.id == id);
        found.map(Subject::Workspace).ok_or_else(|| {
            ApiError::new(
                crate::error::ErrorKind::NotFound,
                "its workspace was deleted",
            )
        })
    }

    fn snapshot_by_id(&self, id: &SnapshotId) -> Result<Subject, ApiError> {
        Ok(Subject::Snapshot(self.store.find_snapshot(id.as_str())?))
    }
}
