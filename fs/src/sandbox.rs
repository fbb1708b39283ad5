//! What a store keeps of a sandbox. What runs in one, and how, is the business of whoever keeps the store
//! open: here it is a row with a workspace and a life.

use crate::id::{SnapshotId, WorkspaceId};

/// What a sandbox is made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SandboxKind {
    /// Processes of the host.
    #[default]
    Process = 0,
    /// A virtual machine.
    Vm = 1,
}

impl SandboxKind {
    /// The kind of a number in the catalog.
    pub(crate) fn from_code(code: i64) -> Option<Self> {
        match code {
            0 => Some(Self::Process),
            1 => Some(Self::Vm),
            _ => None,
        }
    }

    /// The word for it.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Process => "process",
            Self::Vm => "vm",
        }
    }
}

/// Where a sandbox is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SandboxState {
    /// Its workspace and its processes are being made.
    Creating,
    /// It runs.
    Running,
    /// Its processes are being frozen.
    Pausing,
    /// Its processes are frozen and can go on.
    Paused,
    /// A snapshot of it is being taken.
    Snapshotting,
    /// Its processes are being ended.
    Stopping,
    /// It has no processes. Its workspace is there, and it can be started again.
    Stopped,
    /// It could not be started.
    Failed,
}

impl SandboxState {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Creating,
        Self::Running,
        Self::Pausing,
        Self::Paused,
        Self::Snapshotting,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
    ];

    /// The word for it in the catalog.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Snapshotting => "snapshotting",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }

    /// The state of that word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// What happens when the time of a sandbox is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum OnTimeout {
    /// It is removed.
    #[default]
    Kill = 0,
    /// It is paused.
    Pause = 1,
}

impl OnTimeout {
    /// What a number in the catalog stands for.
    pub(crate) fn from_code(code: i64) -> Option<Self> {
        match code {
            0 => Some(Self::Kill),
            1 => Some(Self::Pause),
            _ => None,
        }
    }
}

/// A row of the table `sandbox`. Times are nanoseconds since the epoch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SandboxRecord {
    /// Its id, for ever.
    pub id: String,
    /// What it is made of.
    pub kind: SandboxKind,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why it is stopped or failed, in words.
    pub reason: Option<String>,
    /// The workspace that is its root, as soon as there is one.
    pub workspace: Option<WorkspaceId>,
    /// What it was asked to start from.
    pub template: String,
    /// The snapshot that it started from, which may be gone.
    pub snapshot: Option<SnapshotId>,
    /// When it was made.
    pub created_at: i64,
    /// When its processes were last started.
    pub started_at: Option<i64>,
    /// When its time is over.
    pub ends_at: Option<i64>,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// Whether a request to it resumes it when it is paused.
    pub auto_resume: bool,
    /// How often it was started on a snapshot.
    pub generation: u64,
    /// Which range of user ids it has. One sandbox at a time has a slot.
    pub slot: Option<u32>,
    /// The session that it belongs to. One that is not deleted has a session.
    pub session: Option<String>,
    /// What its maker called the request to make it. One sandbox has a key, deleted ones too.
    pub idempotency_key: Option<String>,
    /// What else whoever runs it has to know, as JSON. The store does not read it.
    pub spec: String,
    /// When it was deleted.
    pub deleted_at: Option<i64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_state_is_read_as_it_was_written() {
        for state in SandboxState::ALL {
            assert_eq!(SandboxState::parse(state.word()), Some(state));
        }
        assert_eq!(SandboxState::parse("Running"), None);
        for kind in [SandboxKind::Process, SandboxKind::Vm] {
            assert_eq!(SandboxKind::from_code(kind as i64), Some(kind));
        }
        for what in [OnTimeout::Kill, OnTimeout::Pause] {
            assert_eq!(OnTimeout::from_code(what as i64), Some(what));
        }
    }
}
