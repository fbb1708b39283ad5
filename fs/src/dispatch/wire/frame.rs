//! The header of the frames that messages come and go in (docs/vmm.md, "Frames of a file system"). Pure.
//!
//! Frames are the monitor's, which a guest may have taken over: every field is checked before anything is done
//! for it. After a frame that can be none nobody could say where the next one begins.

use super::codec::{Fields, IN_HEADER, MESSAGE_MAX, OUT_HEADER, WireError};
use super::stream::StreamError;

/// Bytes of a frame's header.
pub(super) const HEADER: usize = 24;
/// Longest frame, as the monitor has it. A message in it may still be longer than any that makes sense, and is
/// answered with an error then.
pub(super) const FRAME_MAX: u32 = 24 + (1 << 20) + (64 << 10);
const _: () = assert!(MESSAGE_MAX + 24 <= FRAME_MAX);

/// What a frame is: a request, the answer to one, or that the driver has started anew.
const REQUEST: u16 = 1;
const REPLY: u16 = 2;
const RESET: u16 = 3;

/// A frame that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Frame {
    /// A request follows.
    Request {
        tag: u64,
        /// Most bytes of the answer, its FUSE header included; 0: it gets none.
        reply_max: u32,
        /// Bytes of the message behind its header.
        body: usize,
    },
    /// The driver has started anew.
    Reset,
}

impl Frame {
    /// Reads a header.
    ///
    /// # Errors
    /// [`StreamError`] if it can be none, or comes from no monitor.
    pub(super) fn decode(header: &[u8; HEADER]) -> Result<Self, StreamError> {
        const WHAT: &str = "a frame's header";
        // It is as long as its fields.
        let short = |_: WireError| StreamError::Truncated;
        let mut fields = Fields::new(header);
        let frame_len = fields.u32(WHAT).map_err(short)?;
        let kind = fields.u16(WHAT).map_err(short)?;
        // Which queue a request came from says nothing here.
        fields.skip(2, WHAT).map_err(short)?;
        let tag = fields.u64(WHAT).map_err(short)?;
        let reply_max = fields.u32(WHAT).map_err(short)?;
        let reserved = fields.u32(WHAT).map_err(short)?;

        let wrong_length = StreamError::Length { len: frame_len };
        let len = usize::try_from(frame_len).unwrap_or(usize::MAX);
        let frame = match kind {
            RESET if len == HEADER => Self::Reset,
            REQUEST if frame_len <= FRAME_MAX => Self::Request {
                tag,
                reply_max,
                body: len.checked_sub(HEADER + IN_HEADER).ok_or(wrong_length)?,
            },
            REQUEST | RESET => return Err(wrong_length),
            kind => return Err(StreamError::Kind { kind }),
        };
        if reserved != 0 {
            return Err(StreamError::Reserved);
        }
        let room = usize::try_from(reply_max).unwrap_or(usize::MAX);
        if (1..OUT_HEADER).contains(&room) {
            // Not even an error could be sent. The monitor takes no such request from its guest.
            return Err(StreamError::ReplyMax { reply_max });
        }
        Ok(frame)
    }
}

/// The header of the frame of an answer of so many bytes, its FUSE header included.
pub(super) fn reply_header(tag: u64, len: usize) -> [u8; HEADER] {
    // An answer is at most its header and PAYLOAD_MAX long.
    let len = u32::try_from(HEADER + len).unwrap_or(u32::MAX);
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&len.to_le_bytes());
    header[4..6].copy_from_slice(&REPLY.to_le_bytes());
    header[8..16].copy_from_slice(&tag.to_le_bytes());
    header
}

#[cfg(test)]
mod tests {
    use super::*;

    fn header(kind: u16, len: u32) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4..6].copy_from_slice(&kind.to_le_bytes());
        bytes[6] = 1;
        bytes[8..16].copy_from_slice(&0x0102_0304_0506_0708_u64.to_le_bytes());
        bytes[16] = 99;
        bytes
    }

    #[test]
    fn requests_and_resets_are_told_apart() {
        let request = Frame::decode(&header(REQUEST, 77)).unwrap();
        let expected = Frame::Request {
            tag: 0x0102_0304_0506_0708,
            reply_max: 99,
            body: 13,
        };
        assert_eq!(request, expected);
        assert_eq!(Frame::decode(&header(RESET, 24)).unwrap(), Frame::Reset);
    }

    #[test]
    fn a_length_or_kind_that_no_frame_has_is_refused() {
        for (kind, len) in [
            (REQUEST, 0),
            (REQUEST, 23),
            (REQUEST, 63),
            (REQUEST, FRAME_MAX + 1),
            (REQUEST, u32::MAX),
            (RESET, 23),
            (RESET, 25),
        ] {
            let error = Frame::decode(&header(kind, len)).unwrap_err();
            assert!(matches!(error, StreamError::Length { len: found } if found == len));
        }
        assert!(Frame::decode(&header(REQUEST, FRAME_MAX)).is_ok());
        for kind in [0, REPLY, 4] {
            let error = Frame::decode(&header(kind, 64)).unwrap_err();
            assert!(matches!(error, StreamError::Kind { kind: found } if found == kind));
        }
    }

    #[test]
    fn nothing_stands_in_the_reserved_field() {
        for (kind, len) in [(REQUEST, 64), (RESET, 24)] {
            for at in 20..HEADER {
                let mut bytes = header(kind, len);
                bytes[at] = 1;
                let error = Frame::decode(&bytes).unwrap_err();
                assert!(matches!(error, StreamError::Reserved), "{error}");
            }
        }
    }

    #[test]
    fn a_request_leaves_room_for_the_header_of_an_answer_or_none() {
        for (reply_max, is_good) in [(0, true), (1, false), (15, false), (16, true)] {
            let mut bytes = header(REQUEST, 64);
            bytes[16] = reply_max;
            let frame = Frame::decode(&bytes);
            assert_eq!(frame.is_ok(), is_good, "{reply_max}");
            if let Err(error) = frame {
                assert!(matches!(error, StreamError::ReplyMax { .. }), "{error}");
            }
        }
    }

    #[test]
    fn an_answer_has_the_tag_of_its_request_and_nothing_else() {
        let bytes = reply_header(7, 16);
        assert_eq!(bytes[..8], [40, 0, 0, 0, 2, 0, 0, 0]);
        assert_eq!(bytes[8..], [7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    }
}
