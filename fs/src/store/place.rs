//! Where a store is, remembered in its catalog, so that a copy of it is told from the original.
//!
//! A copy has the original's records of mounts. Restoring them would mount over the original's own.

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use crate::catalog::{Catalog, CatalogError};
use crate::change::{Change, Row};

/// Identifies one run of the kernel.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// The id of the running kernel's run.
pub(super) fn boot_id() -> io::Result<String> {
    Ok(std::fs::read_to_string(BOOT_ID)?.trim().to_owned())
}

/// The store's directory as it is found: path, inode, file system.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// Number of the file system, which holds for one run of the kernel only.
    device: u64,
    boot: String,
    inode: u64,
    /// The path without symbolic links, in hexadecimal.
    path: String,
}

impl Place {
    /// The place of a directory given by its path without symbolic links.
    pub(super) fn of(dir: &Path) -> io::Result<Self> {
        let meta = std::fs::metadata(dir)?;
        let boot = boot_id()?;
        Ok(Self {
            device: meta.dev(),
            boot,
            inode: meta.ino(),
            path: hexadecimal(dir.as_os_str()),
        })
    }

    /// As it stands in the catalog.
    fn text(&self) -> String {
        let Self {
            device,
            boot,
            inode,
            path,
        } = self;
        format!("{device} {boot} {inode} {path}")
    }

    fn parse(text: &str) -> Option<Self> {
        let mut words = text.split(' ');
        Some(Self {
            device: words.next()?.parse().ok()?,
            boot: words.next()?.to_owned(),
            inode: words.next()?.parse().ok()?,
            path: words.next()?.to_owned(),
        })
    }

    /// Whether a store that was at the other place then is still there, not a copy of it.
    fn is_still(&self, other: &Self) -> bool {
        let same_device = self.device == other.device || self.boot != other.boot;
        same_device && (self.inode, &self.path) == (other.inode, &other.path)
    }
}

/// Notes where the store is now. If it was somewhere else, all records of mounts are dropped.
pub(super) fn settle_in(catalog: &Catalog, place: &Place) -> Result<(), CatalogError> {
    let before = catalog.place()?;
    let text = place.text();
    if before.as_ref() == Some(&text) {
        return Ok(());
    }
    let moved = before
        .is_some_and(|before| !Place::parse(&before).is_some_and(|before| place.is_still(&before)));
    let mut change = Change::new();
    if moved {
        tracing::warn!("the store was moved or copied: mounts made before are not restored");
        change.push(Row::DropMounts);
    }
    change.push(Row::SetPlace { place: text });
    match catalog.apply(&change) {
        // A full disk, for example, which must not keep anybody from opening the store.
        Err(error) if !moved => {
            tracing::warn!(%error, "cannot note where the store is");
            Ok(())
        }
        other => other,
    }
}

fn hexadecimal(text: &OsStr) -> String {
    let mut out = String::with_capacity(2 * text.len());
    for byte in text.as_bytes() {
        write!(out, "{byte:02x}").expect("writing to a string");
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_survives_the_catalog_and_a_reboot_but_no_copy() {
        let scratch = tempfile::tempdir().unwrap();
        let place = Place::of(scratch.path()).unwrap();
        assert_eq!(Place::parse(&place.text()).as_ref(), Some(&place));
        assert_eq!(Place::parse("1 2"), None);
        let changed = |change: &dyn Fn(&mut Place)| {
            let mut other = Place::of(scratch.path()).unwrap();
            change(&mut other);
            place.is_still(&other)
        };
        assert!(changed(&|_| ()));
        assert!(!changed(&|other| other.device += 1));
        assert!(!changed(&|other| other.inode += 1));
        assert!(!changed(&|other| other.path.push_str("00")));
        // Numbers of devices are given out anew when the machine starts.
        assert!(changed(&|other| {
            other.device += 1;
            other.boot.push('x');
        }));
    }
}
