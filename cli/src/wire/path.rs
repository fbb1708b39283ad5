//! Paths on the wire. A path is bytes; JSON is Unicode.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A path: a JSON string, or, when it is not UTF-8, `{"bytes": [..]}`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WirePath {
    /// The usual form.
    Text(String),
    /// The form for the others.
    Raw {
        /// The path's bytes.
        bytes: Vec<u8>,
    },
}

impl Default for WirePath {
    fn default() -> Self {
        Self::Text(String::new())
    }
}

impl From<&Path> for WirePath {
    fn from(path: &Path) -> Self {
        match path.to_str() {
            Some(text) => Self::Text(text.to_owned()),
            None => Self::Raw {
                bytes: path.as_os_str().as_bytes().to_vec(),
            },
        }
    }
}

impl WirePath {
    /// Bytes that are a path, or like one: text for the most part.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self::from(Path::new(OsStr::from_bytes(bytes)))
    }

    /// The bytes themselves.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Text(text) => text.clone().into_bytes(),
            Self::Raw { bytes } => bytes.clone(),
        }
    }

    /// The path itself.
    #[must_use]
    pub fn to_path(&self) -> PathBuf {
        match self {
            Self::Text(text) => PathBuf::from(text),
            Self::Raw { bytes } => PathBuf::from(OsString::from_vec(bytes.clone())),
        }
    }
}

impl std::fmt::Display for WirePath {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Text(text) => f.write_str(text),
            Self::Raw { bytes } => f.write_str(&String::from_utf8_lossy(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_that_are_not_unicode_survive() {
        let odd = Path::new(OsStr::from_bytes(b"/mnt/\xff\n"));
        let text = serde_json::to_string(&WirePath::from(odd)).unwrap();
        let back: WirePath = serde_json::from_str(&text).unwrap();
        assert_eq!(back.to_path(), odd);
        let usual = serde_json::to_string(&WirePath::from(Path::new("/a b"))).unwrap();
        assert_eq!(usual, r#""/a b""#);
    }
}
