//! Identifiers and names: one newtype each, so that no signature takes two bare integers.
//!
//! Names arrive as *alleged* strings and become types only through [`WorkspaceName::parse`] and
//! [`SnapshotName::parse`]; everything behind those may trust them as path-free and printable.

mod template;

use std::fmt;

use serde::{Deserialize, Serialize};
use thiserror::Error;

pub use self::template::{TemplateName, TemplateNameError};

macro_rules! numeric_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

numeric_id!(
    /// Inode number. Drawn from one counter per store, never reused and never derived from a
    /// path, so it survives copy-up, rename, remount and fork.
    Ino
);
numeric_id!(
    /// A layer. Ids only grow, so an ancestor's id is always smaller than its descendant's.
    LayerId
);
numeric_id!(
    /// One file in the store's `objects/` directory.
    ObjectId
);
numeric_id!(
    /// A workspace, stable across renames.
    WorkspaceId
);

impl Ino {
    /// The root directory of every workspace and snapshot (FUSE fixes this number).
    pub const ROOT: Ino = Ino(1);
    /// The first number handed out to a file.
    pub const FIRST: Ino = Ino(16);
}

/// Why a name or id was refused.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum NameError {
    /// The name is empty.
    #[error("a {kind} name cannot be empty")]
    Empty {
        /// What was being named.
        kind: &'static str,
    },
    /// The name is longer than [`NAME_MAX`] bytes.
    #[error("the {kind} name '{name}' is longer than {NAME_MAX} bytes")]
    TooLong {
        /// What was being named.
        kind: &'static str,
        /// The name as given.
        name: String,
    },
    /// The name holds a character outside the allowed set, or starts with '.' or '-'.
    #[error(
        "the {kind} name {name:?} is not allowed: use letters, digits, '.', '_' and '-', \
         and start with a letter or digit"
    )]
    BadCharacter {
        /// What was being named.
        kind: &'static str,
        /// The name as given.
        name: String,
    },
}

/// Longest workspace or snapshot name in bytes.
pub const NAME_MAX: usize = 128;

fn check_name(kind: &'static str, name: &str) -> Result<(), NameError> {
    let Some(first) = name.bytes().next() else {
        return Err(NameError::Empty { kind });
    };
    if name.len() > NAME_MAX {
        return Err(NameError::TooLong {
            kind,
            name: name.to_owned(),
        });
    }
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'_' | b'-');
    if !first.is_ascii_alphanumeric() || !name.bytes().all(allowed) {
        return Err(NameError::BadCharacter {
            kind,
            name: name.to_owned(),
        });
    }
    Ok(())
}

macro_rules! checked_name {
    ($(#[$doc:meta])* $name:ident, $kind:literal) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Checks an alleged name.
            ///
            /// # Errors
            /// [`NameError`] names the first rule that the text breaks.
            pub fn parse(text: &str) -> Result<Self, NameError> {
                check_name($kind, text)?;
                Ok(Self(text.to_owned()))
            }

            /// The name as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

checked_name!(
    /// The name of a workspace, unique in its store.
    WorkspaceName,
    "workspace"
);
checked_name!(
    /// The name of a snapshot, unique among the snapshots of its workspace.
    SnapshotName,
    "snapshot"
);

/// Identifies a snapshot for ever: 16 lower-case hexadecimal digits, random.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(transparent)]
pub struct SnapshotId(String);

impl SnapshotId {
    /// Number of hexadecimal digits.
    pub const DIGITS: usize = 16;

    /// A new random id.
    ///
    /// # Errors
    /// When the kernel's random source fails.
    pub fn random() -> Result<Self, getrandom::Error> {
        Ok(Self(format!("{:016x}", getrandom::u64()?)))
    }

    /// Checks an alleged full id.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        (text.len() == Self::DIGITS && Self::is_prefix(text)).then(|| Self(text.to_owned()))
    }

    /// Whether the text could be the beginning of an id.
    #[must_use]
    pub fn is_prefix(text: &str) -> bool {
        !text.is_empty()
            && text.len() <= Self::DIGITS
            && text
                .bytes()
                .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
    }

    /// The id as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SnapshotId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_slashes_controls_or_leading_dots_are_refused() {
        for bad in ["a/b", "a\n", "..", ".", "-x", "é", "a b"] {
            assert!(
                matches!(
                    WorkspaceName::parse(bad),
                    Err(NameError::BadCharacter { .. })
                ),
                "{bad:?}"
            );
        }
        assert_eq!(
            WorkspaceName::parse(""),
            Err(NameError::Empty { kind: "workspace" })
        );
        assert!(matches!(
            SnapshotName::parse(&"x".repeat(129)),
            Err(NameError::TooLong { .. })
        ));
        assert!(WorkspaceName::parse("a.b_c-1").is_ok());
        assert!(WorkspaceName::parse(&"x".repeat(128)).is_ok());
    }

    #[test]
    fn random_snapshot_ids_parse_and_differ() {
        let (a, b) = (SnapshotId::random().unwrap(), SnapshotId::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(SnapshotId::parse(a.as_str()), Some(a));
        assert_eq!(SnapshotId::parse("ABCDEF0123456789"), None);
    }
}
