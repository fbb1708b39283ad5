//! The store as a whole.

use std::ops::ControlFlow;

use floe_fs::{DataProgress, Fidelity, ImageState, RepairOptions, SnapshotFilter, SnapshotInfo};
use floe_vmm::snapshot::image::Image;

use crate::daemon::Daemon;
use crate::error::ApiError;
use crate::wire::check::{Checked, Repaired, StoreProblem};
use crate::wire::space::Setting;
use crate::wire::{CheckStore, Progress, RepairStore, StoreConfig};

/// Checks every rule of the format that metadata can show, and contents too if asked to. The store stays
/// in use meanwhile.
///
/// # Errors
/// When the store cannot be read. What is wrong with it is no error, but the answer.
pub fn check_store(
    daemon: &Daemon,
    request: &CheckStore,
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Checked, ApiError> {
    let report = match request.data {
        true => daemon.store.check_data(&mut teller(on_progress))?,
        false => daemon.store.check()?,
    };
    let mut checked = Checked::from(report);
    for snapshot in with_memory(daemon)? {
        checked
            .problems
            .extend(image_problem(daemon, &snapshot, request.data));
    }
    Ok(checked)
}

/// Snapshots whose image is durable: another may just be made.
fn with_memory(daemon: &Daemon) -> Result<Vec<SnapshotInfo>, ApiError> {
    let filter = SnapshotFilter {
        fidelity: Some(Fidelity::FilesystemMemory),
        ..SnapshotFilter::default()
    };
    let mut found = daemon.store.snapshots(&filter)?;
    let is_sealed = |info: &SnapshotInfo| {
        let image = info.image.as_ref();
        image.is_some_and(|image| image.state == ImageState::Sealed)
    };
    found.retain(is_sealed);
    Ok(found)
}

/// What is wrong with the image of a snapshot, if anything is. `data`: its memory is read too.
fn image_problem(daemon: &Daemon, snapshot: &SnapshotInfo, data: bool) -> Option<StoreProblem> {
    let dir = daemon.store.images_dir().join(snapshot.id.as_str());
    let wrong = match Image::open(&dir) {
        Err(error) => error.to_string(),
        Ok(image) if data => image.verify().err()?.to_string(),
        Ok(_) => return None,
    };
    // It may have been deleted meanwhile, which is no problem.
    let there = daemon.store.find_snapshot(snapshot.id.as_str()).is_ok();
    there.then(|| StoreProblem {
        problem: "image".to_owned(),
        message: format!(
            "the memory of the snapshot {} cannot be used: {wrong}",
            snapshot.id
        ),
        ..StoreProblem::default()
    })
}

/// Puts right what can be, while nothing is mounted.
///
/// # Errors
/// When the store is in use or cannot be read or written. What stays wrong is no error, but the answer.
pub fn repair_store(
    daemon: &Daemon,
    request: &RepairStore,
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Repaired, ApiError> {
    let options = RepairOptions {
        data: request.data,
        dry_run: request.dry_run,
    };
    let report = daemon.store.repair(options, &mut teller(on_progress))?;
    Ok(report.into())
}

/// Tells a client how far it is; it goes on as long as that can be told.
fn teller(
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> impl FnMut(&DataProgress) -> ControlFlow<()> {
    move |done| {
        let progress = Progress {
            files: done.objects,
            bytes: done.bytes,
            total: Some(done.total),
        };
        match on_progress(&progress) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}

/// Tells settings, or changes one.
///
/// # Errors
/// When there is no such setting, or it cannot have that value.
pub fn store_config(daemon: &Daemon, request: &StoreConfig) -> Result<Vec<Setting>, ApiError> {
    let found = match (&request.name, &request.value) {
        (Some(name), Some(value)) => vec![daemon.store.set(name, Some(value))?],
        (Some(name), None) if request.unset => vec![daemon.store.set(name, None)?],
        (name, _) => daemon.store.settings(name.as_deref())?,
    };
    Ok(found.into_iter().map(Into::into).collect())
}
