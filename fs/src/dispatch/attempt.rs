//! Having an operation done for a transport, so that whatever becomes of it has an answer.

use std::panic::{AssertUnwindSafe, catch_unwind};

use super::{Dispatch, Errno, OpError};
use crate::fault;
use crate::id::Ino;

/// Why there is no result.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failed {
    /// The operation failed, as it may.
    Errno(Errno),
    /// It panicked. It may have happened, to more inodes than the one it was for.
    Panicked,
}

/// The answer to whoever asked, if nothing else follows from it.
impl From<Failed> for Errno {
    fn from(failed: Failed) -> Self {
        match failed {
            Failed::Errno(errno) => errno,
            Failed::Panicked => Self(libc::EIO),
        }
    }
}

/// Has the engine do something. Errors become errnos here, and those that are nobody's doing are logged; a
/// panic ends nothing but the operation.
pub(super) fn attempt<T>(
    dispatch: &dyn Dispatch,
    operation: &'static str,
    ino: Ino,
    act: impl FnOnce(&dyn Dispatch) -> Result<T, OpError>,
) -> Result<T, Failed> {
    let _serving = fault::Serving::begin(operation);
    crate::hash::serving();
    let act = || {
        fault::point("begin");
        act(dispatch)
    };
    match catch_unwind(AssertUnwindSafe(act)) {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(error)) => {
            let errno = Errno::from(&error);
            if matches!(error, OpError::Catalog(_) | OpError::Contents(_)) {
                let (error, code): (&dyn std::error::Error, _) = (&error, errno.0);
                tracing::error!(error, operation, ino = ino.0, code, "operation failed");
            }
            Err(Failed::Errno(errno))
        }
        Err(_panic) => {
            tracing::error!(operation, ino = ino.0, "panic while serving a request");
            Err(Failed::Panicked)
        }
    }
}
