//! Snapshots, forks, rollbacks.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::Instant;

use jiff::Timestamp;

use floe_fs::id::{SnapshotName, WorkspaceName};
use floe_fs::{
    Edit, Fidelity, ForkSource, MountTarget, SnapshotEdit, SnapshotFilter, SnapshotOptions,
    WorkspaceInfo,
};

use super::super::mounts::Subject;
use super::{Daemon, shown, subject};
use crate::error::{ApiError, ErrorKind, shell_word};
use crate::wire::records::{Forked, LogEntry, RolledBack, Snapshot};
use crate::wire::{
    EditSnapshots, Fork, ListSnapshots, Log, Rollback, ShowSnapshot, TakeSnapshot, WirePath,
};

/// Most forks that one request may ask for.
pub const FORKS_MAX: u32 = 10_000;
/// Longest message of a snapshot in bytes.
pub const MESSAGE_MAX: usize = 64 << 10;
/// Most labels of a snapshot.
pub const LABELS_MAX: usize = 64;
/// Longest key or value of a label in bytes.
pub const LABEL_TEXT_MAX: usize = 1024;

/// Freezes the present state of a workspace.
///
/// # Errors
/// When there is none of that name, or the snapshot's name is not allowed or taken.
pub fn snapshot(daemon: &Daemon, request: TakeSnapshot) -> Result<Snapshot, ApiError> {
    check_texts(request.message.as_deref(), &request.labels)?;
    let options = SnapshotOptions {
        patience: None,
        id: None,
        name: request
            .name
            .as_deref()
            .map(SnapshotName::parse)
            .transpose()?,
        message: request.message,
        labels: request.labels,
        durable: request.durable,
        expires_at: request.expires_at.as_deref().map(nanoseconds).transpose()?,
        protected: request.protected,
        memory: false,
    };
    daemon.sandboxes.write_back_workspace(&request.workspace)?;
    Ok(daemon.store.snapshot(&request.workspace, &options)?.into())
}

/// Refuses texts that are too long or too many.
pub(in crate::daemon) fn check_texts(
    message: Option<&str>,
    labels: &BTreeMap<String, String>,
) -> Result<(), ApiError> {
    let usage = |text: String| Err(ApiError::new(ErrorKind::Usage, text));
    if message.is_some_and(|message| message.len() > MESSAGE_MAX) {
        return usage(format!("the message is longer than {MESSAGE_MAX} bytes"));
    }
    if labels.len() > LABELS_MAX {
        return usage(format!("there are more than {LABELS_MAX} labels"));
    }
    for (key, value) in labels {
        if key.is_empty() || key.len() > LABEL_TEXT_MAX || value.len() > LABEL_TEXT_MAX {
            return usage(format!(
                "a label's key must have 1 to {LABEL_TEXT_MAX} bytes, its value at most that many"
            ));
        }
    }
    Ok(())
}

/// Changes what is said of snapshots.
///
/// # Errors
/// When one is not found, or a name is not allowed or taken; then none was changed.
pub fn edit_snapshots(daemon: &Daemon, request: EditSnapshots) -> Result<Vec<Snapshot>, ApiError> {
    check_texts(request.message.as_deref(), &request.labels)?;
    for reference in &request.snapshots {
        let mut labels = daemon.store.find_snapshot(reference)?.labels;
        labels.retain(|key, _| !request.without.contains(key));
        labels.extend(request.labels.clone());
        check_texts(None, &labels)?;
    }
    let name = request.name.as_deref().map(SnapshotName::parse);
    let expires_at = request.expires_at.as_deref().map(nanoseconds);
    let message = request.message.clone().filter(|text| !text.is_empty());
    let edit = SnapshotEdit {
        name: edited(name.transpose()?, request.no_name),
        message: edited(message, request.message.is_some()),
        expires_at: edited(expires_at.transpose()?, request.never_expires),
        protected: request.protected,
        labels: request.labels,
        without: request.without,
    };
    let now = daemon.store.edit_snapshots(&request.snapshots, &edit)?;
    Ok(now.into_iter().map(Snapshot::from).collect())
}

fn edited<T>(value: Option<T>, or_none: bool) -> Edit<T> {
    match value {
        Some(value) => Edit::Set(value),
        None if or_none => Edit::Clear,
        None => Edit::Keep,
    }
}

/// Makes workspaces on a snapshot, or on the present state of a workspace, all or none; then
/// mounts them if asked to. If a mount fails the forks stay.
///
/// # Errors
/// When the source does not exist, a name is not allowed or taken, or a mount fails.
pub fn fork(daemon: &Daemon, request: &Fork) -> Result<Forked, ApiError> {
    let started = Instant::now();
    let names = fork_names(&request.name, request.count)?;
    let source = if request.snapshot_only {
        ForkSource::Snapshot(daemon.store.find_snapshot(&request.source)?.id)
    } else {
        match subject(daemon, &request.source)? {
            Subject::Workspace(info) | Subject::Sandbox(info, _) | Subject::Onlooker(info) => {
                daemon.sandboxes.write_back_workspace(&info.name)?;
                ForkSource::Workspace(info.name)
            }
            Subject::Snapshot(info) => ForkSource::Snapshot(info.id),
        }
    };
    let made = daemon.store.fork(&source, &names)?;
    if request.mount {
        let base = request.dir.as_ref().map(WirePath::to_path);
        for info in &made {
            let dir = match (&base, request.count) {
                (Some(base), Some(_)) => Some(base.join(&info.name)),
                (base, _) => base.clone(),
            };
            mount_fork(daemon, info, dir)?;
        }
    }
    Ok(Forked {
        workspaces: made.into_iter().map(|info| shown(daemon, info)).collect(),
        elapsed_us: micros(started),
    })
}

fn mount_fork(daemon: &Daemon, info: &WorkspaceInfo, dir: Option<PathBuf>) -> Result<(), ApiError> {
    let mounted = daemon
        .mounts
        .mount(&Subject::Workspace(info.clone()), dir.as_deref());
    mounted.map(drop).map_err(|error| {
        let what = format!("the fork '{}' was made but cannot be mounted", info.name);
        error.while_doing(what)
    })
}

fn fork_names(name: &str, count: Option<u32>) -> Result<Vec<WorkspaceName>, ApiError> {
    match count {
        None => Ok(vec![WorkspaceName::parse(name)?]),
        Some(count @ 1..=FORKS_MAX) => (1..=count)
            .map(|number| Ok(WorkspaceName::parse(&format!("{name}-{number}"))?))
            .collect(),
        Some(count) => {
            let what = format!("{count} is not between 1 and {FORKS_MAX} forks");
            Err(ApiError::new(ErrorKind::Usage, what))
        }
    }
}

/// Puts a workspace back on an older snapshot, in place where it is mounted.
///
/// # Errors
/// When the workspace or the snapshot does not exist, or something is mounted inside a mount of the
/// workspace: the kernel forgets all its names, and would detach what is mounted on them.
pub fn rollback(daemon: &Daemon, request: &Rollback) -> Result<RolledBack, ApiError> {
    let info = daemon.store.workspace(&request.workspace)?;
    let held = daemon.mounts.hold(&info)?;
    let inside = daemon.mounts.inside(&MountTarget::Workspace(info.id))?;
    if !inside.is_empty() {
        return Err(mounted_inside(&request.workspace, &inside, "rollback"));
    }
    let target = daemon
        .store
        .rollback_target(&request.workspace, &request.snapshot)?;
    if target.sandboxed {
        held.distrust()?;
    }
    let report = daemon
        .store
        .rollback(&request.workspace, target.id.as_str())?;
    Ok(RolledBack {
        workspace: shown(daemon, report.workspace),
        to: report.to.to_string(),
        kept: report.kept.to_string(),
        elapsed_us: report.elapsed_us,
    })
}

/// The error that something is mounted where the kernel has to forget all names.
pub(super) fn mounted_inside(workspace: &str, inside: &[PathBuf], what: &str) -> ApiError {
    let named = |dirs: &mut dyn Iterator<Item = &PathBuf>, word: fn(&str) -> String| {
        dirs.map(|dir| word(&dir.to_string_lossy()))
            .collect::<Vec<_>>()
    };
    let quoted = named(&mut inside.iter(), |dir| format!("'{dir}'"));
    let what = format!(
        "something is mounted inside '{workspace}', and a {what} would detach it: {}",
        quoted.join(", ")
    );
    // One inside another goes before it.
    let words = named(&mut inside.iter().rev(), shell_word);
    ApiError::new(ErrorKind::Conflict, what)
        .hint(format!("unmount it first: `umount {}`", words.join(" ")))
}

/// Tells what happened to a workspace, newest first.
///
/// # Errors
/// When there never was one of that name.
pub fn log(daemon: &Daemon, request: &Log) -> Result<Vec<LogEntry>, ApiError> {
    let entries = daemon.store.log(&request.workspace, request.limit)?;
    Ok(entries.into_iter().map(LogEntry::from).collect())
}

/// Lists snapshots, newest first.
///
/// # Errors
/// When the catalog cannot be read.
pub fn list_snapshots(daemon: &Daemon, request: ListSnapshots) -> Result<Vec<Snapshot>, ApiError> {
    let filter = SnapshotFilter {
        workspace: request.workspace,
        name: request.name,
        of_sandboxes: false,
        sandbox: None,
        template: None,
        labels: request.labels,
        protected: request.protected,
        automatic: request.automatic,
        fidelity: request.fidelity.as_deref().map(fidelity).transpose()?,
        before: request.before.as_deref().map(nanoseconds).transpose()?,
        since: request.since.as_deref().map(nanoseconds).transpose()?,
        oldest_first: request.oldest_first,
        after: request.after.map(|text| text.parse()).transpose()?,
        limit: request.limit,
    };
    let found = daemon.store.snapshots(&filter)?;
    Ok(found.into_iter().map(Snapshot::from).collect())
}

/// Describes one snapshot.
///
/// # Errors
/// When the reference fits none, or more than one.
pub fn show_snapshot(daemon: &Daemon, request: &ShowSnapshot) -> Result<Snapshot, ApiError> {
    let found = daemon.store.find_snapshot(&request.snapshot)?;
    let dir = daemon.store.images_dir().join(found.id.as_str());
    let mut shown = Snapshot::from(found);
    if let Some(image) = &mut shown.image {
        // One that is gone, or was never finished, has none.
        image.parent = floe_vmm::snapshot::image::Image::open(&dir)
            .ok()
            .and_then(|image| image.manifest().parent.clone());
    }
    Ok(shown)
}

fn fidelity(text: &str) -> Result<Fidelity, ApiError> {
    match text {
        "filesystem" => Ok(Fidelity::Filesystem),
        "filesystem+memory" => Ok(Fidelity::FilesystemMemory),
        _ => Err(
            ApiError::new(ErrorKind::Usage, format!("'{text}' is no fidelity"))
                .hint("it is filesystem or filesystem+memory"),
        ),
    }
}

/// A time, in nanoseconds since the epoch.
pub(in crate::daemon) fn nanoseconds(text: &str) -> Result<i64, ApiError> {
    let usage = |what: String| ApiError::new(ErrorKind::Usage, what);
    let time: Timestamp = text
        .parse()
        .map_err(|_| usage(format!("'{text}' is no time")).hint("as RFC 3339 has it"))?;
    i64::try_from(time.as_nanosecond()).map_err(|_| usage(format!("'{text}' is too far away")))
}

fn micros(since: Instant) -> u64 {
    u64::try_from(since.elapsed().as_micros()).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn several_forks_are_numbered_from_one() {
        let names = fork_names("f", Some(3)).unwrap();
        let texts: Vec<_> = names.iter().map(WorkspaceName::as_str).collect();
        assert_eq!(texts, ["f-1", "f-2", "f-3"]);
        assert_eq!(fork_names("f", None).unwrap()[0].as_str(), "f");
    }

    #[test]
    fn what_is_mounted_inside_is_named_and_can_be_unmounted_by_the_hint() {
        let inside = ["/w/a b", "/w/a b/c"].map(PathBuf::from);
        let error = mounted_inside("w", &inside, "rollback");
        assert_eq!(error.kind, ErrorKind::Conflict);
        assert!(error.error.contains("'/w/a b', '/w/a b/c'"));
        assert!(error.hint.unwrap().contains("`umount '/w/a b/c' '/w/a b'`"));
    }

    #[test]
    fn absurd_numbers_and_texts_are_refused() {
        for count in [0, FORKS_MAX + 1, u32::MAX] {
            assert_eq!(
                fork_names("f", Some(count)).unwrap_err().kind,
                ErrorKind::Usage
            );
        }
        let none = BTreeMap::new();
        assert!(check_texts(Some(&"x".repeat(MESSAGE_MAX)), &none).is_ok());
        assert!(check_texts(Some(&"x".repeat(MESSAGE_MAX + 1)), &none).is_err());
        let labels = [(String::new(), "v".to_owned())].into();
        assert!(check_texts(None, &labels).is_err());
    }
}
