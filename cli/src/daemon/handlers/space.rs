//! Deleting snapshots and giving space back.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use super::Daemon;
use super::snapshots::nanoseconds;
use crate::error::ApiError;
use crate::wire::space::{Collected, SnapshotSize, SnapshotsDeleted};
use crate::wire::{Collect, DeleteSnapshots, Progress, SnapshotSizes};
use floe_fs::{CollectReport, DeleteSelection, SnapshotFilter};

/// How often a client is told how far it is.
const REPORT_EVERY: Duration = Duration::from_millis(100);

/// Deletes snapshots, whatever stands on them or is mounted from them.
///
/// # Errors
/// When one is not found; then none was deleted.
pub fn delete_snapshots(
    daemon: &Daemon,
    request: DeleteSnapshots,
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> Result<SnapshotsDeleted, ApiError> {
    let (dry_run, wait) = (request.dry_run, request.wait);
    let selection = selection(request)?;
    let (deleted, freed) = if wait && !dry_run {
        let mut tell = teller(on_progress);
        let done = daemon.store.delete_snapshots_now(&selection, &mut tell);
        let (deleted, freed) = done.inspect_err(|_| daemon.store.collect_later())?;
        (deleted, Some(freed.into()))
    } else {
        (daemon.store.delete_snapshots(&selection, dry_run)?, None)
    };
    let frees = if dry_run {
        let infos: Vec<_> = deleted.iter().map(|one| one.snapshot.clone()).collect();
        Some(daemon.store.would_free(&infos)?)
    } else {
        None
    };
    Ok(SnapshotsDeleted {
        deleted: !dry_run,
        frees,
        snapshots: deleted.into_iter().map(Into::into).collect(),
        freed,
    })
}

fn selection(request: DeleteSnapshots) -> Result<DeleteSelection, ApiError> {
    if !request.snapshots.is_empty() {
        return Ok(DeleteSelection::These(request.snapshots));
    }
    let filter = SnapshotFilter {
        workspace: request.workspace,
        name: request.name,
        labels: request.labels,
        before: request.before.as_deref().map(nanoseconds).transpose()?,
        ..SnapshotFilter::default()
    };
    Ok(DeleteSelection::Matching {
        filter,
        keep_last: request.keep_last,
    })
}

/// Tells how much snapshots take.
///
/// # Errors
/// When one is not found.
pub fn snapshot_sizes(
    daemon: &Daemon,
    request: &SnapshotSizes,
) -> Result<Vec<SnapshotSize>, ApiError> {
    let mut sizes = Vec::new();
    for reference in &request.snapshots {
        let info = [daemon.store.find_snapshot(reference)?];
        let frees = daemon.store.would_free(&info)?;
        let mut held = daemon.store.standing_on(&info)?;
        let [info] = info;
        sizes.push(SnapshotSize {
            held_by: held.remove(&info.layer).unwrap_or_default(),
            snapshot: info.into(),
            frees,
        });
    }
    Ok(sizes)
}

/// Gives back what nothing needs any more.
///
/// # Errors
/// When the store fails.
pub fn collect(
    daemon: &Daemon,
    _: &Collect,
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Collected, ApiError> {
    let done = daemon.store.collect(&mut teller(on_progress));
    // The rest is done by the thread that does it anyway.
    let done = done.inspect_err(|_| daemon.store.collect_later());
    Ok(done?.into())
}

/// Tells a client now and then how far it is; it goes on as long as that can be told.
fn teller(
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> impl FnMut(&CollectReport) -> ControlFlow<()> {
    let mut told = Instant::now();
    move |report| {
        if told.elapsed() < REPORT_EVERY {
            return ControlFlow::Continue(());
        }
        told = Instant::now();
        let progress = Progress {
            files: report.objects,
            bytes: report.bytes,
            total: None,
        };
        match on_progress(&progress) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}
