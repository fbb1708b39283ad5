//! The saved form of the file system device.
//!
//! A machine is best saved when no request is under way ([`super::Fs::in_flight`] is 0). One that is
//! cannot be sent again after a restore, since the server may have carried it out: it is answered
//! with EIO then, which is the truth.

use serde::{Deserialize, Serialize};

use super::Pending;
use crate::devices::virtio::chain::Chain;

/// What is kept of the device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FsState {
    /// The next frame's tag.
    pub next_tag: u64,
    /// Requests that were under way.
    pub in_flight: Vec<InFlight>,
}

/// A request that was under way.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct InFlight {
    /// The queue it came from.
    pub queue: u16,
    /// Its `unique`.
    pub unique: u64,
    /// The chain it came in. Memory outside of the guest's makes the write fail, not more.
    pub chain: Chain,
}

impl Pending {
    pub(super) fn save(&self) -> InFlight {
        InFlight {
            queue: u16::try_from(self.queue).unwrap_or(0),
            unique: self.unique,
            chain: self.chain.clone(),
        }
    }

    pub(super) fn restore(saved: InFlight) -> Self {
        Self {
            queue: usize::from(saved.queue),
            unique: saved.unique,
            chain: saved.chain,
        }
    }
}
