//! The sums of a memory file: what its chunks must hash to, so that damage is found.
//!
//! A file of sums has a record for each chunk of 1 MiB that has data, in order: its number (64 bits, little
//! endian) and the BLAKE3 hash of its bytes. A chunk without a record is all zeros.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use super::files;

/// Bytes of a chunk.
pub(super) const CHUNK: u64 = 1 << 20;
const RECORD: usize = 40;

/// What is not as it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Damage {
    /// A chunk's bytes.
    Chunk {
        /// The file.
        file: String,
        /// Which chunk, of 1 MiB each.
        chunk: u64,
    },
    /// A file is too short.
    Truncated {
        /// The file.
        file: String,
    },
    /// The sums themselves.
    Sums {
        /// The file whose they are.
        file: String,
    },
}

impl std::fmt::Display for Damage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Chunk { file, chunk } => write!(f, "MiB {chunk} of {file} is damaged"),
            Self::Truncated { file } => write!(f, "{file} is too short"),
            Self::Sums { file } => write!(f, "the sums of {file} are damaged"),
        }
    }
}

/// Why an image was not verified.
#[derive(Debug, thiserror::Error)]
pub enum VerifyError {
    /// It is damaged.
    #[error("the image is damaged: {0}")]
    Damaged(Damage),
    /// It is not sealed: there are no sums.
    #[error("the image is not sealed yet")]
    NotSealed,
    /// It cannot be read.
    #[error("the image's file {file} cannot be read")]
    Read {
        /// Which.
        file: String,
        /// Why.
        source: io::Error,
    },
}

/// The sums of `file`, of `len` bytes.
pub(super) fn make(file: &File, len: u64) -> io::Result<Vec<u8>> {
    let mut sums = Vec::new();
    each_chunk(file, len, |chunk, hash| {
        sums.extend(chunk.to_le_bytes());
        sums.extend(hash.as_bytes());
    })?;
    Ok(sums)
}

/// Compares a file with its sums.
pub(super) fn check(name: &str, file: &File, len: u64, sums: &[u8]) -> Result<(), VerifyError> {
    let damaged = |chunk| {
        VerifyError::Damaged(Damage::Chunk {
            file: name.to_owned(),
            chunk,
        })
    };
    let (records, rest) = sums.as_chunks::<RECORD>();
    if !rest.is_empty() {
        return Err(VerifyError::Damaged(Damage::Sums {
            file: name.to_owned(),
        }));
    }
    let mut expected = records.iter().map(|record| {
        let (number, hash) = record.split_at(8);
        let number = number
            .iter()
            .rev()
            .fold(0, |all, byte| all << 8 | u64::from(*byte));
        (number, hash)
    });
    let mut fault = None;
    let result = each_chunk(file, len, |chunk, hash| {
        // A chunk whose data are gone is found when the next has no record.
        if fault.is_none() && expected.next() != Some((chunk, &hash.as_bytes()[..])) {
            fault = Some(chunk);
        }
    });
    result.map_err(|source| VerifyError::Read {
        file: name.to_owned(),
        source,
    })?;
    match (fault, expected.next()) {
        (Some(chunk), _) | (None, Some((chunk, _))) => Err(damaged(chunk)),
        (None, None) => Ok(()),
    }
}

/// Hashes each chunk that has anything but zeros.
fn each_chunk(file: &File, len: u64, mut take: impl FnMut(u64, blake3::Hash)) -> io::Result<()> {
    let mut buffer = vec![0; usize::try_from(CHUNK).unwrap_or(0)];
    let mut next = 0;
    for (start, size) in files::data(file, len)? {
        let last = (start + size).div_ceil(CHUNK);
        for chunk in next.max(start / CHUNK)..last {
            let want = CHUNK.min(len - chunk * CHUNK);
            let bytes = &mut buffer[..usize::try_from(want).unwrap_or(0)];
            file.read_exact_at(bytes, chunk * CHUNK)?;
            // Where a file system has no holes, zeros are data.
            if !files::is_zero(bytes) {
                take(chunk, blake3::hash(bytes));
            }
            next = chunk + 1;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEN: u64 = 5 * CHUNK + 4096;

    fn file() -> File {
        let file = tempfile::tempfile().unwrap();
        file.set_len(LEN).unwrap();
        for at in [0, 3 * CHUNK + 17, 5 * CHUNK + 4000] {
            file.write_all_at(b"data", at).unwrap();
        }
        file
    }

    #[test]
    fn every_flipped_bit_is_found_and_named() {
        let file = file();
        let sums = make(&file, LEN).unwrap();
        assert_eq!(sums.len(), 3 * RECORD);
        check("memory", &file, LEN, &sums).unwrap();
        for (at, chunk) in [(0, 0), (CHUNK + 5, 1), (4 * CHUNK - 1, 3), (LEN - 1, 5)] {
            let mut byte = [0];
            file.read_exact_at(&mut byte, at).unwrap();
            file.write_all_at(&[byte[0] ^ 16], at).unwrap();
            let error = check("memory", &file, LEN, &sums).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("the image is damaged: MiB {chunk} of memory is damaged")
            );
            file.write_all_at(&byte, at).unwrap();
        }
        check("memory", &file, LEN, &sums).unwrap();
    }

    #[test]
    fn data_that_are_gone_are_found() {
        let file = file();
        let sums = make(&file, LEN).unwrap();
        file.write_all_at(&[0; 4096], 5 * CHUNK).unwrap();
        assert!(matches!(
            check("memory", &file, LEN, &sums),
            Err(VerifyError::Damaged(Damage::Chunk { chunk: 5, .. }))
        ));
        assert!(matches!(
            check("memory", &file, LEN, &sums[1..]),
            Err(VerifyError::Damaged(Damage::Sums { .. }))
        ));
    }
}
