//! The one place where an operation's error becomes an errno.

use super::OpError;

/// An error number as programs see it; positive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Errno(pub i32);

impl From<&OpError> for Errno {
    fn from(error: &OpError) -> Self {
        Errno(match error {
            OpError::NoEntry { .. } => libc::ENOENT,
            OpError::Stale(_) | OpError::Closed => libc::ESTALE,
            OpError::Exists { .. } | OpError::XattrExists(_) => libc::EEXIST,
            OpError::NotDirectory(_) => libc::ENOTDIR,
            OpError::IsDirectory(_) => libc::EISDIR,
            OpError::NotEmpty(_) => libc::ENOTEMPTY,
            OpError::NameTooLong { .. } => libc::ENAMETOOLONG,
            OpError::Invalid { .. } => libc::EINVAL,
            OpError::NotPermitted(_) => libc::EPERM,
            OpError::TooManyLinks(_) => libc::EMLINK,
            OpError::TooBig { .. } => libc::EFBIG,
            OpError::SeekPastEnd { .. } => libc::ENXIO,
            OpError::NoXattr(_) => libc::ENODATA,
            OpError::XattrNoSpace(_) | OpError::NoSpace { .. } => libc::ENOSPC,
            OpError::Quota { .. } => libc::EDQUOT,
            OpError::ReadOnly => libc::EROFS,
            OpError::Unsupported { .. } => libc::EOPNOTSUPP,
            OpError::Catalog(error) => error.errno(),
            OpError::Contents(error) => error.errno(),
        })
    }
}
