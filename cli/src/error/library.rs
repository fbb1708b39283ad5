//! One conversion for each error of the engine: the decision whose fault it is, and what to do.

use floe_fs::dispatch::fuser::MountError;
use floe_fs::id::NameError;
use floe_fs::{
    AdoptError, BaseError, CatalogError, CheckError, CollectError, CursorError, DeleteError,
    DiffError, EditError, FindError, ForkError, HashError, HostLandError, ImportError, LandError,
    LogError, OpenError, RepairError, RescueError, RetentionError, RollbackError, SettingError,
    SnapshotError, WorkspaceError,
};

use super::{ApiError, ErrorKind, shell_word};
use crate::bench::BenchError;

/// A hint that offers names close to one that was not found, or else the command that lists all.
fn suggest(similar: &[String], list: &str) -> String {
    match similar {
        [] => format!("see what there is with `{list}`"),
        [one] => format!("did you mean '{one}'? See all with `{list}`"),
        many => {
            let names: Vec<_> = many
                .iter()
                .take(3)
                .map(|name| format!("'{name}'"))
                .collect();
            format!(
                "did you mean one of {}? See all with `{list}`",
                names.join(", ")
            )
        }
    }
}

impl From<BenchError> for ApiError {
    fn from(error: BenchError) -> Self {
        match error {
            BenchError::Interrupted => Self::from_error(ErrorKind::Interrupted, &error),
            BenchError::Step { .. } | BenchError::Wrong { .. } | BenchError::Command { .. } => {
                Self::from_error(ErrorKind::Failed, &error).hint(DOCTOR)
            }
        }
    }
}

impl From<CursorError> for ApiError {
    fn from(error: CursorError) -> Self {
        let list = match error.of {
            "sandboxes" => "sandbox",
            _ => "snap",
        };
        let hint = format!("take the `cursor` of one from `floe {list} list --json`");
        Self::from_error(ErrorKind::Usage, &error).hint(hint)
    }
}

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        Self::from_error(ErrorKind::Usage, &error)
    }
}

impl From<CatalogError> for ApiError {
    fn from(error: CatalogError) -> Self {
        match error {
            CatalogError::Repairing => {
                Self::from_error(ErrorKind::Conflict, &error).hint(REPAIRING)
            }
            _ => Self::from_error(ErrorKind::Failed, &error),
        }
    }
}

impl From<CheckError> for ApiError {
    fn from(error: CheckError) -> Self {
        match error {
            CheckError::Interrupted => Self::from_error(ErrorKind::Interrupted, &error),
            CheckError::Read { .. } => Self::from_error(ErrorKind::Failed, &error),
            CheckError::Catalog(inner) => inner.into(),
        }
    }
}

impl From<RepairError> for ApiError {
    fn from(error: RepairError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            RepairError::InUse { .. } => made(ErrorKind::Conflict).hint(
                "see what is mounted with `floe daemon status`, and unmount it with `floe umount`",
            ),
            RepairError::Overtaken => made(ErrorKind::Conflict).hint("try again"),
            RepairError::Interrupted => made(ErrorKind::Interrupted),
            RepairError::Catalog(inner) => inner.into(),
            RepairError::Quarantine(_) | RepairError::Store(_) | RepairError::Read { .. } => {
                made(ErrorKind::Failed)
            }
        }
    }
}

impl From<RescueError> for ApiError {
    fn from(error: RescueError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            RescueError::Open(inner) => inner.into(),
            RescueError::Exists { .. } => {
                made(ErrorKind::Conflict).hint("name a new or empty directory")
            }
            RescueError::Interrupted => made(ErrorKind::Interrupted),
            RescueError::Access { .. } | RescueError::Contents(_) => made(ErrorKind::Failed),
        }
    }
}

impl From<OpenError> for ApiError {
    fn from(error: OpenError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match &error {
            OpenError::NotFound { .. } => {
                made(ErrorKind::NotFound).hint("make one with `floe store init`")
            }
            OpenError::Exists { .. } => {
                made(ErrorKind::Conflict).hint("look at it with `floe store info`")
            }
            OpenError::NotEmpty { .. } => made(ErrorKind::Conflict)
                .hint("name an empty or new directory with --store, or with FLOE_STORE"),
            OpenError::Locked { pid, .. } => {
                let hint = pid.map(|pid| format!("see who holds it with `ps -fp {pid}`"));
                Self {
                    hint,
                    ..made(ErrorKind::Conflict)
                }
            }
            OpenError::Newer { .. } => {
                made(ErrorKind::Failed).hint("nothing was changed; use a newer version of Floe")
            }
            OpenError::Damaged { .. } => made(ErrorKind::Failed)
                .hint(
                    "nothing was changed; copy the store aside, and save what it holds with \
                     `floe store objects --copy-to DIR`",
                ),
            OpenError::CatalogLost { .. } => made(ErrorKind::Failed).hint(
                "nothing was changed; bring `catalog.db` back from a copy, or see what is left with \
                 `floe store objects`",
            ),
            OpenError::Foreign { owner, .. } => made(ErrorKind::Failed).hint(format!(
                "only the owner of a store can use it: run the command as user {owner}, or name \
                 another store with --store, or with FLOE_STORE"
            )),
            OpenError::Writable { path, .. } => made(ErrorKind::Failed).hint(format!(
                "if you trust everybody who could write to it so far: `chmod go-w {}`",
                shell_word(&path.to_string_lossy())
            )),
            OpenError::Symlink { path } => made(ErrorKind::Failed).hint(format!(
                "see where it leads with `ls -l {}`; only the store's directory itself may be \
                 named through a link",
                shell_word(&path.to_string_lossy())
            )),
            OpenError::Access { .. }
            | OpenError::Catalog { .. }
            | OpenError::Contents { .. }
            | OpenError::Recover { .. } => made(ErrorKind::Failed).hint(DOCTOR),
        }
    }
}

const REPAIRING: &str = "try again when `floe check --repair` is done";
const DOCTOR: &str = "check the host and the store with `floe doctor`";

impl From<WorkspaceError> for ApiError {
    fn from(error: WorkspaceError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match &error {
            WorkspaceError::NotFound { similar, .. } => {
                made(ErrorKind::NotFound).hint(suggest(similar, "floe ws list"))
            }
            WorkspaceError::Exists { name } => {
                made(ErrorKind::Conflict).hint(format!("look at it with `floe ws show {name}`"))
            }
            WorkspaceError::Busy { .. } => {
                made(ErrorKind::Unavailable).hint("try again when that is over")
            }
            WorkspaceError::Name(_) => made(ErrorKind::Usage),
            WorkspaceError::Catalog(CatalogError::Repairing) => {
                made(ErrorKind::Conflict).hint(REPAIRING)
            }
            WorkspaceError::Catalog(_) | WorkspaceError::Tree(_) => made(ErrorKind::Failed),
        }
    }
}

impl From<FindError> for ApiError {
    fn from(error: FindError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match &error {
            FindError::NotFound { .. } => {
                made(ErrorKind::NotFound).hint("see what there is with `floe snap list`")
            }
            FindError::Ambiguous { candidates, .. } => {
                let some: Vec<_> = candidates.iter().take(4).map(String::as_str).collect();
                let more = if candidates.len() > some.len() {
                    ", ..."
                } else {
                    ""
                };
                made(ErrorKind::Conflict).hint(format!("say which: {}{more}", some.join(", ")))
            }
            FindError::Catalog(CatalogError::Repairing) => {
                made(ErrorKind::Conflict).hint(REPAIRING)
            }
            FindError::Catalog(_) => made(ErrorKind::Failed),
        }
    }
}

impl From<SnapshotError> for ApiError {
    fn from(error: SnapshotError) -> Self {
        match error {
            SnapshotError::Workspace(inner) => inner.into(),
            SnapshotError::NameTaken {
                ref workspace,
                ref name,
            } => Self::from_error(ErrorKind::Conflict, &error).hint(format!(
                "look at it with `floe snap show {workspace}/{name}`"
            )),
            SnapshotError::Room { .. } => Self::from_error(ErrorKind::Failed, &error).hint(
                "delete what is not needed any more (`floe snap delete`, `floe ws delete`), then `floe gc`",
            ),
            SnapshotError::Freeze { .. } | SnapshotError::Random(_) | SnapshotError::Catalog(_) => {
                Self::from_error(ErrorKind::Failed, &error)
            }
        }
    }
}

impl From<ForkError> for ApiError {
    fn from(error: ForkError) -> Self {
        match error {
            ForkError::Workspace(inner) => inner.into(),
            ForkError::Snapshot(inner) => inner.into(),
            ForkError::Find(inner) => inner.into(),
            ForkError::Catalog(inner) => inner.into(),
        }
    }
}

impl From<HostLandError> for ApiError {
    fn from(error: HostLandError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            HostLandError::Conflicts(ref conflicts) => {
                let mut made = made(ErrorKind::Conflict).hint(
                    "nothing was changed; make them equal on one of the sides, or leave them out \
                     with --only",
                );
                made.causes = conflicts.iter().map(ToString::to_string).collect();
                made
            }
            HostLandError::Pending { .. } => made(ErrorKind::Conflict).hint(
                "it is tried again with the next landing and when the daemon starts: move what \
                 is in its way aside",
            ),
            HostLandError::Lost { .. } => made(ErrorKind::Failed).hint(
                "what could be taken back was; what was landed is in the workspace's snapshot, and \
                 what was there before in WS@base: see `floe log` and `floe diff`",
            ),
            HostLandError::Overtaken { .. } => made(ErrorKind::Conflict).hint("try again"),
            HostLandError::NothingToUndo => {
                made(ErrorKind::NotFound).hint("see what was landed with `floe log`")
            }
            HostLandError::Outside { .. } => made(ErrorKind::Conflict)
                .hint("say with --only what is to be landed, or remove it from the workspace"),
            HostLandError::OtherDir { .. } => {
                made(ErrorKind::Usage).hint("see which it stands on with `floe ws show`")
            }
            HostLandError::Workspace(inner) => inner.into(),
            HostLandError::Adopt(AdoptError::NoBase { .. }) => {
                made(ErrorKind::Usage).hint("say with --onto on which workspace it should land")
            }
            HostLandError::Adopt(inner) => inner.into(),
            HostLandError::Diff(inner) => inner.into(),
            HostLandError::Snapshot(inner) => inner.into(),
            HostLandError::Catalog(inner) => inner.into(),
            HostLandError::Root { .. }
            | HostLandError::Step { .. }
            | HostLandError::Plan { .. }
            | HostLandError::Kept { .. }
            | HostLandError::Damaged { .. }
            | HostLandError::Sync(_) => made(ErrorKind::Failed),
        }
    }
}

impl From<DeleteError> for ApiError {
    fn from(error: DeleteError) -> Self {
        match error {
            DeleteError::Find(inner) => inner.into(),
            DeleteError::Protected { ref references } => {
                let words: Vec<_> = references.iter().map(|one| shell_word(one)).collect();
                let what = words.join(" ");
                Self::from_error(ErrorKind::Conflict, &error).hint(format!(
                    "none was deleted; to let them go: `floe snap unprotect {what}`"
                ))
            }
            DeleteError::List(inner) => inner.into(),
            DeleteError::Collect(_) => Self::from_error(ErrorKind::Failed, &error)
                .hint("the rest is given back in the background; `floe gc` tries at once"),
            DeleteError::Catalog(inner) => inner.into(),
        }
    }
}

impl From<EditError> for ApiError {
    fn from(error: EditError) -> Self {
        match error {
            EditError::Find(inner) => inner.into(),
            EditError::NameTaken {
                ref workspace,
                ref name,
            } => Self::from_error(ErrorKind::Conflict, &error).hint(format!(
                "look at it with `floe snap show {workspace}/{name}`"
            )),
            EditError::Catalog(inner) => inner.into(),
        }
    }
}

impl From<RetentionError> for ApiError {
    fn from(error: RetentionError) -> Self {
        match error {
            RetentionError::Workspace(inner) => inner.into(),
            RetentionError::Catalog(inner) => inner.into(),
        }
    }
}

impl From<CollectError> for ApiError {
    fn from(error: CollectError) -> Self {
        match error {
            CollectError::Interrupted => Self::from_error(ErrorKind::Interrupted, &error),
            CollectError::Store(_) => Self::from_error(ErrorKind::Failed, &error),
            CollectError::Catalog(inner) => inner.into(),
        }
    }
}

impl From<HashError> for ApiError {
    fn from(error: HashError) -> Self {
        match error {
            HashError::Interrupted => Self::from_error(ErrorKind::Interrupted, &error),
            HashError::Store(_) => Self::from_error(ErrorKind::Failed, &error),
            HashError::Catalog(inner) => inner.into(),
        }
    }
}

impl From<SettingError> for ApiError {
    fn from(error: SettingError) -> Self {
        let list = "see all settings with `floe store config`";
        match error {
            SettingError::Unknown { .. } => {
                Self::from_error(ErrorKind::NotFound, &error).hint(list)
            }
            SettingError::Value { .. } => Self::from_error(ErrorKind::Usage, &error).hint(list),
            SettingError::Catalog(inner) => inner.into(),
            SettingError::Disk(_) => Self::from_error(ErrorKind::Failed, &error),
        }
    }
}

impl From<LogError> for ApiError {
    fn from(error: LogError) -> Self {
        match error {
            LogError::Workspace(inner) => inner.into(),
            LogError::Catalog(inner) => inner.into(),
        }
    }
}

impl From<RollbackError> for ApiError {
    fn from(error: RollbackError) -> Self {
        match error {
            RollbackError::Workspace(inner) => inner.into(),
            RollbackError::Find(inner) => inner.into(),
            RollbackError::Snapshot(inner) => inner.into(),
            RollbackError::Freeze { .. } => Self::from_error(ErrorKind::Failed, &error),
        }
    }
}

impl From<DiffError> for ApiError {
    fn from(error: DiffError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            DiffError::Workspace(inner) => inner.into(),
            DiffError::Find(inner) => inner.into(),
            DiffError::Catalog(inner) => inner.into(),
            DiffError::NoBase { ref workspace } => made(ErrorKind::NotFound).hint(format!(
                "compare it with one of its snapshots: see `floe snap list --ws {workspace}`"
            )),
            DiffError::NothingInCommon { .. } => made(ErrorKind::Usage)
                .hint("only what comes from one workspace can be compared: see `floe snap tree`"),
            DiffError::Settle { .. } | DiffError::Host { .. } | DiffError::Contents(_) => {
                made(ErrorKind::Failed)
            }
        }
    }
}

impl From<LandError> for ApiError {
    fn from(error: LandError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            LandError::Workspace(inner) => inner.into(),
            LandError::Find(inner) => inner.into(),
            LandError::Snapshot(inner) => inner.into(),
            LandError::Catalog(inner) => inner.into(),
            LandError::NoTarget { .. } => {
                made(ErrorKind::Usage).hint("say where it should land with --onto")
            }
            LandError::Itself { .. } => made(ErrorKind::Usage),
            LandError::NothingInCommon { .. } => made(ErrorKind::Usage)
                .hint("only what comes from one workspace can be merged: see `floe snap tree`"),
            LandError::TooDeep
            | LandError::Freeze { .. }
            | LandError::Contents(_)
            | LandError::Operation(_) => made(ErrorKind::Failed),
        }
    }
}

impl From<ImportError> for ApiError {
    fn from(error: ImportError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            ImportError::Workspace(inner) => inner.into(),
            ImportError::Catalog(inner) => inner.into(),
            ImportError::StoreInside { .. } => made(ErrorKind::Usage),
            ImportError::Directory { ref source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => made(ErrorKind::NotFound),
                _ => made(ErrorKind::Failed),
            },
            ImportError::Interrupted { .. } => made(ErrorKind::Interrupted),
            ImportError::Entry { .. } | ImportError::Build { .. } => made(ErrorKind::Failed),
        }
    }
}

impl From<BaseError> for ApiError {
    fn from(error: BaseError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            BaseError::Workspace(inner) => inner.into(),
            BaseError::Catalog(inner) => inner.into(),
            BaseError::Directory { ref source, .. } => match source.kind() {
                std::io::ErrorKind::NotFound => made(ErrorKind::NotFound),
                _ => made(ErrorKind::Failed),
            },
            BaseError::InMount { .. } => made(ErrorKind::Usage)
                .hint("fork the workspace that is mounted there: `floe fork WS NEW`"),
            BaseError::InStore { .. }
            | BaseError::Place { .. }
            | BaseError::Nested { .. }
            | BaseError::Exclude(_) => made(ErrorKind::Usage),
        }
    }
}

impl From<AdoptError> for ApiError {
    fn from(error: AdoptError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            AdoptError::Workspace(inner) => inner.into(),
            AdoptError::Catalog(inner) => inner.into(),
            AdoptError::NoBase { .. } => {
                made(ErrorKind::Conflict).hint("everything it has is in the store already")
            }
            AdoptError::Interrupted => made(ErrorKind::Interrupted),
            AdoptError::Incomplete { .. } => made(ErrorKind::Failed)
                .hint("see what was changed with `floe ws show`; the rest was taken in"),
            AdoptError::Store(_) => made(ErrorKind::Failed),
        }
    }
}

impl From<MountError> for ApiError {
    fn from(error: MountError) -> Self {
        match &error {
            MountError::Busy { dir } => {
                Self::from_error(ErrorKind::Conflict, &error).hint(format!(
                    "see who uses it with `fuser -vm {0}`, or detach it all the same with \
                 `floe umount --lazy {0}`",
                    shell_word(&dir.to_string_lossy())
                ))
            }
            MountError::Covered { by, .. } => {
                Self::from_error(ErrorKind::Conflict, &error).hint(format!(
                    "unmount that first: `umount {}`",
                    shell_word(&by.to_string_lossy())
                ))
            }
            MountError::NoDevice(_)
            | MountError::Directory { .. }
            | MountError::Mount { .. }
            | MountError::Unmount { .. } => {
                Self::from_error(ErrorKind::Failed, &error).hint(DOCTOR)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_come_before_the_command_that_lists_all() {
        let names = |names: &[&str]| {
            names
                .iter()
                .map(|&name| name.to_owned())
                .collect::<Vec<_>>()
        };
        assert_eq!(
            suggest(&[], "floe ws list"),
            "see what there is with `floe ws list`"
        );
        assert_eq!(
            suggest(&names(&["web"]), "floe ws list"),
            "did you mean 'web'? See all with `floe ws list`"
        );
        let many = suggest(&names(&["a1", "a2", "a3", "a4"]), "floe ws list");
        assert!(
            many.starts_with("did you mean one of 'a1', 'a2', 'a3'?"),
            "{many}"
        );
    }

    #[test]
    fn a_missing_workspace_is_not_found_with_a_suggestion() {
        let error = WorkspaceError::NotFound {
            name: "wbe".into(),
            similar: vec!["web".into()],
        };
        let seen = ApiError::from(error);
        assert_eq!(seen.kind, ErrorKind::NotFound);
        assert!(seen.hint.unwrap().contains("'web'"));
    }
}
