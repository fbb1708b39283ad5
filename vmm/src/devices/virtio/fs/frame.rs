//! The frames between a virtio-fs device and its server, the file-system daemon.
//!
//! A stream socket carries frames in both directions. All integers are little-endian:
//!
//! ```text
//! offset  bytes  field
//!      0      4  length of the frame in bytes, this header included
//!      4      2  kind: 1 request, 2 reply, 3 reset
//!      6      2  queue the request came from: 0 high priority, 1.. requests; else 0
//!      8      8  tag
//!     16      4  request: most bytes of the reply's body; else 0
//!     20      4  zero
//!     24      …  body: one FUSE message
//! ```
//!
//! - A request's body is what the driver put into the queue, from its `fuse_in_header` on. A reply
//!   has the tag of its request and a body from its `fuse_out_header` on, no longer than the request
//!   allows. Replies come in any order. A request that allows 0 bytes (FORGET) gets none.
//! - Tags only grow and are never used twice. A reset means that the driver has forgotten every
//!   request so far and every node and handle; a reply to one of them may still come and is ignored.
//! - Contents are the guest's: a server checks every field. Lengths of frames are the monitor's,
//!   which a server checks as well, since the guest may have taken the monitor over.

/// Bytes of a frame's header.
pub const HEADER_LEN: usize = 24;
/// Most bytes of a request's body: 1 MiB of data and the largest FUSE header with names.
pub const REQUEST_MAX: u32 = (1 << 20) + (64 << 10);
/// Most bytes of a reply's body, likewise.
pub const REPLY_MAX: u32 = REQUEST_MAX;
/// Bytes of a `fuse_in_header` (`include/uapi/linux/fuse.h`).
pub const IN_HEADER_LEN: u32 = 40;
/// Bytes of a `fuse_out_header`.
pub const OUT_HEADER_LEN: usize = 16;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// From the device: a FUSE request.
    Request,
    /// From the server: the reply to one.
    Reply,
    /// From the device: the driver started anew.
    Reset,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What the frame is.
    pub kind: Kind,
    /// Bytes of the body.
    pub body_len: u32,
    /// Queue of a request.
    pub queue: u16,
    /// Which request.
    pub tag: u64,
    /// Most bytes of the reply's body.
    pub reply_max: u32,
}

/// Why bytes are no frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FrameError {
    /// The length is smaller than a header or larger than any frame.
    #[error("a frame of {len} bytes")]
    Length {
        /// The length that was given.
        len: u32,
    },
    /// No such kind.
    #[error("a frame of the unknown kind {kind}")]
    Kind {
        /// The kind that was given.
        kind: u16,
    },
    /// A field that must be zero is not.
    #[error("a frame with something in a reserved field")]
    Reserved,
}

const HEADER_LEN_U32: u32 = 24;

impl Header {
    /// The header as bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let kind: u16 = match self.kind {
            Kind::Request => 1,
            Kind::Reply => 2,
            Kind::Reset => 3,
        };
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&(self.body_len + HEADER_LEN_U32).to_le_bytes());
        bytes[4..6].copy_from_slice(&kind.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.queue.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.tag.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.reply_max.to_le_bytes());
        bytes
    }

    /// Reads a header.
    ///
    /// # Errors
    /// [`FrameError`]: after one the stream cannot be read any further.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Self, FrameError> {
        let u32_at = |at: usize| {
            u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
        };
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let len = u32_at(0);
        let body_len = len.checked_sub(HEADER_LEN_U32);
        let body_len = body_len
            .filter(|len| *len <= REQUEST_MAX)
            .ok_or(FrameError::Length { len })?;
        let kind = match u16_at(4) {
            1 => Kind::Request,
            2 => Kind::Reply,
            3 => Kind::Reset,
            kind => return Err(FrameError::Kind { kind }),
        };
        if u32_at(20) != 0 {
            return Err(FrameError::Reserved);
        }
        Ok(Self {
            kind,
            body_len,
            queue: u16_at(6),
            tag: u64::from(u32_at(8)) | u64::from(u32_at(12)) << 32,
            reply_max: u32_at(16),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_survive_the_wire() {
        let header = Header {
            kind: Kind::Request,
            body_len: 77,
            queue: 1,
            tag: 0x0123_4567_89ab_cdef,
            reply_max: 4096,
        };
        assert_eq!(Header::decode(&header.encode()), Ok(header));
        assert_eq!(header.encode()[..8], [101, 0, 0, 0, 1, 0, 1, 0]);
    }

    #[test]
    fn bytes_that_are_no_header_are_refused() {
        let good = Header {
            kind: Kind::Reply,
            body_len: 16,
            queue: 0,
            tag: 1,
            reply_max: 0,
        }
        .encode();
        let with = |at: usize, value: u8| {
            let mut bytes = good;
            bytes[at] = value;
            Header::decode(&bytes)
        };
        assert_eq!(with(0, 23), Err(FrameError::Length { len: 23 }));
        assert!(matches!(with(3, 1), Err(FrameError::Length { .. })));
        assert_eq!(with(4, 4), Err(FrameError::Kind { kind: 4 }));
        assert_eq!(with(4, 0), Err(FrameError::Kind { kind: 0 }));
        assert_eq!(with(20, 1), Err(FrameError::Reserved));
    }
}
