//! Listings: as many entries as fit (`struct fuse_dirent`, `struct fuse_direntplus`).

use std::time::Duration;

use super::reply::{Put, put_entry};
use crate::attr::Attr;
use crate::dispatch::DirEntry;

/// Length of `struct fuse_dirent` before the name, in bytes.
const DIRENT: usize = 24;
/// Length of `struct fuse_entry_out` in bytes.
const ENTRY: usize = 128;
/// Records begin at multiples of so many bytes.
const ALIGN: usize = 8;

/// What a READDIRPLUS tells of an inode besides its name; the receiver holds a reference to it then.
#[derive(Clone, Copy, Debug)]
pub struct DirentPlus<'a> {
    /// Its attributes.
    pub attr: &'a Attr,
    /// Its generation.
    pub generation: u32,
    /// How long that may be believed.
    pub ttl: Duration,
}

/// A listing that is being made.
#[derive(Debug)]
pub struct Listing<'a> {
    body: &'a mut Vec<u8>,
    size: usize,
    plus: bool,
}

impl<'a> Listing<'a> {
    /// Begins one of at most `size` bytes.
    pub fn new(body: &'a mut Vec<u8>, size: u32, plus: bool) -> Self {
        body.clear();
        Self {
            body,
            size: usize::try_from(size).unwrap_or(usize::MAX),
            plus,
        }
    }

    /// Adds an entry; false if it does not fit. Without `more`, a READDIRPLUS says nothing of the inode
    /// (node 0), and the receiver holds no reference.
    pub fn add(&mut self, entry: &DirEntry<'_>, more: Option<DirentPlus<'_>>) -> bool {
        let ahead = if self.plus { ENTRY } else { 0 };
        let len = (ahead + DIRENT + entry.name.len()).next_multiple_of(ALIGN);
        let Some(end) = self
            .body
            .len()
            .checked_add(len)
            .filter(|&end| end <= self.size)
        else {
            return false;
        };
        match more {
            Some(more) if self.plus => {
                put_entry(self.body, entry.ino, more.generation, more.attr, more.ttl);
            }
            _ => self.body.zeros(ahead),
        }
        self.body.u64(entry.ino.0);
        self.body.u64(entry.cookie);
        // A name is at most 255 bytes long.
        self.body.u32(u32::try_from(entry.name.len()).unwrap_or(0));
        self.body.u32(entry.kind.mode_bits() >> 12);
        self.body.put(entry.name);
        self.body.resize(end, 0);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attr::FileKind;
    use crate::id::Ino;

    fn entry(name: &[u8]) -> DirEntry<'_> {
        DirEntry {
            ino: Ino(20),
            kind: FileKind::Directory,
            name,
            cookie: 33,
            attr: None,
        }
    }

    #[test]
    fn entries_are_aligned_and_end_before_the_size_asked_for() {
        let mut body = vec![1, 2, 3];
        let mut listing = Listing::new(&mut body, 64, false);
        assert!(listing.add(&entry(b"a"), None));
        assert!(listing.add(&entry(b"12345678"), None));
        assert!(!listing.add(&entry(b""), None), "no byte is left");
        assert_eq!(body.len(), 64);
        assert_eq!(body[..8], 20_u64.to_le_bytes());
        assert_eq!(body[8..16], 33_u64.to_le_bytes());
        assert_eq!(body[16..20], 1_u32.to_le_bytes());
        assert_eq!(body[20..24], 4_u32.to_le_bytes());
        assert_eq!(body[24..32], *b"a\0\0\0\0\0\0\0");
        assert_eq!(body[56..64], *b"12345678");
    }

    #[test]
    fn an_entry_of_which_nothing_is_told_has_node_zero() {
        let mut body = Vec::new();
        let mut listing = Listing::new(&mut body, 4096, true);
        assert!(listing.add(&entry(b".."), None));
        assert_eq!(body.len(), 160);
        assert_eq!(body[..128], [0; 128]);
        assert_eq!(body[128..136], 20_u64.to_le_bytes());
        let mut listing = Listing::new(&mut body, 159, true);
        assert!(!listing.add(&entry(b".."), None));
        assert!(body.is_empty());
    }
}
