//! What a guest can reach: the serial console, power, interrupts and the virtio devices.
//!
//! Everything a guest writes is hostile. Each device checks it where it arrives; a device that
//! cannot go on says so to its driver and stands still, and the rest of the machine runs on.

pub mod bus;
pub mod events;
pub mod ioapic;
pub mod power;
pub mod serial;
mod sockets;
pub mod virtio;
