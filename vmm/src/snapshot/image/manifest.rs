//! What an image says of itself: JSON, for people and for programs that only list.

use serde::{Deserialize, Serialize};

use super::layout::Extent;
use crate::snapshot::compat::Compat;

/// The manifest of an image.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Its id: the name of its directory.
    pub id: String,
    /// The image that it was made over, which need not be there any more.
    pub parent: Option<String>,
    /// When the machine was held, in nanoseconds since 1970-01-01 UTC.
    pub created_at: i64,
    /// RAM in MiB.
    pub ram_mib: u32,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// Pages of 4096 bytes that were written since the parent.
    pub written_pages: u64,
    /// The host that it was made at.
    pub host: Compat,
    /// Its memory files, its own first.
    pub files: Vec<FileEntry>,
    /// Which file holds which pages; pages in none are zeros.
    pub extents: Vec<Extent>,
}

/// A memory file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Its name in the image's directory.
    pub name: String,
    /// The image that it was made for.
    pub made_for: String,
    /// BLAKE3 of the file of its sums, in hexadecimal. None before the image is sealed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sums: Option<String>,
}
