//! The first bytes of an image's file, readable without decoding anything else (docs/format.md,
//! section "Images"). Pure.

/// What an image's file begins with.
pub const MAGIC: [u8; 8] = *b"floe-img";
/// The version that is written.
pub const VERSION: u32 = 1;
/// Bytes of the header.
pub const HEADER_LEN: usize = 72;
/// Most bytes of each section: what is in memory at once when an image is opened.
pub const SECTION_MAX: u64 = 256 << 20;

/// The header: where the sections end, and what they must hash to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of the manifest, which comes first.
    pub manifest_len: u64,
    /// Bytes of the machine's state, which comes next.
    pub state_len: u64,
    /// Bytes of what whoever made the image added, which comes last.
    pub extra_len: u64,
    /// BLAKE3 of the three sections.
    pub hash: [u8; 32],
}

/// Why the first bytes are no header of an image.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// It is something else, or too short.
    #[error("it does not begin as an image does")]
    NoImage,
    /// It was made by a newer program.
    #[error("it has version {found} of the format; this program knows {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// A length is impossible.
    #[error("its {section} would have {len} bytes")]
    Length {
        /// Of which section.
        section: &'static str,
        /// The length that it states.
        len: u64,
    },
}

impl Header {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
        bytes[12..16].copy_from_slice(&72u32.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.manifest_len.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.state_len.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.extra_len.to_le_bytes());
        bytes[40..].copy_from_slice(&self.hash);
        bytes
    }

    /// Reads the first bytes of a file.
    ///
    /// # Errors
    /// [`HeaderError`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HeaderError> {
        let bytes: &[u8; HEADER_LEN] = bytes
            .first_chunk()
            .filter(|bytes| bytes[..8] == MAGIC)
            .ok_or(HeaderError::NoImage)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        if word(8) != VERSION {
            return Err(HeaderError::Version { found: word(8) });
        }
        if word(12) != 72 {
            return Err(HeaderError::Length {
                section: "header",
                len: u64::from(word(12)),
            });
        }
        let section = |section, at| match long(at) {
            len @ 0..=SECTION_MAX => Ok(len),
            len => Err(HeaderError::Length { section, len }),
        };
        let mut hash = [0; 32];
        hash.copy_from_slice(&bytes[40..]);
        Ok(Self {
            manifest_len: section("manifest", 16)?,
            state_len: section("state", 24)?,
            extra_len: section("extra part", 32)?,
            hash,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: Header = Header {
        manifest_len: 700,
        state_len: 40_000,
        extra_len: 0,
        hash: [7; 32],
    };

    #[test]
    fn a_header_reads_as_it_was_written() {
        let bytes = HEADER.encode();
        assert_eq!(Header::decode(&bytes), Ok(HEADER));
        assert_eq!(&bytes[..12], b"floe-img\x01\0\0\0");
    }

    #[test]
    fn what_is_no_header_is_refused_with_the_reason() {
        let bytes = HEADER.encode();
        assert_eq!(Header::decode(&bytes[..71]), Err(HeaderError::NoImage));
        let with = |at: usize, byte: u8| {
            let mut bytes = bytes;
            bytes[at] = byte;
            Header::decode(&bytes)
        };
        assert_eq!(with(0, b'F'), Err(HeaderError::NoImage));
        assert_eq!(with(8, 2), Err(HeaderError::Version { found: 2 }));
        assert!(matches!(
            with(12, 0),
            Err(HeaderError::Length {
                section: "header",
                ..
            })
        ));
        for (at, section) in [(23, "manifest"), (31, "state"), (39, "extra part")] {
            let Err(HeaderError::Length {
                section: found,
                len,
            }) = with(at, 1)
            else {
                panic!("{section} is taken");
            };
            assert_eq!(found, section);
            assert!(len > SECTION_MAX);
        }
    }
}
