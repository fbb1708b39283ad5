//! Deleting snapshots and giving space back, and storing contents once.

use std::ops::ControlFlow;

use super::snapshots::nanoseconds;
use super::{Daemon, subject};
use crate::daemon::mounts::Subject;
use crate::error::{ApiError, ErrorKind};
use crate::wire::space::{Collected, Hashed, Size, SnapshotSize, SnapshotsDeleted, StoreUsage};
use crate::wire::{Collect, DeleteSnapshots, HashNow, Progress, Sizes, Usage};
use floe_fs::{
    CollectReport, DeleteSelection, KeptBy, SnapshotFilter, SnapshotInfo, SnapshotUsage,
};

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
        let mut tell = |report: &CollectReport| tell(report.objects, report.bytes);
        let done = daemon.store.delete_snapshots_now(&selection, &mut tell);
        let (deleted, freed) = done.inspect_err(|_| daemon.store.collect_later())?;
        (deleted, Some(freed.into()))
    } else {
        (daemon.store.delete_snapshots(&selection, dry_run)?, None)
    };
    let frees = if dry_run {
        let infos: Vec<_> = deleted
            .deleted
            .iter()
            .map(|one| one.snapshot.clone())
            .collect();
        Some(daemon.store.would_free(&infos)?)
    } else {
        None
    };
    Ok(SnapshotsDeleted {
        deleted: !dry_run,
        frees,
        snapshots: deleted.deleted.into_iter().map(Into::into).collect(),
        protected: deleted.protected,
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

/// Tells how much snapshots and workspaces take.
///
/// # Errors
/// When one is not found.
pub fn sizes(
    daemon: &Daemon,
    request: &Sizes,
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Vec<Size>, ApiError> {
    let mut tell = teller(on_progress);
    let (mut subjects, mut snapshots) = (Vec::new(), Vec::new());
    for target in &request.targets {
        let subject = subject(daemon, target)?;
        if let Subject::Snapshot(info) = &subject {
            snapshots.push(info.clone());
        }
        subjects.push(subject);
    }
    let of_snapshots = match snapshots[..] {
        [] => Vec::new(),
        _ => daemon.store.snapshot_usage(&snapshots, &mut tell)?,
    };
    let mut of_snapshots = of_snapshots.into_iter();
    let mut of_workspaces = None;
    let mut sizes = Vec::new();
    for subject in subjects {
        sizes.push(match subject {
            Subject::Snapshot(info) => {
                let usage = of_snapshots.next().unwrap_or_default();
                Size::Snapshot(Box::new(snapshot_size(info, usage)))
            }
            Subject::Workspace(info) | Subject::Sandbox(info, _) | Subject::Onlooker(info) => {
                if of_workspaces.is_none() {
                    of_workspaces = Some(daemon.store.usage(&mut tell)?.workspaces);
                }
                let mut all = of_workspaces.iter().flatten();
                let found = all.find(|usage| usage.id == info.id).cloned();
                let gone = || {
                    let what = format!("there is no workspace '{}'", info.name);
                    ApiError::new(ErrorKind::NotFound, what)
                };
                Size::Workspace(found.ok_or_else(gone)?.into())
            }
        });
    }
    Ok(sizes)
}

fn snapshot_size(info: SnapshotInfo, usage: SnapshotUsage) -> SnapshotSize {
    let kept = usage.kept_by.iter().map(|by| match by {
        KeptBy::Use => "use",
        KeptBy::Landing => "landing",
    });
    SnapshotSize {
        kept_by: kept.map(str::to_owned).collect(),
        held_by: usage.held_by,
        snapshot: info.into(),
        apparent: usage.apparent,
        exclusive: usage.exclusive,
        shared: usage.apparent.saturating_sub(usage.exclusive),
        frees: usage.exclusive,
    }
}

/// Tells what the store takes of the disk.
///
/// # Errors
/// When the store cannot be read, or nobody waits for the answer any more.
pub fn usage(
    daemon: &Daemon,
    _: &Usage,
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> Result<StoreUsage, ApiError> {
    Ok(daemon.store.usage(&mut teller(on_progress))?.into())
}

/// Deletes what no rule keeps and what has expired, and gives back what nothing needs any more.
///
/// # Errors
/// When the store fails.
pub fn collect(
    daemon: &Daemon,
    request: &Collect,
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Collected, ApiError> {
    let report = daemon.store.apply_retention(request.dry_run)?;
    let snapshots = report.retired.len() as u64;
    if request.dry_run {
        return Ok(Collected {
            snapshots,
            bytes: daemon.store.would_free_retired(&report)?,
            ..Collected::default()
        });
    }
    let mut tell = teller(on_progress);
    let done = daemon
        .store
        .collect(&mut |report| tell(report.objects, report.bytes));
    // The rest is done by the thread that does it anyway.
    let done = done.inspect_err(|_| daemon.store.collect_later());
    Ok(Collected {
        snapshots,
        ..done?.into()
    })
}

/// Hashes what is frozen and stores equal contents once.
///
/// # Errors
/// When the store fails.
pub fn hash_now(
    daemon: &Daemon,
    _: &HashNow,
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> Result<Hashed, ApiError> {
    let mut tell = teller(on_progress);
    let done = daemon
        .store
        .hash_now(&mut |report| tell(report.objects, report.bytes))?;
    Ok(done.into())
}

/// Tells a client how many files and bytes are done; it goes on as long as that can be told.
fn teller(
    on_progress: &mut dyn FnMut(&Progress) -> bool,
) -> impl FnMut(u64, u64) -> ControlFlow<()> {
    move |files, bytes| {
        let progress = Progress {
            files,
            bytes,
            total: None,
        };
        match on_progress(&progress) {
            true => ControlFlow::Continue(()),
            false => ControlFlow::Break(()),
        }
    }
}
