//! What can go wrong between daemon and agent.

use floe_guest::message::{Failure, FailureKind};
use thiserror::Error;

/// Why something was not done in a sandbox.
///
/// The texts of all but the last few come from the sandbox: they are shown, never interpreted, and
/// are at most 64 KiB.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum AgentError {
    /// There is no such file or directory, or no such program.
    #[error("{message}")]
    NotFound {
        /// What was not found.
        message: String,
    },
    /// Something is there already.
    #[error("{message}")]
    AlreadyExists {
        /// What is in the way.
        message: String,
    },
    /// A directory was needed.
    #[error("{message}")]
    NotADirectory {
        /// What is none.
        message: String,
    },
    /// A file was needed.
    #[error("{message}")]
    IsADirectory {
        /// What is one.
        message: String,
    },
    /// The user may not.
    #[error("{message}")]
    PermissionDenied {
        /// What was not allowed.
        message: String,
    },
    /// No room, or above the quota.
    #[error("{message}")]
    NoSpace {
        /// What there was no room for.
        message: String,
    },
    /// The request makes no sense.
    #[error("{message}")]
    InvalidArgument {
        /// What is wrong with it.
        message: String,
    },
    /// The sandbox has no such user.
    #[error("{message}")]
    UnknownUser {
        /// Who.
        message: String,
    },
    /// There is no such process, or it has ended.
    #[error("{message}")]
    NoSuchProcess {
        /// Which.
        message: String,
    },
    /// Nothing listens on the port.
    #[error("{message}")]
    PortClosed {
        /// Which.
        message: String,
    },
    /// A limit was reached: of processes, of channels, of entries.
    #[error("{message}")]
    Exhausted {
        /// Which.
        message: String,
    },
    /// The sandbox's system refused otherwise.
    #[error("{message}")]
    Other {
        /// What it said.
        message: String,
    },
    /// The agent has not answered in time. Whether it did what was asked is not known.
    #[error("the sandbox's agent has not answered for {seconds} seconds")]
    NoAnswer {
        /// How long was waited.
        seconds: u64,
    },
    /// The connection has ended. Whether what was asked was done is not known.
    #[error("the connection to the sandbox's agent has ended: {reason}")]
    Gone {
        /// Why.
        reason: String,
    },
    /// The agent broke the protocol, and the connection was ended.
    #[error("the sandbox's agent broke the protocol: {reason}")]
    Protocol {
        /// How.
        reason: String,
    },
}

impl From<Failure> for AgentError {
    fn from(Failure { kind, message }: Failure) -> Self {
        match kind {
            FailureKind::NotFound => Self::NotFound { message },
            FailureKind::AlreadyExists => Self::AlreadyExists { message },
            FailureKind::NotADirectory => Self::NotADirectory { message },
            FailureKind::IsADirectory => Self::IsADirectory { message },
            FailureKind::PermissionDenied => Self::PermissionDenied { message },
            FailureKind::NoSpace => Self::NoSpace { message },
            FailureKind::InvalidArgument => Self::InvalidArgument { message },
            FailureKind::UnknownUser => Self::UnknownUser { message },
            FailureKind::NoSuchProcess => Self::NoSuchProcess { message },
            FailureKind::PortClosed => Self::PortClosed { message },
            FailureKind::Exhausted => Self::Exhausted { message },
            FailureKind::Other => Self::Other { message },
        }
    }
}
