//! The saved form of the I/O APIC.

use serde::{Deserialize, Serialize};

use crate::machine::layout::IOAPIC_PINS;

/// Everything of an I/O APIC that a guest can tell apart.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IoApicState {
    /// APIC id, 4 bits.
    pub id: u8,
    /// The register that the window shows.
    pub index: u8,
    /// Bit `n`: line `n` was raised and its message has not been sent, the entry being masked.
    pub pending: u32,
    /// Redirection entries as the chip lays them out.
    pub entries: [u64; IOAPIC_PINS as usize],
}
