//! Deleting snapshots and giving space back.

use std::ops::ControlFlow;
use std::time::{Duration, Instant};

use floe_fs::{CollectReport, DeleteSelection, SnapshotFilter};
use jiff::Timestamp;

use super::Daemon;
use crate::error::{ApiError, ErrorKind};
use crate::wire::space::{Collected, SnapshotsDeleted};
use crate::wire::{Collect, DeleteSnapshots, Progress};

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
    Ok(SnapshotsDeleted {
        deleted: !dry_run,
        snapshots: deleted.into_iter().map(Into::into).collect(),
        freed,
    })
}

fn selection(request: DeleteSnapshots) -> Result<DeleteSelection, ApiError> {
    if !request.snapshots.is_empty() {
        return Ok(DeleteSelection::These(request.snapshots));
    }
    let before = request.before.map(|text| {
        let time: Timestamp = text.parse().map_err(|_| {
            ApiError::new(ErrorKind::Usage, format!("'{text}' is no time"))
                .hint("as RFC 3339 has it")
        })?;
        let nanos = i64::try_from(time.as_nanosecond());
        nanos.map_err(|_| ApiError::new(ErrorKind::Usage, format!("'{text}' is too far away")))
    });
    let filter = SnapshotFilter {
        workspace: request.workspace,
        name: request.name,
        labels: request.labels,
        before: before.transpose()?,
        limit: None,
    };
    Ok(DeleteSelection::Matching {
        filter,
        keep_last: request.keep_last,
    })
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
        };
        match on_progress(&progress) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}
