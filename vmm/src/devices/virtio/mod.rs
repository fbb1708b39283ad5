//! Virtio devices (Virtual I/O Device specification, version 1.3) and their one transport, MMIO.
//!
//! A device is a [`VirtioDevice`]; [`mmio::Transport`] holds it with its queues and registers, and
//! is what the bus and the event loop call. Everything is under the transport's lock: a device has
//! no thread of its own and no locks.

pub mod chain;
pub mod fault;
pub mod fs;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzzing;
pub mod mmio;
mod queues;
pub mod rng;
#[cfg(any(test, feature = "fuzzing"))]
#[cfg_attr(not(test), allow(dead_code, reason = "a fuzzer uses some of it"))]
mod testing;
pub mod vsock;

pub use fault::Fault;
pub use queues::Queues;

use super::events::EventSet;

/// A virtio device behind a transport.
pub trait VirtioDevice: Send {
    /// What [`Self::save`] gives: plain data.
    type State;

    /// The device type (specification, section 5).
    fn id(&self) -> u32;

    /// Features beyond those of the transport and the rings, which the transport offers.
    fn features(&self) -> u64 {
        0
    }

    /// The most entries of each queue: as many as the device has queues, each a power of two.
    fn queue_sizes(&self) -> &'static [u16];

    /// The configuration space, as the driver may read it now.
    fn config(&self) -> Vec<u8> {
        Vec::new()
    }

    /// The driver is ready (`DRIVER_OK`) and every queue it uses was checked. Called once between
    /// resets, before anything below.
    ///
    /// # Errors
    /// A [`Fault`] stops the device until its driver resets it; so everywhere below.
    fn activate(&mut self, queues: &mut Queues<'_>) -> Result<(), Fault>;

    /// The driver put something into the queue `index`, or says so.
    ///
    /// # Errors
    /// See [`Self::activate`].
    fn notified(&mut self, index: u16, queues: &mut Queues<'_>) -> Result<(), Fault>;

    /// A descriptor of the host that the device registered is ready. Not called while the device is
    /// stopped.
    ///
    /// # Errors
    /// See [`Self::activate`].
    fn ready(
        &mut self,
        _token: u32,
        _events: EventSet,
        _queues: &mut Queues<'_>,
    ) -> Result<(), Fault> {
        Ok(())
    }

    /// A descriptor is ready while the device is stopped or has no driver yet.
    fn ready_inactive(&mut self, _token: u32, _events: EventSet) {}

    /// The driver resets the device, or the device had a fault: forget everything of the driver's,
    /// whose memory must not be touched any more.
    fn reset(&mut self);

    /// What has to be kept. Called while the machine is paused.
    fn save(&self) -> Self::State;

    /// Sets a device that was never activated to a saved state.
    fn restore(&mut self, state: Self::State);
}
