//! What is recorded about an installed guest kernel: `kernel.json`.

use serde::{Deserialize, Serialize};

/// The version of this record.
pub const FORMAT: u32 = 1;

/// Where a kernel and its modules are from, and what they are.
///
/// Fields are only ever added, each with a default.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Facts {
    /// [`FORMAT`].
    pub format: u32,
    /// The kernel's version as `uname -r` shows it, if its file says so.
    pub version: Option<String>,
    /// The package with its version, or the paths that the user gave.
    pub origin: String,
    /// When it was installed, in seconds since 1970.
    pub installed_at: u64,
    /// BLAKE3 of the kernel's file, in hexadecimal digits.
    pub kernel_blake3: String,
    /// Bytes of the kernel's file.
    pub kernel_bytes: u64,
    /// Names of the modules in the order in which they are loaded.
    pub modules: Vec<String>,
    /// BLAKE3 of the initramfs.
    pub initramfs_blake3: String,
    /// Bytes of the initramfs.
    pub initramfs_bytes: u64,
    /// BLAKE3 of the agent in the initramfs.
    pub agent_blake3: String,
}

/// BLAKE3 of some bytes, as it is recorded.
#[must_use]
pub fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_a_later_version_are_ignored() {
        let facts = Facts {
            format: FORMAT,
            version: Some("6.1.0".to_owned()),
            origin: "here".to_owned(),
            installed_at: 7,
            kernel_blake3: hash(b"kernel"),
            kernel_bytes: 6,
            modules: vec!["a.ko".to_owned()],
            initramfs_blake3: hash(b""),
            initramfs_bytes: 0,
            agent_blake3: hash(b"agent"),
        };
        let mut json = serde_json::to_value(&facts).unwrap();
        json["later"] = serde_json::json!([1]);
        assert_eq!(serde_json::from_value::<Facts>(json).unwrap(), facts);
        assert_eq!(facts.kernel_blake3.len(), 64);
    }
}
