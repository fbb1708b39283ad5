//! What an error means to whoever asked: the one place that gives errors a kind, an exit code and
//! a hint.
//!
//! Library errors arrive here as their own enums and leave as [`ApiError`], the object that goes
//! over the socket, is printed by the command line, and appears on stderr under `--json`.

use std::error::Error;

use floe_fs::dispatch::fuser::MountError;
use floe_fs::id::NameError;
use floe_fs::{
    CatalogError, FindError, ForkError, ImportError, OpenError, RollbackError, SnapshotError,
    WorkspaceError,
};
use serde::{Deserialize, Serialize};

/// The class of an error; decides the exit code. New kinds may appear, so a script should treat
/// one it does not know as `failed`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorKind {
    /// The operation was tried and failed.
    Failed,
    /// The request makes no sense as given.
    Usage,
    /// Something named in the request does not exist.
    NotFound,
    /// The state of something stands against it: a name taken, a mount busy, a store in use.
    Conflict,
    /// No daemon could be reached or started.
    DaemonUnreachable,
    /// The daemon that answered is another version of Floe.
    VersionMismatch,
    /// The user interrupted it.
    Interrupted,
    /// A bug in Floe.
    Internal,
    /// Whoever read the output went away. Not a failure, and never printed.
    OutputClosed,
}

impl ErrorKind {
    /// The status a process ends with.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Self::OutputClosed => 0,
            Self::Failed | Self::Internal => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Conflict => 4,
            Self::DaemonUnreachable | Self::VersionMismatch => 5,
            Self::Interrupted => 130,
        }
    }
}

/// An error as users and scripts see it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{error}")]
pub struct ApiError {
    /// What did not work.
    pub error: String,
    /// Why, outermost reason first.
    pub causes: Vec<String>,
    /// What to do next; commands in it stand between backticks and can be pasted.
    pub hint: Option<String>,
    /// Its class.
    pub kind: ErrorKind,
}

impl ApiError {
    /// An error without causes or hint.
    #[must_use]
    pub fn new(kind: ErrorKind, error: impl Into<String>) -> Self {
        Self {
            error: error.into(),
            causes: Vec::new(),
            hint: None,
            kind,
        }
    }

    /// An error whose text and causes are those of a library error.
    #[must_use]
    pub fn from_error(kind: ErrorKind, error: &dyn Error) -> Self {
        let mut made = Self::new(kind, error.to_string());
        made.causes = chain(error.source());
        made
    }

    /// Appends an error and its own sources to the causes.
    #[must_use]
    pub fn caused_by(mut self, cause: &dyn Error) -> Self {
        self.causes.extend(chain(Some(cause)));
        self
    }

    /// Sets the hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Puts what was being done in front; the error so far becomes its first cause.
    #[must_use]
    pub fn while_doing(mut self, what: impl Into<String>) -> Self {
        let inner = std::mem::replace(&mut self.error, what.into());
        self.causes.insert(0, inner);
        self
    }
}

/// The texts of an error and its sources, without repeating one that its parent already shows.
fn chain(mut next: Option<&dyn Error>) -> Vec<String> {
    let mut causes: Vec<String> = Vec::new();
    while let Some(error) = next {
        let text = error.to_string();
        if causes.last() != Some(&text) {
            causes.push(text);
        }
        next = error.source();
    }
    causes
}

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

impl From<NameError> for ApiError {
    fn from(error: NameError) -> Self {
        Self::from_error(ErrorKind::Usage, &error)
    }
}

impl From<CatalogError> for ApiError {
    fn from(error: CatalogError) -> Self {
        Self::from_error(ErrorKind::Failed, &error)
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
                .hint("nothing was changed; copy the store aside before you try to repair it"),
            OpenError::Access { .. }
            | OpenError::Catalog { .. }
            | OpenError::Contents { .. }
            | OpenError::Recover { .. } => made(ErrorKind::Failed).hint(DOCTOR),
        }
    }
}

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
            WorkspaceError::Busy { name } => {
                made(ErrorKind::Conflict).hint(format!("unmount it with `floe umount {name}`"))
            }
            WorkspaceError::Name(_) => made(ErrorKind::Usage),
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
            ImportError::Entry { .. } | ImportError::Build { .. } => made(ErrorKind::Failed),
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
            MountError::NoDevice(_)
            | MountError::Directory { .. }
            | MountError::Mount { .. }
            | MountError::Unmount { .. } => {
                Self::from_error(ErrorKind::Failed, &error).hint(DOCTOR)
            }
        }
    }
}

/// Quotes a word for a shell where it needs quotes, so that hints can be pasted.
#[must_use]
pub fn shell_word(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._-+=:@%,".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_documented_exit_codes() {
        let documented = [
            (ErrorKind::Failed, 1),
            (ErrorKind::Internal, 1),
            (ErrorKind::Usage, 2),
            (ErrorKind::NotFound, 3),
            (ErrorKind::Conflict, 4),
            (ErrorKind::DaemonUnreachable, 5),
            (ErrorKind::VersionMismatch, 5),
            (ErrorKind::Interrupted, 130),
        ];
        for (kind, code) in documented {
            assert_eq!(kind.exit_code(), code, "{kind:?}");
        }
    }

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

    #[test]
    fn context_moves_the_error_into_the_causes() {
        let inner = ApiError::new(ErrorKind::Failed, "disk full");
        let outer = inner.while_doing("cannot import '/x'");
        assert_eq!(outer.error, "cannot import '/x'");
        assert_eq!(outer.causes, ["disk full"]);
    }

    #[test]
    fn words_are_quoted_only_where_a_shell_would_split_them() {
        assert_eq!(shell_word("/mnt/a-b.c"), "/mnt/a-b.c");
        assert_eq!(shell_word("/mnt/it's"), r"'/mnt/it'\''s'");
        assert_eq!(shell_word(""), "''");
    }
}
