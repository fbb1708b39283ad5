//! Windows: how much may be sent on a channel before its reader has made room.
//!
//! Invariant: a window is never above [`MAX_WINDOW`], so what a receiver keeps for a channel is at
//! most what it has granted.

use thiserror::Error;

/// What keeping a frame costs beside its payload, in bytes. It bounds how many small ones may wait.
pub const FRAME_COST: usize = 64;

/// Largest window, in bytes.
pub const MAX_WINDOW: u32 = 4 * 1024 * 1024;

/// The window towards the agent that each channel begins with, in bytes.
pub const INPUT_WINDOW: u32 = 128 * 1024;

/// What a frame with such a payload takes out of a window.
#[must_use]
pub fn cost(payload: usize) -> u32 {
    u32::try_from(payload.saturating_add(FRAME_COST)).unwrap_or(u32::MAX)
}

/// The other side broke the rules of windows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum WindowError {
    /// More was sent than there was room for.
    #[error("{cost} bytes were sent into a window of {left}")]
    Overrun {
        /// What it took.
        cost: u32,
        /// What was left.
        left: u32,
    },
    /// Credit of nothing, or of more than a window may be.
    #[error("credit of {added} bytes for a window of {left}")]
    Credit {
        /// What was granted.
        added: u32,
        /// What was left before.
        left: u32,
    },
}

/// How much may be sent in one direction of a channel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Window(u32);

impl Window {
    /// A window of that many bytes, or of the largest.
    #[must_use]
    pub fn new(bytes: u32) -> Self {
        Self(bytes.min(MAX_WINDOW))
    }

    /// Bytes left.
    #[must_use]
    pub fn left(self) -> u32 {
        self.0
    }

    /// Longest payload that may be sent now.
    #[must_use]
    pub fn payload(self) -> usize {
        usize::try_from(self.0)
            .unwrap_or(usize::MAX)
            .saturating_sub(FRAME_COST)
    }

    /// Takes a frame's room out.
    ///
    /// # Errors
    ///
    /// [`WindowError::Overrun`] if there is not so much; nothing is taken.
    pub fn take(&mut self, payload: usize) -> Result<(), WindowError> {
        let cost = cost(payload);
        self.0 = self
            .0
            .checked_sub(cost)
            .ok_or(WindowError::Overrun { cost, left: self.0 })?;
        Ok(())
    }

    /// Adds credit.
    ///
    /// # Errors
    ///
    /// [`WindowError::Credit`] if it is 0 or the window would be too large; nothing is added.
    pub fn add(&mut self, added: u32) -> Result<(), WindowError> {
        match self.0.checked_add(added) {
            Some(sum) if added > 0 && sum <= MAX_WINDOW => {
                self.0 = sum;
                Ok(())
            }
            _ => Err(WindowError::Credit {
                added,
                left: self.0,
            }),
        }
    }
}

/// The number in a credit frame.
#[must_use]
pub fn decode_credit(payload: &[u8]) -> Option<u32> {
    Some(u32::from_le_bytes(payload.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_frame_that_does_not_fit_takes_nothing() {
        let mut window = Window::new(100);
        assert_eq!(window.payload(), 36);
        assert!(window.take(37).is_err());
        assert_eq!(window.left(), 100);
        assert!(window.take(36).is_ok());
        assert_eq!(window.payload(), 0);
        assert!(window.take(0).is_err());
    }

    #[test]
    fn credit_of_nothing_or_of_too_much_is_refused() {
        let mut window = Window::new(u32::MAX);
        assert_eq!(window.left(), MAX_WINDOW);
        assert!(window.add(1).is_err());
        assert!(window.add(u32::MAX).is_err());
        assert!(window.add(0).is_err());
        assert_eq!(window.left(), MAX_WINDOW);
    }

    proptest! {
        #[test]
        fn a_window_is_what_was_granted_less_what_was_sent(
            steps in proptest::collection::vec((any::<bool>(), 0u32..200_000), 0..200),
        ) {
            let mut window = Window::new(INPUT_WINDOW);
            let mut model = u64::from(INPUT_WINDOW);
            for (add, amount) in steps {
                if add {
                    if window.add(amount).is_ok() {
                        model += u64::from(amount);
                    }
                } else if window.take(usize::try_from(amount).unwrap()).is_ok() {
                    model -= u64::from(cost(usize::try_from(amount).unwrap()));
                }
                prop_assert_eq!(u64::from(window.left()), model);
                prop_assert!(window.left() <= MAX_WINDOW);
            }
        }
    }
}
