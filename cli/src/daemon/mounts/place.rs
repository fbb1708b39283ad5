//! The places inside the store where things are mounted when no directory is given.
//!
//! Invariant: a workspace or snapshot is on one of them at most. It keeps it when it is renamed,
//! so another workspace may find the place of its name taken.

use std::path::{Path, PathBuf};

use floe_fs::MountTarget;
use floe_fs::dispatch::fuser::mount_at;
use tracing::info;

use super::slot::{Key, Place};
use super::{Mounts, Subject, dir};
use crate::error::{ApiError, ErrorKind};

impl Mounts {
    fn own_places(&self) -> PathBuf {
        self.store.dir().join("mnt")
    }

    /// Mounts on the place that the subject has already, or else on a free one.
    pub(super) fn mount_in_own_place(&self, subject: &Subject) -> Result<PathBuf, ApiError> {
        let target = subject.target();
        let places = self.own_places();
        for number in 1..=u32::MAX {
            let slot = self.slots.lock().get(&Key::from(&target)).cloned();
            let on = slot.map(|slot| slot.places()).unwrap_or_default();
            let fits = |place: &Place| {
                place.read_only == subject.is_onlooker() && place.dir.starts_with(&places)
            };
            let has = on.into_iter().find(fits).map(|place| place.dir);
            let place = has.unwrap_or_else(|| places.join(subject.directory_name(number)));
            let place = dir::resolve(&place, self.store.dir())?;
            let reserved = self.reserve(&place);
            if !self.is_taken(&place, &target) {
                return self.mount_on(subject, &reserved);
            }
        }
        Err(ApiError::new(
            ErrorKind::Conflict,
            format!("there is no free place in '{}'", places.display()),
        ))
    }

    /// Whether something else is, or is to be, mounted there.
    fn is_taken(&self, place: &Path, target: &MountTarget) -> bool {
        if let Some(slot) = self.slot_at(place) {
            return slot.target != *target;
        }
        let waits = |record: &floe_fs::MountRecord| record.dir == place && record.target != *target;
        self.unrestored.lock().iter().any(|it| waits(&it.record))
            || self.clear_dead(place).is_err()
            || mount_at(place).is_ok_and(|found| found.is_some())
    }

    /// Detaches a dead mount of this store that stands in the way. The directory is reserved.
    pub(super) fn clear_dead(&self, dir: &Path) -> Result<(), ApiError> {
        let failed = |error: std::io::Error| {
            let what = format!("cannot look at '{}'", dir.display());
            ApiError::new(ErrorKind::Failed, what).caused_by(&error)
        };
        let Some(mount) = mount_at(dir).map_err(failed)? else {
            return Ok(());
        };
        if !mount.is_floe() || self.slot_at(dir).is_some() || !mount.is_dead() {
            return Ok(());
        }
        if !mount
            .source
            .starts_with(&format!("floe:{}:", self.store.id()))
        {
            let what = format!("a dead mount of another store is on '{}'", dir.display());
            return Err(ApiError::new(ErrorKind::Conflict, what).hint(dir::detach_hint(dir)));
        }
        info!(dir = %dir.display(), "detaching a dead mount");
        mount.detach().map(drop).map_err(failed)
    }

    /// Removes mount points inside the store that are free again. Not with a slot's state locked:
    /// whoever has one reserved may be waiting for that.
    pub(super) fn tidy(&self, dirs: &[PathBuf]) {
        let places = self.own_places();
        for dir in dirs.iter().filter(|dir| dir.starts_with(&places)) {
            let _reserved = self.reserve(dir);
            if self.slot_at(dir).is_none() {
                dir::remove_own_place(dir);
            }
        }
    }
}
