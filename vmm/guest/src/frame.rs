//! Frames: how the stream is cut into pieces.
//!
//! Invariant: a length above the bound of its kind is refused when the header is read, so that no
//! peer can make this side allocate more than [`Kind::bound`] for a frame.

use thiserror::Error;

/// Bytes of a frame before its payload: length, kind, channel.
pub const HEADER: usize = 9;

/// Most bytes of a data frame.
pub const MAX_DATA: usize = 64 * 1024;

/// Most bytes of an open frame: window and request.
pub const MAX_OPEN: usize = 512 * 1024;

/// Most bytes of an event. More than [`MAX_OPEN`], because one event repeats what a request said.
pub const MAX_EVENT: usize = 640 * 1024;

/// Most bytes of an end.
pub const MAX_END: usize = 64 * 1024;

/// What a frame is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Versions, once in each direction.
    Hello,
    /// The daemon asks for something on a new channel.
    Open,
    /// Bytes: stdout, what a terminal shows, a file, a connection, input.
    Data,
    /// Bytes of stderr.
    Stderr,
    /// Something in JSON.
    Event,
    /// The receiver can keep more.
    Credit,
    /// No more data in this direction.
    Eof,
    /// The daemon does not want the rest.
    Cancel,
    /// The agent's last frame on a channel.
    End,
}

/// The two ends of the stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// Who opens channels.
    Daemon,
    /// Who serves them.
    Agent,
}

impl Kind {
    /// All kinds, for tests and tables.
    pub const ALL: [Self; 9] = [
        Self::Hello,
        Self::Open,
        Self::Data,
        Self::Stderr,
        Self::Event,
        Self::Credit,
        Self::Eof,
        Self::Cancel,
        Self::End,
    ];

    /// Its number in the stream.
    #[must_use]
    pub fn code(self) -> u8 {
        match self {
            Self::Hello => 1,
            Self::Open => 2,
            Self::Data => 3,
            Self::Stderr => 4,
            Self::Event => 5,
            Self::Credit => 6,
            Self::Eof => 7,
            Self::Cancel => 8,
            Self::End => 9,
        }
    }

    fn parse(code: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.code() == code)
    }

    /// The least and the most bytes of its payload.
    #[must_use]
    pub fn bound(self) -> (usize, usize) {
        match self {
            Self::Hello => (crate::hello::LEN, crate::hello::LEN),
            Self::Open => (4, MAX_OPEN),
            Self::Data | Self::Stderr => (1, MAX_DATA),
            Self::Event => (0, MAX_EVENT),
            Self::Credit => (4, 4),
            Self::Eof | Self::Cancel => (0, 0),
            Self::End => (0, MAX_END),
        }
    }

    /// Whether that side may send it.
    #[must_use]
    pub fn sent_by(self, side: Side) -> bool {
        match self {
            Self::Hello | Self::Data | Self::Credit | Self::Eof => true,
            Self::Open | Self::Cancel => side == Side::Daemon,
            Self::Stderr | Self::Event | Self::End => side == Side::Agent,
        }
    }

    /// Whether it takes room out of a window (see [`crate::window`]).
    #[must_use]
    pub fn counted(self) -> bool {
        matches!(self, Self::Data | Self::Stderr | Self::Event)
    }
}

/// Why bytes are no frame. The stream cannot be read any further.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum FrameError {
    /// There is no kind of that number.
    #[error("a frame of unknown kind {0}")]
    UnknownKind(u8),
    /// The other side may not send this.
    #[error("a frame of kind {0:?}, which only the other side sends")]
    WrongSide(Kind),
    /// Too short or too long.
    #[error("a frame of kind {kind:?} with {len} bytes")]
    Length {
        /// What it is.
        kind: Kind,
        /// How long it claims to be, in bytes.
        len: u32,
    },
    /// A hello elsewhere than on channel 0, or something else there.
    #[error("a frame of kind {kind:?} on channel {channel}")]
    Channel {
        /// What it is.
        kind: Kind,
        /// Where it was.
        channel: u32,
    },
}

/// The beginning of a frame, checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it is.
    pub kind: Kind,
    /// Whose it is; 0 for a hello only.
    pub channel: u32,
    /// Bytes of the payload, within [`Kind::bound`].
    pub len: usize,
}

impl Header {
    /// Reads a header that `from` has sent.
    ///
    /// # Errors
    ///
    /// What the protocol does not allow.
    pub fn decode(bytes: [u8; HEADER], from: Side) -> Result<Self, FrameError> {
        let [a, b, c, d, code, e, f, g, h] = bytes;
        let len = u32::from_le_bytes([a, b, c, d]);
        let channel = u32::from_le_bytes([e, f, g, h]);
        let kind = Kind::parse(code).ok_or(FrameError::UnknownKind(code))?;
        if !kind.sent_by(from) {
            return Err(FrameError::WrongSide(kind));
        }
        if (kind == Kind::Hello) != (channel == 0) {
            return Err(FrameError::Channel { kind, channel });
        }
        let (least, most) = kind.bound();
        match usize::try_from(len) {
            Ok(len) if (least..=most).contains(&len) => Ok(Self { kind, channel, len }),
            _ => Err(FrameError::Length { kind, len }),
        }
    }
}

/// Appends a frame to `out`. Returns whether it did: a payload outside its bounds is not encoded.
#[must_use]
pub fn encode(kind: Kind, channel: u32, payload: &[u8], out: &mut Vec<u8>) -> bool {
    let (least, most) = kind.bound();
    if !(least..=most).contains(&payload.len()) {
        return false;
    }
    let Ok(len) = u32::try_from(payload.len()) else {
        return false;
    };
    out.reserve(HEADER + payload.len());
    out.extend_from_slice(&len.to_le_bytes());
    out.push(kind.code());
    out.extend_from_slice(&channel.to_le_bytes());
    out.extend_from_slice(payload);
    true
}

/// A frame with its payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// What it is.
    pub kind: Kind,
    /// Whose it is.
    pub channel: u32,
    /// Its bytes.
    pub payload: Vec<u8>,
}

/// Cuts a stream into frames as the bytes come. Holds at most one frame that is not whole.
#[derive(Debug)]
pub struct Decoder {
    from: Side,
    head: [u8; HEADER],
    /// Bytes of `head` that are there.
    have: usize,
    /// The frame being filled, once its header is whole.
    frame: Option<(Header, Vec<u8>)>,
    failed: Option<FrameError>,
}

impl Decoder {
    /// For what that side sends.
    #[must_use]
    pub fn new(from: Side) -> Self {
        Self {
            from,
            head: [0; HEADER],
            have: 0,
            frame: None,
            failed: None,
        }
    }

    /// Takes from the front of `bytes` until a frame is whole or nothing is left.
    ///
    /// # Errors
    ///
    /// What the protocol does not allow; then for ever.
    pub fn next(&mut self, bytes: &mut &[u8]) -> Result<Option<Frame>, FrameError> {
        if let Some(failed) = self.failed {
            return Err(failed);
        }
        if self.frame.is_none() {
            let (taken, rest) = bytes.split_at(bytes.len().min(HEADER - self.have));
            self.head[self.have..self.have + taken.len()].copy_from_slice(taken);
            self.have += taken.len();
            *bytes = rest;
            if self.have < HEADER {
                return Ok(None);
            }
            let header = Header::decode(self.head, self.from)
                .inspect_err(|error| self.failed = Some(*error))?;
            self.have = 0;
            self.frame = Some((header, Vec::with_capacity(header.len)));
        }
        let Some((header, mut payload)) = self.frame.take() else {
            return Ok(None);
        };
        let (taken, rest) = bytes.split_at(bytes.len().min(header.len - payload.len()));
        payload.extend_from_slice(taken);
        *bytes = rest;
        if payload.len() < header.len {
            self.frame = Some((header, payload));
            return Ok(None);
        }
        Ok(Some(Frame {
            kind: header.kind,
            channel: header.channel,
            payload,
        }))
    }

    /// Whether the stream may end here: not in the middle of a frame.
    #[must_use]
    pub fn at_boundary(&self) -> bool {
        self.have == 0 && self.frame.is_none()
    }

    /// Bytes of memory held for a frame that is not whole.
    #[must_use]
    pub fn held(&self) -> usize {
        self.frame
            .as_ref()
            .map_or(0, |(_, payload)| payload.capacity())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn decode_all(bytes: &[u8], from: Side, step: usize) -> Result<Vec<Frame>, FrameError> {
        let mut decoder = Decoder::new(from);
        let mut frames = Vec::new();
        for piece in bytes.chunks(step.max(1)) {
            let mut rest = piece;
            while let Some(frame) = decoder.next(&mut rest)? {
                frames.push(frame);
            }
            assert!(decoder.held() <= MAX_EVENT);
        }
        Ok(frames)
    }

    fn header(len: u32, kind: u8, channel: u32) -> [u8; HEADER] {
        let mut bytes = [0; HEADER];
        bytes[..4].copy_from_slice(&len.to_le_bytes());
        bytes[4] = kind;
        bytes[5..].copy_from_slice(&channel.to_le_bytes());
        bytes
    }

    #[test]
    fn a_length_above_its_bound_is_refused_before_the_payload_comes() {
        for kind in Kind::ALL {
            let side = if kind.sent_by(Side::Agent) {
                Side::Agent
            } else {
                Side::Daemon
            };
            let channel = u32::from(kind != Kind::Hello);
            let most = u32::try_from(kind.bound().1).unwrap();
            for len in [most + 1, u32::MAX] {
                let found = Header::decode(header(len, kind.code(), channel), side);
                assert_eq!(found, Err(FrameError::Length { kind, len }));
            }
            assert!(Header::decode(header(most, kind.code(), channel), side).is_ok());
        }
    }

    #[test]
    fn kinds_of_the_other_side_and_channel_zero_are_refused() {
        let end = header(0, Kind::End.code(), 1);
        assert_eq!(
            Header::decode(end, Side::Daemon),
            Err(FrameError::WrongSide(Kind::End))
        );
        let open = header(4, Kind::Open.code(), 1);
        assert_eq!(
            Header::decode(open, Side::Agent),
            Err(FrameError::WrongSide(Kind::Open))
        );
        let zero = header(1, Kind::Data.code(), 0);
        assert!(matches!(
            Header::decode(zero, Side::Agent),
            Err(FrameError::Channel { .. })
        ));
        assert_eq!(
            Header::decode(header(0, 77, 1), Side::Agent),
            Err(FrameError::UnknownKind(77))
        );
    }

    #[test]
    fn a_decoder_that_failed_stays_so() {
        let mut decoder = Decoder::new(Side::Agent);
        let mut bad: &[u8] = &header(0, 77, 1);
        assert!(decoder.next(&mut bad).is_err());
        let mut good: &[u8] = &header(0, Kind::Eof.code(), 1);
        assert!(decoder.next(&mut good).is_err());
    }

    #[test]
    fn a_payload_outside_its_bounds_is_not_encoded() {
        let mut out = Vec::new();
        assert!(!encode(Kind::Data, 1, &[], &mut out));
        assert!(!encode(Kind::Data, 1, &vec![0; MAX_DATA + 1], &mut out));
        assert!(!encode(Kind::Credit, 1, &[0; 3], &mut out));
        assert!(out.is_empty());
    }

    fn agent_frame() -> impl Strategy<Value = Frame> {
        let kinds = prop_oneof![
            Just(Kind::Data),
            Just(Kind::Stderr),
            Just(Kind::Event),
            Just(Kind::End)
        ];
        (
            kinds,
            1..u32::MAX,
            proptest::collection::vec(any::<u8>(), 1..300),
        )
            .prop_map(|(kind, channel, payload)| Frame {
                kind,
                channel,
                payload,
            })
    }

    proptest! {
        #[test]
        fn frames_come_back_whatever_the_pieces_are(
            frames in proptest::collection::vec(agent_frame(), 0..8),
            step in 1usize..64,
        ) {
            let mut bytes = Vec::new();
            for frame in &frames {
                prop_assert!(encode(frame.kind, frame.channel, &frame.payload, &mut bytes));
            }
            prop_assert_eq!(decode_all(&bytes, Side::Agent, step), Ok(frames));
        }

        #[test]
        fn any_bytes_give_frames_or_an_error_and_take_bounded_memory(
            bytes in proptest::collection::vec(any::<u8>(), 0..2048),
            step in 1usize..64,
            daemon in any::<bool>(),
        ) {
            let side = if daemon { Side::Daemon } else { Side::Agent };
            if let Ok(frames) = decode_all(&bytes, side, step) {
                let total: usize = frames.iter().map(|f| f.payload.len() + HEADER).sum();
                prop_assert!(total <= bytes.len());
            }
        }

        /// Headers that are likely to be accepted: small numbers everywhere.
        #[test]
        fn likely_headers_never_panic(
            heads in proptest::collection::vec((0u32..12, 0u8..11, 0u32..3), 0..64),
        ) {
            let bytes: Vec<u8> = heads
                .iter()
                .flat_map(|(len, kind, channel)| header(*len, *kind, *channel))
                .collect();
            for side in [Side::Agent, Side::Daemon] {
                if let Ok(frames) = decode_all(&bytes, side, 7) {
                    for frame in frames {
                        let (least, most) = frame.kind.bound();
                        prop_assert!((least..=most).contains(&frame.payload.len()));
                    }
                }
            }
        }
    }
}
