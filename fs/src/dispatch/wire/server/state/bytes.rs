//! A [`ServerState`] as bytes, and back.
//!
//! Little-endian, all of it: magic (8 bytes), version (4), flags (4), for how long names are believed
//! (8 seconds, 4 nanoseconds, 4 of zeros), number of inodes (8) and of open files (8); of each inode number
//! and count (16); of each open file inode, mode, zeros and count (8, 4, 4, 8); BLAKE3 of everything before
//! (32). One state has one form.
//!
//! Bytes may come from anywhere. Nothing is allocated by a number in them before it agrees with how many
//! there are.

use std::time::Duration;

use super::{ServerState, StateError, number};
use crate::dispatch::OpenMode;
use crate::dispatch::wire::Caching;
use crate::dispatch::wire::codec::{Dialect, Fields, WireError};
use crate::id::Ino;

const MAGIC: &[u8; 8] = b"FLOEFUSE";
const VERSION: u32 = 1;
const HEADER: usize = 48;
const NODE: usize = 16;
const OPEN: usize = 24;
const CHECKSUM: usize = blake3::OUT_LEN;

/// The guest has mounted.
const AGREED: u32 = 1 << 0;
const SETXATTR_EXT: u32 = 1 << 1;
const READ_ONLY: u32 = 1 << 2;
/// It believes for ever.
const ONLY_WRITER: u32 = 1 << 3;
const FLAGS: u32 = AGREED | SETXATTR_EXT | READ_ONLY | ONLY_WRITER;

impl ServerState {
    /// As bytes, with a version and a checksum.
    #[must_use]
    pub fn to_bytes(&self) -> Vec<u8> {
        let len = HEADER + NODE * self.nodes.len() + OPEN * self.opens.len() + CHECKSUM;
        let mut bytes = Vec::with_capacity(len);
        let ttl = match self.caching {
            Caching::Shared { ttl } => ttl,
            Caching::OnlyWriter => Duration::ZERO,
        };
        let flag = |flag: u32, is_set: bool| if is_set { flag } else { 0 };
        let flags = flag(AGREED, self.agreed.is_some())
            | flag(
                SETXATTR_EXT,
                self.agreed.is_some_and(|agreed| agreed.setxattr_ext),
            )
            | flag(READ_ONLY, self.read_only)
            | flag(ONLY_WRITER, self.caching == Caching::OnlyWriter);
        bytes.extend(MAGIC);
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend(flags.to_le_bytes());
        bytes.extend(ttl.as_secs().to_le_bytes());
        bytes.extend(ttl.subsec_nanos().to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend((self.nodes.len() as u64).to_le_bytes());
        bytes.extend((self.opens.len() as u64).to_le_bytes());
        for (ino, count) in &self.nodes {
            bytes.extend(ino.0.to_le_bytes());
            bytes.extend(count.to_le_bytes());
        }
        for (ino, mode, count) in &self.opens {
            bytes.extend(ino.0.to_le_bytes());
            bytes.extend(number(*mode).to_le_bytes());
            bytes.extend([0; 4]);
            bytes.extend(count.to_le_bytes());
        }
        let checksum = blake3::hash(&bytes);
        bytes.extend(checksum.as_bytes());
        bytes
    }

    /// What [`ServerState::to_bytes`] made bytes of. They are not trusted.
    ///
    /// # Errors
    /// [`StateError`] says what is wrong with them.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self, StateError> {
        let length = StateError::Length { found: bytes.len() };
        let (magic, rest) = bytes.split_first_chunk().ok_or(length.clone())?;
        if magic != MAGIC {
            return Err(StateError::Magic);
        }
        let version = rest.first_chunk().ok_or(length.clone())?;
        let found = u32::from_le_bytes(*version);
        if found != VERSION {
            let known = VERSION;
            return Err(StateError::Version { found, known });
        }
        let (body, checksum) = bytes.split_last_chunk::<CHECKSUM>().ok_or(length.clone())?;
        if blake3::hash(body) != *checksum {
            return Err(StateError::Checksum);
        }
        match decode(body) {
            Ok(state) => state?.checked(),
            // Too short for its header, or for what that says.
            Err(_) => Err(length),
        }
    }
}

/// Takes the fields of a state apart, which is not checked yet; the outer error is that of a body of another
/// length.
fn decode(body: &[u8]) -> Result<Result<ServerState, StateError>, WireError> {
    const WHAT: &str = "a saved connection";
    let wrong = |what| Ok(Err(StateError::Value { what }));
    let mut fields = Fields::new(body);
    fields.skip(MAGIC.len() + size_of_val(&VERSION), WHAT)?;
    let flags = fields.u32(WHAT)?;
    let (seconds, nanos, zero) = (fields.u64(WHAT)?, fields.u32(WHAT)?, fields.u32(WHAT)?);
    let (nodes, opens) = (fields.u64(WHAT)?, fields.u64(WHAT)?);
    let says = length(nodes, opens);
    if says != Some(body.len()) {
        return Err(WireError::Short { what: WHAT });
    }
    let is_set = |flag: u32| flags & flag != 0;
    if flags & !FLAGS != 0 || (is_set(SETXATTR_EXT) && !is_set(AGREED)) || zero != 0 {
        return wrong("flags");
    }
    let caching = match (is_set(ONLY_WRITER), seconds, nanos) {
        (true, 0, 0) => Caching::OnlyWriter,
        (false, _, 0..1_000_000_000) => Caching::Shared {
            ttl: Duration::new(seconds, nanos),
        },
        _ => return wrong("a time"),
    };
    let mut state = ServerState {
        agreed: is_set(AGREED).then_some(Dialect {
            setxattr_ext: is_set(SETXATTR_EXT),
        }),
        caching,
        read_only: is_set(READ_ONLY),
        nodes: Vec::new(),
        opens: Vec::new(),
    };
    for _ in 0..nodes {
        state
            .nodes
            .push((Ino(fields.u64(WHAT)?), fields.u64(WHAT)?));
    }
    for _ in 0..opens {
        let (ino, mode, zero) = (fields.u64(WHAT)?, fields.u32(WHAT)?, fields.u32(WHAT)?);
        let mode = match (mode, zero) {
            (0, 0) => OpenMode::Read,
            (1, 0) => OpenMode::Write,
            (2, 0) => OpenMode::ReadWrite,
            _ => return wrong("how a file is open"),
        };
        state.opens.push((Ino(ino), mode, fields.u64(WHAT)?));
    }
    Ok(Ok(state))
}

/// How long a body is with so much in it; none if it cannot be that long.
fn length(nodes: u64, opens: u64) -> Option<usize> {
    let nodes = usize::try_from(nodes).ok()?.checked_mul(NODE)?;
    let opens = usize::try_from(opens).ok()?.checked_mul(OPEN)?;
    HEADER.checked_add(nodes)?.checked_add(opens)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Captured;
    use super::super::tests::any_state;
    use super::*;

    /// With the checksum of what it is.
    fn signed(mut body: Vec<u8>) -> Vec<u8> {
        let checksum = blake3::hash(&body);
        body.extend(checksum.as_bytes());
        body
    }

    proptest! {
        #[test]
        fn a_state_comes_back_as_it_was(state in any_state()) {
            let bytes = state.to_bytes();
            prop_assert_eq!(ServerState::from_bytes(&bytes), Ok(state));
        }

        #[test]
        fn damage_is_found(state in any_state(), at in any::<prop::sample::Index>(), bit in 0..8_u8) {
            let mut bytes = state.to_bytes();
            let at = at.index(bytes.len());
            prop_assert!(ServerState::from_bytes(&bytes[..at]).is_err());
            bytes[at] ^= 1 << bit;
            prop_assert!(ServerState::from_bytes(&bytes).is_err());
        }

        /// Whoever writes them knows the checksum as well: they are refused, or are what one form of a sound
        /// state looks like.
        #[test]
        fn hostile_bytes_are_refused_or_a_state(
            state in any_state(),
            spoil in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
            cut in prop::option::of(any::<prop::sample::Index>()),
        ) {
            let mut body = state.to_bytes();
            body.truncate(body.len() - CHECKSUM);
            for (at, byte) in spoil {
                let at = at.index(body.len());
                body[at] = byte;
            }
            if let Some(cut) = cut {
                body.truncate(cut.index(body.len()));
            }
            let bytes = signed(body);
            if let Ok(state) = ServerState::from_bytes(&bytes) {
                prop_assert_eq!(state.to_bytes(), bytes);
            }
        }

        #[test]
        fn random_bytes_are_refused(
            bytes in prop::collection::vec(any::<u8>(), 0..400),
            like_one in any::<bool>(),
        ) {
            let bytes = match like_one {
                false => bytes,
                true => signed([&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat()),
            };
            if let Ok(state) = ServerState::from_bytes(&bytes) {
                prop_assert_eq!(state.to_bytes(), bytes);
            }
        }
    }

    #[test]
    fn numbers_that_nobody_has_bytes_for_allocate_nothing() {
        let head = |nodes: u64, opens: u64| {
            let mut body = [&MAGIC[..], &VERSION.to_le_bytes(), &[1, 0, 0, 0], &[0; 16]].concat();
            body.extend(nodes.to_le_bytes());
            body.extend(opens.to_le_bytes());
            signed(body)
        };
        assert!(ServerState::from_bytes(&head(0, 0)).is_ok());
        for (nodes, opens) in [
            (1, 0),
            (0, 1),
            (u64::MAX, 0),
            (u64::MAX / 16 + 1, 0),
            (1 << 60, 1 << 60),
        ] {
            let bytes = head(nodes, opens);
            let found = bytes.len();
            assert_eq!(
                ServerState::from_bytes(&bytes),
                Err(StateError::Length { found })
            );
        }
    }

    #[test]
    fn another_version_and_another_thing_are_told_apart_from_damage() {
        let mut bytes = head_of_nothing();
        bytes[8] = 2;
        let (found, known) = (2, VERSION);
        assert_eq!(
            ServerState::from_bytes(&bytes),
            Err(StateError::Version { found, known })
        );
        bytes[0] = b'f';
        assert_eq!(ServerState::from_bytes(&bytes), Err(StateError::Magic));
        assert_eq!(
            ServerState::from_bytes(b""),
            Err(StateError::Length { found: 0 })
        );
    }

    fn head_of_nothing() -> Vec<u8> {
        let captured = Captured {
            agreed: None,
            caching: Caching::OnlyWriter,
            read_only: true,
            nodes: Vec::new(),
            opens: Vec::new(),
        };
        ServerState::from(captured).to_bytes()
    }
}
