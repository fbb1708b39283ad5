//! What errors of sandboxes mean: those of the store's rows, of starting processes, and of the agent.

use floe_fs::id::TemplateNameError;
use floe_fs::{SandboxError, TemplateError};

use super::{ApiError, ErrorKind};
use crate::agent::AgentError;
use crate::daemon::sandboxes::{CgroupError, StartError, VmError};

impl From<SandboxError> for ApiError {
    fn from(error: SandboxError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            SandboxError::SessionTaken { .. } | SandboxError::KeyTaken { .. } => {
                made(ErrorKind::Conflict)
            }
            SandboxError::SlotTaken { .. } => made(ErrorKind::Internal),
            SandboxError::Catalog(inner) => inner.into(),
        }
    }
}

impl From<TemplateError> for ApiError {
    fn from(error: TemplateError) -> Self {
        match error {
            TemplateError::NoSnapshot { .. } => Self::from_error(ErrorKind::NotFound, &error),
            TemplateError::Catalog(inner) => inner.into(),
        }
    }
}

impl From<TemplateNameError> for ApiError {
    fn from(error: TemplateNameError) -> Self {
        Self::from_error(ErrorKind::Usage, &error)
    }
}

impl From<StartError> for ApiError {
    fn from(error: StartError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            StartError::Slots => made(ErrorKind::Unavailable),
            StartError::Bubblewrap { .. } => made(ErrorKind::Failed)
                .hint("bubblewrap is needed: `apt-get install bubblewrap`; see `floe doctor`"),
            StartError::UserNamespace { .. } | StartError::Refused { .. } => {
                made(ErrorKind::Failed).hint("see what the host lacks with `floe doctor`")
            }
            StartError::Cgroup(inner) => inner.into(),
            StartError::Filter { .. } | StartError::Agent { .. } | StartError::File { .. } => {
                made(ErrorKind::Failed)
            }
        }
    }
}

impl From<VmError> for ApiError {
    fn from(error: VmError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            VmError::NoKernel => made(ErrorKind::NotFound)
                .hint("install one with `floe guest install`, or name one with --kernel"),
            VmError::Refused { ref hint, .. } => match hint.clone() {
                Some(hint) => made(ErrorKind::Failed).hint(hint),
                None => made(ErrorKind::Failed),
            },
            VmError::Kernel { hint, .. } => made(ErrorKind::Failed).hint(hint),
            VmError::Silent { .. } => made(ErrorKind::Unavailable),
            VmError::Workspace(inner) => inner,
            VmError::Cgroup(inner) => inner.into(),
            VmError::Start(inner) => inner.into(),
            VmError::Image { .. }
            | VmError::File { .. }
            | VmError::Spawn { .. }
            | VmError::Monitor { .. }
            | VmError::Ended { .. }
            | VmError::NoAgent { .. }
            | VmError::Agent { .. } => made(ErrorKind::Failed),
        }
    }
}

impl From<CgroupError> for ApiError {
    fn from(error: CgroupError) -> Self {
        let made = |kind| Self::from_error(kind, &error);
        match error {
            CgroupError::Restless { .. } => made(ErrorKind::Unavailable)
                .hint("a process waits for something that does not come; try again later"),
            CgroupError::None => {
                made(ErrorKind::Failed).hint("see what the host lacks with `floe doctor`")
            }
            CgroupError::Access { .. } => made(ErrorKind::Failed),
        }
    }
}

impl From<AgentError> for ApiError {
    fn from(error: AgentError) -> Self {
        let kind = match error {
            AgentError::NotFound { .. } | AgentError::NoSuchProcess { .. } => ErrorKind::NotFound,
            AgentError::AlreadyExists { .. } => ErrorKind::Conflict,
            AgentError::InvalidArgument { .. } | AgentError::UnknownUser { .. } => ErrorKind::Usage,
            _ => ErrorKind::Failed,
        };
        Self::from_error(kind, &error)
    }
}
