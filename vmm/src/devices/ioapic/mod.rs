//! The I/O APIC: interrupt lines in, messages to the local APICs out.
//!
//! After the Intel 82093AA data sheet: an index register, a data window, and 24 redirection
//! entries. Every line of this machine is edge-triggered, as its ACPI tables say, so an entry that
//! a guest sets to level-triggered is delivered as an edge too: no end-of-interrupt has to come
//! back from the local APICs, and a hostile setting costs only the guest its interrupts.
//!
//! Invariant: a line that was raised while its entry was masked is delivered when the entry is
//! unmasked. (The chip loses it; a driver that masks for a moment must not.)

mod state;

use std::sync::{Arc, Mutex, PoisonError};

pub use state::IoApicState;

use super::bus::{BusDevice, BusError};
use crate::machine::layout::IOAPIC_PINS;

const INDEX: u64 = 0x00;
const WINDOW: u64 = 0x10;
const REG_ID: u8 = 0x00;
const REG_VERSION: u8 = 0x01;
const REG_ARBITRATION: u8 = 0x02;
const REG_ENTRIES: u8 = 0x10;
/// Version 0x11 of the chip, and the index of the last entry in bits 16 to 23.
const VERSION: u32 = 0x11 | (IOAPIC_PINS as u32 - 1) << 16;

/// Vector and delivery mode, which an entry and the data of a message have in the same bits.
const VECTOR_AND_MODE: u32 = 0x7ff;
const DELIVERY_MODE: u64 = 0x700;
const LOGICAL: u64 = 1 << 11;
const DELIVERY_STATUS: u64 = 1 << 12;
const REMOTE_IRR: u64 = 1 << 14;
const MASKED: u64 = 1 << 16;
/// What software can change of an entry.
const WRITABLE: u64 = 0xff00_0000_0001_afff;
const PINS: usize = IOAPIC_PINS as usize;

/// Where interrupt messages go: the machine, or a test.
pub trait MsiSink: Send + Sync {
    /// Delivers a message-signalled interrupt (Intel SDM volume 3, "Message signalled
    /// interrupts": `address` has the destination, `data` the vector).
    ///
    /// # Errors
    /// The system's error. A guest can cause one by naming a vector below 16.
    fn send(&self, address: u32, data: u32) -> std::io::Result<()>;
}

/// The chip.
pub struct IoApic {
    sink: Arc<dyn MsiSink>,
    state: IoApicState,
}

impl std::fmt::Debug for IoApic {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("IoApic")
            .field("state", &self.state)
            .finish_non_exhaustive()
    }
}

impl IoApic {
    /// A chip after reset: every entry masked.
    #[must_use]
    pub fn new(sink: Arc<dyn MsiSink>) -> Self {
        Self {
            sink,
            state: IoApicState {
                id: 0,
                index: 0,
                pending: 0,
                entries: [MASKED; PINS],
            },
        }
    }

    /// An edge on `pin`. Pins that do not exist are ignored.
    pub fn raise(&mut self, pin: u8) {
        if usize::from(pin) < PINS {
            self.state.pending |= 1 << pin;
            self.deliver(usize::from(pin));
        }
    }

    /// What has to be kept of the chip.
    #[must_use]
    pub fn save(&self) -> IoApicState {
        self.state.clone()
    }

    /// Sets the chip to a saved state. Pending lines are delivered at once, so the local APICs must
    /// have been restored before.
    pub fn restore(&mut self, state: IoApicState) {
        self.state = IoApicState {
            pending: state.pending & ((1 << PINS) - 1),
            ..state
        };
        for pin in 0..PINS {
            self.deliver(pin);
        }
    }

    fn deliver(&mut self, pin: usize) {
        let entry = self.state.entries[pin];
        if entry & MASKED != 0 || self.state.pending & (1 << pin) == 0 {
            return;
        }
        self.state.pending &= !(1 << pin);
        let (address, data) = message(entry);
        if let Err(error) = self.sink.send(address, data) {
            tracing::debug!(pin, %error, "an interrupt was not taken");
        }
    }

    fn read_register(&self) -> u32 {
        match self.state.index {
            REG_ID | REG_ARBITRATION => u32::from(self.state.id) << 24,
            REG_VERSION => VERSION,
            index => self.entry_of(index).map_or(0, |(pin, high)| {
                let [low_half, high_half] = halves(self.state.entries[pin]);
                if high { high_half } else { low_half }
            }),
        }
    }

    fn write_register(&mut self, value: u32) {
        match self.state.index {
            REG_ID => self.state.id = value.to_be_bytes()[0] & 0xf,
            index => {
                let Some((pin, high)) = self.entry_of(index) else {
                    return;
                };
                let old = self.state.entries[pin];
                let [low_half, high_half] = halves(old);
                let new = if high {
                    u64::from(value) << 32 | u64::from(low_half)
                } else {
                    u64::from(high_half) << 32 | u64::from(value)
                };
                let kept = old & (DELIVERY_STATUS | REMOTE_IRR);
                self.state.entries[pin] = new & WRITABLE | kept;
                self.deliver(pin);
            }
        }
    }

    /// Which entry, and which half of it, a register index names.
    fn entry_of(&self, index: u8) -> Option<(usize, bool)> {
        let offset = index.checked_sub(REG_ENTRIES)?;
        let pin = usize::from(offset / 2);
        (pin < PINS).then_some((pin, offset % 2 == 1))
    }
}

fn halves(entry: u64) -> [u32; 2] {
    let [a, b, c, d, e, f, g, h] = entry.to_le_bytes();
    [
        u32::from_le_bytes([a, b, c, d]),
        u32::from_le_bytes([e, f, g, h]),
    ]
}

/// The message that an entry stands for, edge-triggered whatever the entry says.
fn message(entry: u64) -> (u32, u32) {
    let [low, high] = halves(entry);
    let destination = high >> 24;
    let logical = u32::from(entry & LOGICAL != 0) << 2;
    let data = low & VECTOR_AND_MODE;
    // Delivery mode 1 (lowest priority) is told by the redirection hint as well.
    let hint = u32::from(entry & DELIVERY_MODE == 0x100) << 3;
    (0xfee0_0000 | destination << 12 | hint | logical, data)
}

impl BusDevice for IoApic {
    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        let value = match offset {
            INDEX => u32::from(self.state.index),
            WINDOW => self.read_register(),
            _ => 0,
        };
        super::bus::fill(data, &value.to_le_bytes());
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        // The chip takes whole registers only; part of one would leave half an entry.
        let &[a, b, c, d] = data else {
            return Ok(());
        };
        match offset {
            INDEX => self.state.index = a,
            WINDOW => self.write_register(u32::from_le_bytes([a, b, c, d])),
            _ => {}
        }
        Ok(())
    }
}

/// One interrupt line of the chip, as a device holds it.
#[derive(Clone, Debug)]
pub struct IrqLine {
    chip: Arc<Mutex<IoApic>>,
    pin: u8,
}

impl IrqLine {
    /// The line `pin` of `chip`.
    #[must_use]
    pub fn new(chip: Arc<Mutex<IoApic>>, pin: u8) -> Self {
        Self { chip, pin }
    }

    /// Raises the line. The chip's lock is taken last of all locks of the monitor.
    pub fn raise(&self) {
        self.chip
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .raise(self.pin);
    }
}

impl vm_superio::Trigger for IrqLine {
    type E = std::convert::Infallible;

    fn trigger(&self) -> Result<(), Self::E> {
        self.raise();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
