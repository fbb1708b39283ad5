//! Pages that a machine touched soon after it had started from an image: those that the next one from it will want
//! first, and is spared to wait for.
//!
//! A hint and nothing more: whoever says it need not be believed, and a wrong one costs some reading.

use vm_memory::{Bytes, GuestMemoryError};

use super::pages::{Pages, Run};
use super::ram::Ram;

/// What its file begins with.
const MAGIC: [u8; 8] = *b"floe-wrk";
/// The version that is written.
const VERSION: u32 = 1;
const HEADER_LEN: usize = 12;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkingSet(Pages);

/// Bytes are no working set of such a machine.
#[derive(Debug, thiserror::Error)]
pub enum WorkingSetError {
    /// It begins as none, or as one of another version.
    #[error("it does not begin as a working set does")]
    Header,
    /// Its pages cannot be read.
    #[error("its pages cannot be read")]
    Encoding(#[from] postcard::Error),
    /// It is of a machine with another number of pages.
    #[error("it is of a machine with {found} pages of memory, not {wanted}")]
    OtherSize {
        /// What it says.
        found: usize,
        /// What the machine has.
        wanted: usize,
    },
}

impl WorkingSet {
    /// The name of its file in an image's directory.
    pub const FILE: &str = "working-set";
    /// Most bytes of that file.
    pub const BYTES_MAX: u64 = 16 << 20;

    pub(super) fn new(pages: Pages) -> Self {
        Self(pages)
    }

    /// Its pages.
    #[must_use]
    pub fn pages(&self) -> &Pages {
        &self.0
    }

    /// As bytes: what docs/format.md, section "Images", says of its file.
    ///
    /// # Errors
    /// [`WorkingSetError::Encoding`], which does not happen.
    pub fn encode(&self) -> Result<Vec<u8>, WorkingSetError> {
        let pages = postcard::to_stdvec(&self.0)?;
        Ok([&MAGIC[..], &VERSION.to_le_bytes(), &pages].concat())
    }

    /// Reads one of a machine with `wanted` pages of memory.
    ///
    /// # Errors
    /// [`WorkingSetError`].
    pub fn decode(bytes: &[u8], wanted: usize) -> Result<Self, WorkingSetError> {
        let (header, rest) = bytes
            .split_at_checked(HEADER_LEN)
            .ok_or(WorkingSetError::Header)?;
        if header[..8] != MAGIC || header[8..] != VERSION.to_le_bytes() {
            return Err(WorkingSetError::Header);
        }
        let pages: Pages = postcard::from_bytes(rest)?;
        if !pages.is_sound() || pages.total() != wanted {
            let found = pages.total();
            return Err(WorkingSetError::OtherSize { found, wanted });
        }
        Ok(Self(pages))
    }

    /// Reads from each page, so that it is there when the guest wants it, for as long as `go_on`.
    pub(super) fn populate(
        &self,
        ram: &Ram,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(), GuestMemoryError> {
        let each = self.0.runs().flat_map(|run| run.start..run.end());
        for page in each.take_while(|_| go_on()) {
            let run = Run {
                start: page,
                len: 1,
            };
            for (_, address) in ram.parts(run) {
                ram.memory().read_obj::<u8>(address)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set() -> WorkingSet {
        let mut pages = Pages::none(5000);
        for page in [0, 63, 64, 65, 4999] {
            pages.insert(page);
        }
        WorkingSet(pages)
    }

    #[test]
    fn it_reads_as_it_was_written_and_nothing_else_is_one() {
        let bytes = set().encode().unwrap();
        assert_eq!(WorkingSet::decode(&bytes, 5000).unwrap(), set());
        assert!(matches!(
            WorkingSet::decode(&bytes, 5001),
            Err(WorkingSetError::OtherSize {
                found: 5000,
                wanted: 5001
            })
        ));
        for at in 0..12 {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            let refused = WorkingSet::decode(&bad, 5000);
            assert!(matches!(refused, Err(WorkingSetError::Header)), "byte {at}");
        }
        for len in 0..bytes.len() {
            assert!(
                WorkingSet::decode(&bytes[..len], 5000).is_err(),
                "{len} bytes"
            );
        }
        // Whatever a monitor says: it ends, and stays within memory.
        for at in 12..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 0xff;
            if let Ok(set) = WorkingSet::decode(&bad, 5000) {
                assert!(set.pages().runs().all(|run| run.end() <= 5000), "byte {at}");
            }
        }
    }
}
