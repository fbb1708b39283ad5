//! Envelopes: how the Connect protocol puts messages on a stream.
//!
//! ```text
//! | flags: 1 byte | length: 4 bytes, big-endian | data: as many bytes |
//! ```
//! Flag 1 means compressed, flag 2 that this is the last envelope of the answers: it says whether the stream
//! ended well. Source: <https://connectrpc.com/docs/protocol/>, "Streaming RPCs".
//!
//! Everything here is pure. What arrives is hostile: a length is believed only up to the bound that
//! the decoder was given, before anything is kept for it.

use bytes::{Buf, BufMut, Bytes, BytesMut};

/// Bytes before the data.
const HEADER_BYTES: usize = 5;
/// The data is compressed.
const COMPRESSED: u8 = 1;
/// This is the last one of the answers.
pub(in super::super) const END_STREAM: u8 = 2;

/// Why bytes are no envelope that is served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in super::super) enum EnvelopeError {
    /// It announces more data than may be.
    #[error("a message of {len} bytes is longer than {max}")]
    TooLong {
        /// The length it announces.
        len: usize,
        /// The most there may be.
        max: usize,
    },
    /// It is compressed, which was not agreed on.
    #[error("a message is compressed")]
    Compressed,
    /// It has flags that clients do not send.
    #[error("a message has unknown flags ({flags:#04x})")]
    Flags {
        /// The flags.
        flags: u8,
    },
    /// The stream ended in the middle of it.
    #[error("the stream broke off within a message")]
    Truncated,
}

/// Takes bytes as they come and gives the data of whole envelopes.
#[derive(Debug)]
pub(in super::super) struct Decoder {
    buffer: BytesMut,
    bytes_max: usize,
}

impl Decoder {
    /// A decoder of envelopes with at most so much data.
    pub(in super::super) fn new(bytes_max: usize) -> Self {
        Self {
            buffer: BytesMut::new(),
            bytes_max,
        }
    }

    /// Takes the next bytes of the stream. Between two calls of this, [`Decoder::next`] has to be called
    /// until it gives no more: so no more than one envelope and these bytes are ever kept.
    pub(in super::super) fn feed(&mut self, bytes: &[u8]) {
        self.buffer.put_slice(bytes);
    }

    /// The data of the next envelope, if all of it is there.
    pub(in super::super) fn next(&mut self) -> Result<Option<Bytes>, EnvelopeError> {
        let Some((&[flags, a, b, c, d], _)) = self.buffer.split_first_chunk::<HEADER_BYTES>()
        else {
            return Ok(None);
        };
        if flags & COMPRESSED != 0 {
            return Err(EnvelopeError::Compressed);
        }
        if flags != 0 {
            return Err(EnvelopeError::Flags { flags });
        }
        let max = self.bytes_max;
        let len = usize::try_from(u32::from_be_bytes([a, b, c, d])).unwrap_or(usize::MAX);
        if len > max {
            return Err(EnvelopeError::TooLong { len, max });
        }
        if self.buffer.len() - HEADER_BYTES < len {
            return Ok(None);
        }
        self.buffer.advance(HEADER_BYTES);
        Ok(Some(self.buffer.split_to(len).freeze()))
    }

    /// Whether the stream may end here.
    pub(in super::super) fn finish(&self) -> Result<(), EnvelopeError> {
        match self.buffer.is_empty() {
            true => Ok(()),
            false => Err(EnvelopeError::Truncated),
        }
    }
}

/// An envelope around data; `None` of more than fits into one.
pub(in super::super) fn encode(flags: u8, data: &[u8]) -> Option<Bytes> {
    let len = u32::try_from(data.len()).ok()?;
    let mut bytes = BytesMut::with_capacity(HEADER_BYTES + data.len());
    bytes.put_u8(flags);
    bytes.put_u32(len);
    bytes.put_slice(data);
    Some(bytes.freeze())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const MAX: usize = 64;

    fn decode(chunks: &[&[u8]]) -> Result<Vec<Bytes>, EnvelopeError> {
        let mut decoder = Decoder::new(MAX);
        let mut found = Vec::new();
        for chunk in chunks {
            decoder.feed(chunk);
            while let Some(data) = decoder.next()? {
                found.push(data);
            }
        }
        decoder.finish().map(|()| found)
    }

    #[test]
    fn the_bytes_are_those_of_the_protocol() {
        assert_eq!(encode(0, b"{}").unwrap(), &b"\0\0\0\0\x02{}"[..]);
        assert_eq!(encode(END_STREAM, b"{}").unwrap(), &b"\x02\0\0\0\x02{}"[..]);
    }

    #[test]
    fn what_is_not_served_is_refused() {
        let refused = |bytes: &[u8]| decode(&[bytes]).unwrap_err();
        assert_eq!(refused(b"\x01\0\0\0\0"), EnvelopeError::Compressed);
        assert_eq!(refused(b"\x02\0\0\0\0"), EnvelopeError::Flags { flags: 2 });
        assert_eq!(
            refused(b"\x80\0\0\0\0"),
            EnvelopeError::Flags { flags: 0x80 }
        );
        assert_eq!(refused(b"\0\0\0\0"), EnvelopeError::Truncated);
        assert_eq!(refused(b"\0\0\0\0\x02{"), EnvelopeError::Truncated);
        let long = EnvelopeError::TooLong {
            len: 0xffff_ffff,
            max: MAX,
        };
        assert_eq!(refused(b"\0\xff\xff\xff\xff"), long);
        let just = EnvelopeError::TooLong { len: 65, max: MAX };
        assert_eq!(refused(b"\0\0\0\0\x41"), just);
    }

    proptest! {
        #[test]
        fn messages_arrive_however_the_stream_is_cut(
            messages in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..=MAX), 0..5),
            cuts in prop::collection::vec(1usize..20, 0..60),
        ) {
            let bytes: Vec<u8> = messages.iter().flat_map(|m| encode(0, m).unwrap()).collect();
            let mut chunks = Vec::new();
            let mut rest = &bytes[..];
            for cut in cuts {
                let (chunk, tail) = rest.split_at(cut.min(rest.len()));
                chunks.push(chunk);
                rest = tail;
            }
            chunks.push(rest);
            prop_assert_eq!(decode(&chunks).unwrap(), messages);
        }

        #[test]
        fn no_bytes_are_too_strange(chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..80), 0..6)) {
            let mut decoder = Decoder::new(MAX);
            let mut fed = 0;
            'stream: for chunk in &chunks {
                fed += chunk.len();
                decoder.feed(chunk);
                loop {
                    match decoder.next() {
                        Ok(Some(data)) => prop_assert!(data.len() <= MAX),
                        Ok(None) => break,
                        Err(_) => break 'stream,
                    }
                }
                prop_assert!(decoder.buffer.len() <= fed);
                prop_assert!(decoder.buffer.len() < HEADER_BYTES + MAX);
            }
        }
    }
}
