//! gzip (RFC 1952), piece by piece: a piece in, what is ready out.

use std::io::{self, Write};

use bytes::Bytes;
use flate2::Compression;
use flate2::write::{GzEncoder, MultiGzDecoder};

/// How much is decompressed in one go. A byte becomes at most about a thousand, so what is kept stays below
/// a few MiB whatever arrives.
const PIECE_BYTES: usize = 4096;

/// Compresses.
pub(super) struct Compressor(GzEncoder<Vec<u8>>);

impl Compressor {
    /// For speed rather than size: it is the way to a sandbox that should not be slowed down.
    pub(super) fn new() -> Self {
        Self(GzEncoder::new(Vec::new(), Compression::fast()))
    }

    /// Takes a piece; gives what is ready, which may be nothing.
    pub(super) fn push(&mut self, piece: &[u8]) -> io::Result<Bytes> {
        self.0.write_all(piece)?;
        Ok(std::mem::take(self.0.get_mut()).into())
    }

    /// The rest.
    pub(super) fn finish(self) -> io::Result<Bytes> {
        Ok(self.0.finish()?.into())
    }
}

/// Decompresses.
pub(super) struct Decompressor {
    decoder: MultiGzDecoder<Vec<u8>>,
    anything: bool,
}

impl Decompressor {
    /// From the beginning.
    pub(super) fn new() -> Self {
        Self {
            decoder: MultiGzDecoder::new(Vec::new()),
            anything: false,
        }
    }

    /// Takes the front of a piece off it; gives what that becomes.
    pub(super) fn push(&mut self, piece: &mut Bytes) -> io::Result<Bytes> {
        let some = piece.split_to(piece.len().min(PIECE_BYTES));
        self.anything |= !some.is_empty();
        self.decoder.write_all(&some)?;
        Ok(std::mem::take(self.decoder.get_mut()).into())
    }

    /// The rest; an error if the end is missing.
    pub(super) fn finish(mut self) -> io::Result<Bytes> {
        if !self.anything {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.decoder.try_finish()?;
        Ok(std::mem::take(self.decoder.get_mut()).into())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compressed(data: &[u8]) -> Vec<u8> {
        let mut compressor = Compressor::new();
        let mut bytes = Vec::new();
        for piece in data.chunks(1000) {
            bytes.extend(compressor.push(piece).unwrap());
        }
        bytes.extend(compressor.finish().unwrap());
        bytes
    }

    fn decompressed(bytes: &[u8]) -> io::Result<Vec<u8>> {
        let mut decompressor = Decompressor::new();
        let mut data = Vec::new();
        let mut piece = Bytes::copy_from_slice(bytes);
        while !piece.is_empty() {
            data.extend(decompressor.push(&mut piece)?);
        }
        data.extend(decompressor.finish()?);
        Ok(data)
    }

    #[test]
    fn several_members_are_one_file() {
        let both = [compressed(b"one"), compressed(b"two")].concat();
        assert_eq!(decompressed(&both).unwrap(), b"onetwo");
    }

    #[test]
    fn what_breaks_off_or_is_no_gzip_is_an_error() {
        let whole = compressed(&[7; 5000]);
        assert!(decompressed(&whole[..whole.len() - 1]).is_err());
        assert!(decompressed(b"plain text").is_err());
        assert!(decompressed(b"").is_err());
    }

    #[test]
    fn little_never_becomes_more_than_there_is_room_for() {
        let bomb = compressed(&vec![0; 64 << 20]);
        let mut decompressor = Decompressor::new();
        let mut piece = Bytes::from(bomb);
        while !piece.is_empty() {
            assert!(decompressor.push(&mut piece).unwrap().len() <= PIECE_BYTES * 1040);
        }
    }

    proptest! {
        #[test]
        fn data_survives(data in prop::collection::vec(any::<u8>(), 0..10_000)) {
            prop_assert_eq!(decompressed(&compressed(&data)).unwrap(), data);
        }
    }
}
