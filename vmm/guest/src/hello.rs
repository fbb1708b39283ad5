//! The handshake: which version of the protocol is spoken.
//!
//! Invariant: the layout of a hello is the same in every version.

use std::ops::RangeInclusive;

use thiserror::Error;

/// Bytes of a hello.
pub const LEN: usize = 12;

/// What a hello begins with.
pub const MAGIC: [u8; 8] = *b"floeagnt";

/// The versions that this code speaks. `Request::since` says what came with which.
pub const VERSIONS: RangeInclusive<u16> = 1..=3;

/// Versions that one side knows, or the one that was chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hello {
    /// The lowest.
    pub lowest: u16,
    /// The highest, not below the lowest.
    pub highest: u16,
}

/// Why a handshake failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HelloError {
    /// This is no hello.
    #[error("the other side speaks something else")]
    Magic,
    /// The lowest version is above the highest, or the answer is not one of those offered.
    #[error("versions {lowest} to {highest} make no sense here")]
    Range {
        /// The lowest.
        lowest: u16,
        /// The highest.
        highest: u16,
    },
    /// No version in common.
    #[error(
        "the agent speaks versions {theirs_lowest} to {theirs_highest} of the protocol, \
         this side {ours_lowest} to {ours_highest}"
    )]
    NoneInCommon {
        /// The lowest that the agent knows.
        theirs_lowest: u16,
        /// The highest that the agent knows.
        theirs_highest: u16,
        /// The lowest that this side knows.
        ours_lowest: u16,
        /// The highest that this side knows.
        ours_highest: u16,
    },
}

impl Hello {
    /// What this code knows.
    #[must_use]
    pub fn ours() -> Self {
        Self {
            lowest: *VERSIONS.start(),
            highest: *VERSIONS.end(),
        }
    }

    /// Its bytes.
    #[must_use]
    pub fn encode(self) -> [u8; LEN] {
        let mut bytes = [0; LEN];
        bytes[..8].copy_from_slice(&MAGIC);
        bytes[8..10].copy_from_slice(&self.lowest.to_le_bytes());
        bytes[10..].copy_from_slice(&self.highest.to_le_bytes());
        bytes
    }

    /// Reads one.
    ///
    /// # Errors
    ///
    /// [`HelloError::Magic`] and [`HelloError::Range`].
    pub fn decode(bytes: &[u8]) -> Result<Self, HelloError> {
        let rest = bytes.strip_prefix(&MAGIC).ok_or(HelloError::Magic)?;
        let &[a, b, c, d] = rest else {
            return Err(HelloError::Magic);
        };
        let lowest = u16::from_le_bytes([a, b]);
        let highest = u16::from_le_bytes([c, d]);
        if lowest > highest {
            return Err(HelloError::Range { lowest, highest });
        }
        Ok(Self { lowest, highest })
    }

    /// The agent's answer to an offer, and the version if there is one in common.
    #[must_use]
    pub fn answer(self, offer: Self) -> (Self, Option<u16>) {
        let version = self.highest.min(offer.highest);
        if version < self.lowest || version < offer.lowest {
            return (self, None);
        }
        let chosen = Self {
            lowest: version,
            highest: version,
        };
        (chosen, Some(version))
    }

    /// The version that an answer to this offer chose.
    ///
    /// # Errors
    ///
    /// [`HelloError::NoneInCommon`], and [`HelloError::Range`] of an answer that was not offered.
    pub fn accept(self, answer: Self) -> Result<u16, HelloError> {
        let offered = self.lowest..=self.highest;
        if answer.lowest == answer.highest && offered.contains(&answer.lowest) {
            return Ok(answer.lowest);
        }
        if answer.highest < self.lowest || self.highest < answer.lowest {
            return Err(HelloError::NoneInCommon {
                theirs_lowest: answer.lowest,
                theirs_highest: answer.highest,
                ours_lowest: self.lowest,
                ours_highest: self.highest,
            });
        }
        Err(HelloError::Range {
            lowest: answer.lowest,
            highest: answer.highest,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn hello(lowest: u16, highest: u16) -> Hello {
        Hello { lowest, highest }
    }

    #[test]
    fn the_highest_common_version_is_chosen() {
        let (answer, version) = hello(1, 3).answer(hello(2, 9));
        assert_eq!(version, Some(3));
        assert_eq!(hello(2, 9).accept(answer), Ok(3));
    }

    #[test]
    fn without_a_common_version_both_sides_learn_what_the_other_knows() {
        let (answer, version) = hello(1, 3).answer(hello(4, 9));
        assert_eq!(version, None);
        assert_eq!(
            hello(4, 9).accept(answer),
            Err(HelloError::NoneInCommon {
                theirs_lowest: 1,
                theirs_highest: 3,
                ours_lowest: 4,
                ours_highest: 9
            })
        );
    }

    #[test]
    fn an_answer_that_was_not_offered_is_refused() {
        assert!(matches!(
            hello(1, 3).accept(hello(2, 3)),
            Err(HelloError::Range { .. })
        ));
        assert_eq!(Hello::decode(b"floeagnX\0\0\0\0"), Err(HelloError::Magic));
        assert_eq!(Hello::decode(b"floeagnt\0\0\0"), Err(HelloError::Magic));
        assert_eq!(Hello::decode(b""), Err(HelloError::Magic));
    }

    proptest! {
        #[test]
        fn any_two_ranges_agree_on_a_version_exactly_if_they_meet(
            a in 0u16..20, b in 0u16..20, c in 0u16..20, d in 0u16..20,
        ) {
            let ours = hello(a.min(b), a.max(b));
            let offer = hello(c.min(d), c.max(d));
            let (answer, version) = ours.answer(offer);
            let meet = ours.lowest <= offer.highest && offer.lowest <= ours.highest;
            prop_assert_eq!(version.is_some(), meet);
            prop_assert_eq!(offer.accept(answer).ok(), version);
        }

        #[test]
        fn a_hello_comes_back_as_it_was(a in any::<u16>(), b in any::<u16>()) {
            let sent = hello(a.min(b), a.max(b));
            prop_assert_eq!(Hello::decode(&sent.encode()), Ok(sent));
        }
    }
}
