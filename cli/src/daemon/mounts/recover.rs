//! After a daemon that was killed: its dead mounts go, and what was mounted is mounted again.
//!
//! Invariants: a mount is detached only if it is dead and nothing is mounted over it, so neither a
//! copy of this store nor another program loses one. A record is dropped only when what it names
//! does not exist any more, when the mount was made or given up, or by `floe daemon stop`.

use std::collections::HashSet;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use floe_fs::dispatch::fuser::{MountError, every_mount, floe_mounts};
use floe_fs::id::{SnapshotId, WorkspaceId};
use floe_fs::{MountRecord, MountTarget, OpenError, Store, WorkspaceInfo};
use tracing::{debug, info, warn};

use super::{Mounts, Subject, dir};
use crate::error::{ApiError, ErrorKind};

/// How long mounts of a daemon that was just killed may go on answering: the kernel gives up the
/// lock of the store and the FUSE devices one after the other.
const DYING_WAIT: Duration = Duration::from_secs(1);

/// A mount that could not be made again.
#[derive(Clone, Debug)]
pub(crate) struct Unrestored {
    /// What was mounted where.
    pub(crate) record: MountRecord,
    /// Why it is not any more.
    pub(crate) error: ApiError,
}

/// What `floe daemon stop` finds of a daemon that was killed.
#[derive(Debug, Default)]
pub(crate) struct Cleaned {
    /// Dead mounts that were detached.
    pub(crate) detached: Vec<PathBuf>,
    /// Mounts that stay, and why.
    pub(crate) left: Vec<(PathBuf, ApiError)>,
}

/// Detaches the dead mounts of a store. `recorded` are the directories that its catalog names:
/// what is mounted there was served by a daemon that has ended, so it is dead or about to be.
fn sweep(store_id: &str, recorded: &HashSet<PathBuf>) -> io::Result<Cleaned> {
    let give_up = Instant::now() + DYING_WAIT;
    let mut before: Option<Vec<PathBuf>> = None;
    loop {
        let mut left = Vec::new();
        let (mut moved, mut dying) = (false, false);
        let found = floe_mounts(store_id)?;
        let dirs: Vec<PathBuf> = found.iter().map(|mount| mount.dir.clone()).collect();
        for mount in found.iter().rev() {
            let dir = &mount.dir;
            match mount.is_on_top() {
                Ok(true) if mount.is_dead() => match mount.detach() {
                    Ok(was_there) => {
                        info!(dir = %dir.display(), "detached a mount of a killed daemon");
                        moved |= was_there;
                    }
                    Err(error) => left.push((dir.clone(), stays(dir, &error))),
                },
                Ok(true) => dying |= recorded.contains(dir),
                Ok(false) => left.push((dir.clone(), MountError::covered(dir).into())),
                // Inside another dead mount, with which it goes.
                Err(error) => {
                    debug!(dir = %dir.display(), %error, "cannot be looked at");
                    left.push((dir.clone(), stays(dir, &error)));
                }
            }
        }
        let before = before.get_or_insert_with(|| dirs.clone());
        // What was below a mount that went, or inside it, may have come to light.
        if moved {
            continue;
        }
        if !dying || Instant::now() >= give_up {
            // One inside another went with it.
            before.retain(|dir| !dirs.contains(dir));
            return Ok(Cleaned {
                detached: std::mem::take(before),
                left,
            });
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn stays(dir: &Path, error: &io::Error) -> ApiError {
    let what = format!("the dead mount on '{}' cannot be detached", dir.display());
    ApiError::new(ErrorKind::Failed, what).caused_by(error)
}

/// Detaches what a killed daemon of a store left mounted, and forgets it; for when no daemon runs.
/// The store is opened only if there is something to do.
///
/// # Errors
/// When another process has the store, or it cannot be used.
pub(crate) fn clean(store: &Path) -> Result<Cleaned, ApiError> {
    let unreadable = |error: io::Error| {
        ApiError::new(ErrorKind::Failed, "cannot read the table of mounts").caused_by(&error)
    };
    let mut any = every_mount().map_err(unreadable)?.into_iter();
    if !any.any(|mount| mount.is_floe()) {
        return Ok(Cleaned::default());
    }
    let id = match Store::inspect(store) {
        Ok(info) => info.id,
        Err(OpenError::NotFound { .. }) => return Ok(Cleaned::default()),
        Err(error) => return Err(error.into()),
    };
    if floe_mounts(&id).map_err(unreadable)?.is_empty() {
        return Ok(Cleaned::default());
    }
    let store = Store::open(store)?;
    let records = store.recorded_mounts()?;
    let recorded: HashSet<PathBuf> = records.iter().map(|record| record.dir.clone()).collect();
    let mut done = sweep(store.id(), &recorded).map_err(unreadable)?;
    // A mount that was never this store's to make is another copy's.
    done.left.retain(|(dir, _)| recorded.contains(dir));
    for record in &records {
        if done.detached.contains(&record.dir) {
            store.forget_mount(record)?;
            if record.dir.starts_with(store.dir()) {
                dir::remove_own_place(&record.dir);
            }
        }
    }
    store
        .settle()
        .map_err(|error| ApiError::from_error(ErrorKind::Failed, &error))?;
    Ok(done)
}

impl Mounts {
    /// Detaches what a killed daemon of this store left mounted, and mounts what the catalog
    /// remembers. What cannot be mounted is kept for the next start, and shown meanwhile.
    pub(crate) fn recover(&self) {
        let mut records = match self.store.recorded_mounts() {
            Ok(records) => records,
            Err(error) => {
                warn!(%error, "cannot read which mounts to restore");
                return;
            }
        };
        let recorded = records.iter().map(|record| record.dir.clone()).collect();
        let swept = sweep(self.store.id(), &recorded).unwrap_or_else(|error| {
            warn!(%error, "cannot look for mounts of a killed daemon");
            Cleaned::default()
        });
        // A mount inside another comes after it.
        records.sort_by(|a, b| a.dir.cmp(&b.dir));
        for record in records {
            let subject = match self.subject(&record) {
                Err(error) if error.kind == ErrorKind::NotFound => {
                    info!(dir = %record.dir.display(), "what was mounted there was deleted");
                    self.forget(&record.target, &record.dir);
                    self.tidy(&[record.dir]);
                    continue;
                }
                subject => subject,
            };
            let left = swept.left.iter().find(|(dir, _)| *dir == record.dir);
            let restored = match left {
                Some((_, error)) => Err(error.clone()),
                None => subject.and_then(|subject| self.mount(&subject, Some(&record.dir))),
            };
            match restored {
                Ok(dir) => info!(dir = %dir.display(), "restored"),
                Err(error) => {
                    warn!(dir = %record.dir.display(), error = error.error,
                        causes = ?error.causes, "cannot restore a mount");
                    self.unrestored.lock().push(Unrestored { record, error });
                }
            }
        }
    }

    /// What could not be mounted again so far.
    pub(crate) fn unrestored(&self) -> Vec<Unrestored> {
        self.unrestored.lock().clone()
    }

    /// Gives up restoring mounts. Returns their directories.
    pub(super) fn give_up(
        &self,
        wanted: &dyn Fn(&MountRecord) -> bool,
    ) -> Result<Vec<PathBuf>, ApiError> {
        let mut given_up = Vec::new();
        for Unrestored { record, .. } in self.unrestored() {
            if !wanted(&record) {
                continue;
            }
            let _reserved = self.reserve(&record.dir);
            self.clear_dead(&record.dir)?;
            let mut found = floe_mounts(self.store.id()).unwrap_or_else(|error| {
                warn!(%error, "cannot read the table of mounts");
                Vec::new()
            });
            found.retain(|mount| mount.dir == record.dir);
            if !found.is_empty() && found.iter().all(|mount| !is_seen(mount)) {
                return Err(MountError::covered(&record.dir).into());
            }
            self.unrestored.lock().retain(|it| it.record != record);
            self.forget(&record.target, &record.dir);
            given_up.push(record.dir);
        }
        Ok(given_up)
    }

    fn subject(&self, record: &MountRecord) -> Result<Subject, ApiError> {
        match &record.target {
            MountTarget::Workspace(id) if record.read_only => {
                Ok(Subject::Onlooker(self.workspace_by_id(*id)?))
            }
            MountTarget::Workspace(id) => Ok(Subject::Workspace(self.workspace_by_id(*id)?)),
            MountTarget::Snapshot(id) => self.snapshot_by_id(id),
        }
    }

    fn workspace_by_id(&self, id: WorkspaceId) -> Result<WorkspaceInfo, ApiError> {
        let found = self
            .store
            .workspaces()?
            .into_iter()
            .find(|info| info.id == id);
        found.ok_or_else(|| ApiError::new(ErrorKind::NotFound, "its workspace was deleted"))
    }

    fn snapshot_by_id(&self, id: &SnapshotId) -> Result<Subject, ApiError> {
        Ok(Subject::Snapshot(self.store.find_snapshot(id.as_str())?))
    }
}

fn is_seen(mount: &floe_fs::dispatch::fuser::FoundMount) -> bool {
    mount.is_on_top().unwrap_or(false)
}
