//! Places in lists of snapshots and of sandboxes, which stay where they are whatever is added or removed
//! around them.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};
use thiserror::Error;

use crate::id::LayerId;
use crate::sandbox::SandboxRecord;

/// A place in a list of snapshots: right behind one of them, which may have been deleted since.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SnapshotCursor {
    /// When that one was taken, in nanoseconds since the epoch.
    pub(crate) at: i64,
    /// Its layer, which tells those of one instant apart.
    pub(crate) layer: LayerId,
}

/// Why a text is no place in a list.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("'{text}' is no place in a list of {of}")]
pub struct CursorError {
    /// The text.
    pub text: String,
    /// What is listed, in plural.
    pub of: &'static str,
}

/// A place in a list of sandboxes: right behind one of them, which may have been deleted since.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SandboxCursor {
    /// When that one was made, in nanoseconds since the epoch.
    pub(crate) at: i64,
    /// Its id, which tells those of one instant apart.
    pub(crate) id: String,
}

impl fmt::Display for SnapshotCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{:x}", self.at, self.layer.0)
    }
}

impl Serialize for SnapshotCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for SnapshotCursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let parsed = || {
            let (at, layer) = text.split_once('.')?;
            Some(Self {
                at: i64::from_str_radix(at, 16).ok()?,
                layer: LayerId(u64::from_str_radix(layer, 16).ok()?),
            })
        };
        parsed().ok_or_else(|| CursorError {
            text: text.to_owned(),
            of: "snapshots",
        })
    }
}

impl SandboxCursor {
    /// The place right behind a sandbox.
    #[must_use]
    pub fn behind(sandbox: &SandboxRecord) -> Self {
        Self {
            at: sandbox.created_at,
            id: sandbox.id.clone(),
        }
    }
}

impl fmt::Display for SandboxCursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}.{}", self.at, self.id)
    }
}

impl Serialize for SandboxCursor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl FromStr for SandboxCursor {
    type Err = CursorError;

    fn from_str(text: &str) -> Result<Self, CursorError> {
        let parsed = || {
            let (at, id) = text.split_once('.')?;
            let at = i64::from_str_radix(at, 16).ok()?;
            (!id.is_empty()).then(|| Self {
                at,
                id: id.to_owned(),
            })
        };
        parsed().ok_or_else(|| CursorError {
            text: text.to_owned(),
            of: "sandboxes",
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_is_read_as_it_was_written() {
        let cursor = SnapshotCursor {
            at: 1_764_489_286_696_852_001,
            layer: LayerId(77),
        };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for wrong in ["", "1", "1.", ".1", "x.1", "1.2.3", "1.-2"] {
            assert!(wrong.parse::<SnapshotCursor>().is_err(), "{wrong}");
        }
        let cursor = SandboxCursor {
            at: 1_764_489_286_696_852_001,
            id: "a.b-c".to_owned(),
        };
        assert_eq!(cursor.to_string().parse(), Ok(cursor));
        for wrong in ["", "1", "1.", ".a", "x.a"] {
            assert!(wrong.parse::<SandboxCursor>().is_err(), "{wrong}");
        }
    }
}
