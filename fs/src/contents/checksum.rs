//! What the claimed blocks of an object hash to, as the catalog keeps it (docs/format.md, `checksum`).
//!
//! A block that is all zeros has no entry, so that a file of holes has none: what says nothing of a
//! claimed block says that it is zeros.
//!
//! Block by block, so that an object which loses blocks to collection is still verified as to the
//! others, and damage is told as a place in a file. Pure.

use super::{BLOCK, as_len};

/// A BLAKE3 hash (<https://github.com/BLAKE3-team/BLAKE3-specs>, section 2).
pub(crate) type Hash = [u8; 32];

/// Bytes of one entry: the number of the block, and its hash.
const ENTRY: usize = 8 + 32;

/// The hashes of an object's blocks, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Checksum {
    entries: Vec<(u64, Hash)>,
}

/// The hash of a block's bytes: at most [`BLOCK`] of them, fewer at the end of an object. Zeros at the
/// end do not count: an object that ends there reads the same.
pub(crate) fn hash_block(bytes: &[u8]) -> Hash {
    debug_assert!(bytes.len() <= as_len(BLOCK));
    let end = bytes.iter().rposition(|&byte| byte != 0);
    blake3::hash(&bytes[..end.map_or(0, |last| last + 1)]).into()
}

impl Checksum {
    /// Adds a block behind those that it has.
    pub(crate) fn push(&mut self, block: u64, hash: Hash) {
        debug_assert!(self.entries.last().is_none_or(|&(last, _)| last < block));
        self.entries.push((block, hash));
    }

    /// The hash of a block; none if it was all zeros, or was not claimed, when the object was hashed.
    pub(crate) fn of(&self, block: u64) -> Option<&Hash> {
        let at = self
            .entries
            .binary_search_by_key(&block, |&(block, _)| block);
        at.ok().map(|at| &self.entries[at].1)
    }

    /// Bytes of `checksum.blocks`.
    pub(crate) fn encoded_len(&self) -> usize {
        self.entries.len() * ENTRY
    }

    /// Whether there is no block with data.
    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Every block with its hash.
    pub(crate) fn entries(&self) -> &[(u64, Hash)] {
        &self.entries
    }

    /// `checksum.blocks`.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(self.encoded_len());
        for (block, hash) in &self.entries {
            bytes.extend(block.to_le_bytes());
            bytes.extend(hash);
        }
        bytes
    }

    /// Reads `checksum.blocks`; none if that is not what [`Checksum::encode`] makes.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (entries, rest) = bytes.as_chunks::<ENTRY>();
        if !rest.is_empty() {
            return None;
        }
        let mut checksum = Self::default();
        for entry in entries {
            let (block, hash) = entry.split_first_chunk::<8>()?;
            let block = u64::from_le_bytes(*block);
            if checksum
                .entries
                .last()
                .is_some_and(|&(last, _)| last >= block)
            {
                return None;
            }
            checksum.entries.push((block, hash.try_into().ok()?));
        }
        Some(checksum)
    }

    /// `checksum.digest`: equal for equal contents, and seldom for others.
    pub(crate) fn digest(&self) -> i64 {
        Self::digest_of(&self.encode())
    }

    /// The same, of `checksum.blocks`.
    pub(crate) fn digest_of(blocks: &[u8]) -> i64 {
        let hash = blake3::hash(blocks);
        let (first, _) = hash
            .as_bytes()
            .split_first_chunk::<8>()
            .unwrap_or((&[0; 8], &[]));
        i64::from_le_bytes(*first)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_anything_else_refused() {
        let mut checksum = Checksum::default();
        checksum.push(0, hash_block(b"a"));
        checksum.push(7, hash_block(&[]));
        let bytes = checksum.encode();
        assert_eq!(bytes.len(), 80);
        assert_eq!(Checksum::decode(&bytes), Some(checksum.clone()));
        assert_eq!(checksum.of(7), Some(&hash_block(&[])));
        assert_eq!(checksum.of(1), None);
        assert_eq!(Checksum::decode(&[]), Some(Checksum::default()));
        assert_eq!(Checksum::decode(&bytes[..79]), None);
        let backwards = [&bytes[40..], &bytes[..40]].concat();
        assert_eq!(Checksum::decode(&backwards), None);
    }

    #[test]
    fn zeros_at_the_end_of_a_block_do_not_count_and_others_do() {
        assert_eq!(hash_block(b"ab\0\0"), hash_block(b"ab"));
        assert_eq!(hash_block(&[0; 4096]), hash_block(&[]));
        assert_ne!(hash_block(b"\0ab"), hash_block(b"ab"));
    }

    #[test]
    fn the_digest_tells_contents_and_places_apart() {
        let of = |block, bytes: &[u8]| {
            let mut checksum = Checksum::default();
            checksum.push(block, hash_block(bytes));
            checksum.digest()
        };
        assert_eq!(of(0, b"a"), of(0, b"a"));
        assert_ne!(of(0, b"a"), of(1, b"a"));
        assert_ne!(of(0, b"a"), of(0, b"b"));
    }
}
