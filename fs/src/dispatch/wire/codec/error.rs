//! Why the body of a message was refused.

use thiserror::Error;

use crate::dispatch::Errno;

/// What is wrong with a request whose frame is whole. The connection goes on; the request is answered
/// with [`WireError::errno`].
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum WireError {
    /// The message ends before what its opcode says has to be in it.
    #[error("the message ends within {what}")]
    Short {
        /// Field or structure that is not all there.
        what: &'static str,
    },
    /// The length in the header is not that of the message.
    #[error("a message of {found} bytes says it has {said}")]
    Length {
        /// What the header says, in bytes.
        said: u32,
        /// What there is, in bytes.
        found: usize,
    },
    /// The extensions (`total_extlen`) are longer than the body.
    #[error("extensions of {len} bytes in a body of {body}")]
    Extensions {
        /// Length of the extensions in bytes.
        len: usize,
        /// Length of the body with them, in bytes.
        body: usize,
    },
    /// A name is not ended by NUL, empty, or has `/` in it.
    #[error("a name is malformed")]
    Name,
    /// A name is longer than [`NAME_MAX`](super::NAME_MAX) bytes.
    #[error("a name of {len} bytes")]
    NameTooLong {
        /// Its length in bytes.
        len: usize,
    },
    /// A field has a value that it cannot have.
    #[error("{what} makes no sense")]
    Value {
        /// Which field.
        what: &'static str,
    },
}

impl WireError {
    /// What the sender is told.
    #[must_use]
    pub fn errno(&self) -> Errno {
        Errno(match self {
            Self::NameTooLong { .. } => libc::ENAMETOOLONG,
            _ => libc::EINVAL,
        })
    }
}
