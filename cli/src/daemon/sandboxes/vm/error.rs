//! Why there is no virtual machine.

use std::io;
use std::path::{Path, PathBuf};

use floe_fs::id::SnapshotId;
use thiserror::Error;

use crate::agent::AgentError;
use crate::daemon::sandboxes::process::{CgroupError, StartError};
use crate::error::ApiError;

/// Why a virtual machine was not started, or did not do what it was told.
#[derive(Debug, Error)]
pub(crate) enum VmError {
    /// There is no kernel for it.
    #[error("no kernel for virtual machines is installed")]
    NoKernel,
    /// A file or socket cannot be used.
    #[error("cannot use '{}'", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// The kernel cannot be used.
    #[error("the kernel for the virtual machine cannot be used")]
    Kernel {
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
        /// What can be done.
        hint: &'static str,
    },
    /// The image of a snapshot cannot be used.
    #[error("the memory of the snapshot '{snapshot}' cannot be used")]
    Image {
        /// Which.
        snapshot: SnapshotId,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The monitor could not be started.
    #[error("cannot start the monitor")]
    Spawn {
        /// Why.
        source: io::Error,
    },
    /// The monitor does not understand, or is not understood.
    #[error("the monitor's connection failed")]
    Monitor {
        /// Why.
        source: io::Error,
    },
    /// The monitor says what is wrong.
    #[error("{message}")]
    Refused {
        /// What failed, in its words.
        message: String,
        /// What can be done.
        hint: Option<String>,
    },
    /// The machine ended before its agent answered.
    #[error("the virtual machine ended: {told}")]
    Ended {
        /// How, with the last lines of its console.
        told: String,
    },
    /// The monitor did not answer in time.
    #[error("the monitor did not answer within {seconds} s")]
    Silent {
        /// How long it was waited for.
        seconds: u64,
    },
    /// The agent did not answer in time.
    #[error(
        "the agent in the virtual machine did not answer within {seconds} s; its console said last: {console}"
    )]
    NoAgent {
        /// How long it was waited for.
        seconds: u64,
        /// The end of what its console said.
        console: String,
    },
    /// The agent is none.
    #[error("the agent in the virtual machine does not answer")]
    Agent {
        /// Why.
        source: AgentError,
    },
    /// A workspace cannot be had.
    #[error("{}", .0.error)]
    Workspace(ApiError),
    /// Control groups.
    #[error(transparent)]
    Cgroup(#[from] CgroupError),
    /// What processes and machines need alike.
    #[error(transparent)]
    Start(#[from] StartError),
}

impl VmError {
    pub(super) fn file(path: &Path) -> impl FnOnce(io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::File { path, source }
    }
}
