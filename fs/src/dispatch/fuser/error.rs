//! Why mounting or unmounting failed.

use std::io;
use std::path::{Path, PathBuf};

use thiserror::Error;

use super::stale::covering;

/// Why a mount could not be made or removed.
#[derive(Debug, Error)]
pub enum MountError {
    /// There is no FUSE device.
    #[error("/dev/fuse cannot be opened")]
    NoDevice(#[source] io::Error),
    /// The place is no directory that could be mounted on.
    #[error("cannot mount on {dir}")]
    Directory {
        /// The place.
        dir: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The kernel refused the mount, or the session did not start.
    #[error("cannot mount on {dir}: {step} failed")]
    Mount {
        /// The place.
        dir: PathBuf,
        /// What failed.
        step: &'static str,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// Somebody uses the mount.
    #[error("{dir} is busy")]
    Busy {
        /// The place.
        dir: PathBuf,
    },
    /// Somebody mounted something over the mount.
    #[error("something else is mounted over {dir}")]
    Covered {
        /// The place.
        dir: PathBuf,
        /// Where the other thing is mounted: there, or on a directory above.
        by: PathBuf,
    },
    /// The mount could not be removed.
    #[error("cannot unmount {dir}")]
    Unmount {
        /// The place.
        dir: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

impl MountError {
    /// The error for a mount that something else is mounted over.
    #[must_use]
    pub fn covered(dir: &Path) -> Self {
        Self::Covered {
            dir: dir.to_owned(),
            by: covering(dir),
        }
    }
}
