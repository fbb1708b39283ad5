//! The MMIO transport of virtio (specification, section 4.2), version 2.
//!
//! Invariants, whatever the driver writes:
//! - the status only gains bits, except by a reset;
//! - features and queues change only in the states in which the specification lets them, so that a
//!   device that runs has the queues that were checked when it started;
//! - a device is called only between `DRIVER_OK` and a reset or a fault.
//!
//! A write that the specification forbids is ignored. A queue that cannot be is a [`Fault`].

mod registers;
mod state;

use virtio_queue::{Queue, QueueT};
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

pub use state::{QueueState, RestoreError, TransportState};

use super::queues::Again;
use super::{Fault, Queues, VirtioDevice};
use crate::devices::bus::{BusDevice, BusError, fill};
use crate::devices::events::{EventSet, HostEvents, Registrar};
use crate::devices::ioapic::IrqLine;
use crate::machine::memory::GuestMemory;
use registers::{QueueSetup, Selected, status};

/// Ring and transport features: version 1, event index, indirect descriptors.
const FEATURES: u64 = 1 << 32 | 1 << 29 | 1 << 28;
const FEATURE_VERSION_1: u64 = 1 << 32;
const FEATURE_EVENT_IDX: u64 = 1 << 29;
/// "FLOE" in ASCII.
const VENDOR: u32 = u32::from_le_bytes(*b"FLOE");
/// Offset of the configuration space.
const CONFIG: u64 = 0x100;

/// The interrupt of one device: its line, and why it was raised.
#[derive(Debug)]
pub struct Interrupt {
    line: IrqLine,
    status: u32,
}

impl Interrupt {
    const USED: u32 = 1;
    const CONFIG: u32 = 2;

    /// The device used buffers.
    pub fn used(&mut self) {
        self.status |= Self::USED;
        self.line.raise();
    }

    /// The device's configuration or state changed.
    fn config(&mut self) {
        self.status |= Self::CONFIG;
        self.line.raise();
    }
}

/// A virtio device with its registers and queues.
pub struct Transport<D> {
    device: D,
    memory: GuestMemory,
    interrupt: Interrupt,
    status: u32,
    driver_features: u64,
    device_features_high: Selected,
    driver_features_high: Selected,
    queue: u32,
    setups: Vec<QueueSetup>,
    // As many as there are setups while the device is active, else none.
    queues: Vec<Queue>,
    fault: Option<Fault>,
    stops: u32,
    again: Again,
    // Wakes the event loop for `again`.
    again_event: Option<EventFd>,
}

/// Most faults of one device that are logged.
const WARNINGS_MAX: u32 = 8;
/// The token of `again_event`; devices use smaller ones.
pub(in crate::devices::virtio) const AGAIN_TOKEN: u32 = u32::MAX;

impl<D: VirtioDevice> std::fmt::Debug for Transport<D> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Transport")
            .field("device", &self.device.id())
            .field("status", &self.status)
            .field("fault", &self.fault)
            .finish_non_exhaustive()
    }
}

impl<D: VirtioDevice> Transport<D> {
    /// A device after reset.
    #[must_use]
    pub fn new(device: D, memory: GuestMemory, line: IrqLine) -> Self {
        let setups = device
            .queue_sizes()
            .iter()
            .map(|size| QueueSetup::new(*size));
        Self {
            setups: setups.collect(),
            device,
            memory,
            interrupt: Interrupt { line, status: 0 },
            status: 0,
            driver_features: 0,
            device_features_high: Selected::default(),
            driver_features_high: Selected::default(),
            queue: 0,
            queues: Vec::new(),
            fault: None,
            stops: 0,
            again: Again::default(),
            again_event: None,
        }
    }

    /// Lets the event loop call this device. Without it, a queue that is never empty is served in
    /// part only.
    ///
    /// # Errors
    /// The system's, when it gives no descriptor.
    pub fn register(&mut self, registrar: &Registrar) -> std::io::Result<()> {
        let event = EventFd::new(EFD_NONBLOCK)?;
        registrar.add(&event, AGAIN_TOKEN, EventSet::IN)?;
        self.again_event = Some(event);
        Ok(())
    }

    /// The device.
    pub fn device(&self) -> &D {
        &self.device
    }

    /// Why the device stands still, if it does.
    #[must_use]
    pub fn fault(&self) -> Option<&Fault> {
        self.fault.as_ref()
    }

    fn offered(&self) -> u64 {
        FEATURES | self.device.features()
    }

    fn is_active(&self) -> bool {
        self.status & status::DRIVER_OK != 0 && self.status & status::NEEDS_RESET == 0
    }

    /// Calls the device, and stops it at a fault.
    fn call(&mut self, call: impl FnOnce(&mut D, &mut Queues<'_>) -> Result<(), Fault>) {
        let mut queues = Queues::new(
            &self.memory,
            &mut self.queues,
            &mut self.interrupt,
            &mut self.again,
        );
        if let Err(fault) = call(&mut self.device, &mut queues) {
            self.stop(fault);
        }
        self.wake_for_again();
    }

    /// Has the event loop call this device, if a queue was left with something in it.
    fn wake_for_again(&self) {
        if let Some(event) = self.again_event.as_ref().filter(|_| !self.again.is_empty())
            && let Err(error) = event.write(1)
        {
            tracing::debug!(%error, "the event loop will call this device anyway");
        }
    }

    fn call_again(&mut self) {
        if let Some(Err(error)) = self.again_event.as_ref().map(EventFd::read) {
            tracing::trace!(%error, "two wakes were one");
        }
        for index in std::mem::take(&mut self.again).queues() {
            self.notify(u32::from(index));
        }
    }

    fn stop(&mut self, fault: Fault) {
        // A guest can do this as often as it likes.
        if self.stops < WARNINGS_MAX {
            tracing::warn!(device = self.device.id(), %fault, "a virtio device stops");
        }
        self.stops = self.stops.saturating_add(1);
        self.device.reset();
        self.queues.clear();
        self.again = Again::default();
        self.fault = Some(fault);
        self.status |= status::NEEDS_RESET;
        self.interrupt.config();
    }

    fn reset(&mut self) {
        self.device.reset();
        self.queues.clear();
        self.again = Again::default();
        self.fault = None;
        self.status = 0;
        self.driver_features = 0;
        self.device_features_high = Selected::default();
        self.driver_features_high = Selected::default();
        self.queue = 0;
        self.interrupt.status = 0;
        for (setup, size) in self.setups.iter_mut().zip(self.device.queue_sizes()) {
            *setup = QueueSetup::new(*size);
        }
    }

    fn set_status(&mut self, value: u32) {
        if value == 0 {
            self.reset();
            return;
        }
        let gained = value & !self.status & status::DRIVERS;
        let allowed = match gained {
            status::ACKNOWLEDGE | status::FAILED => true,
            status::DRIVER => self.status & status::ACKNOWLEDGE != 0,
            status::FEATURES_OK => self.status & status::DRIVER != 0 && self.features_are_good(),
            status::DRIVER_OK => self.status & status::FEATURES_OK != 0,
            // Nothing, or several steps in one.
            _ => false,
        };
        if !allowed {
            return;
        }
        self.status |= gained;
        if gained == status::DRIVER_OK {
            self.activate();
        }
    }

    fn features_are_good(&self) -> bool {
        self.driver_features & !self.offered() == 0 && self.driver_features & FEATURE_VERSION_1 != 0
    }

    fn activate(&mut self) {
        let event_idx = self.driver_features & FEATURE_EVENT_IDX != 0;
        let queues: Result<Vec<Queue>, Fault> = (0..)
            .zip(&self.setups)
            .map(|(number, setup)| setup.build(number, event_idx, &self.memory))
            .collect();
        match queues {
            Ok(queues) => {
                self.queues = queues;
                self.call(|device, queues| device.activate(queues));
            }
            Err(fault) => self.stop(fault),
        }
    }

    fn notify(&mut self, queue: u32) {
        let index = u16::try_from(queue).ok();
        let index = index.filter(|index| usize::from(*index) < self.setups.len());
        if let Some(index) = index.filter(|_| self.is_active()) {
            self.call(|device, queues| device.notified(index, queues));
        }
    }

    fn setup(&self) -> Option<&QueueSetup> {
        let index = usize::try_from(self.queue).ok()?;
        self.setups.get(index)
    }

    /// The selected queue, if its driver may change it now.
    fn open_setup(&mut self) -> Option<&mut QueueSetup> {
        let open = status::FEATURES_OK;
        if self.status & (open | status::DRIVER_OK | status::FAILED) != open {
            return None;
        }
        let index = usize::try_from(self.queue).ok()?;
        self.setups.get_mut(index).filter(|setup| !setup.ready)
    }

    fn set_queue_ready(&mut self, value: u32) {
        match value {
            1 => {
                if let Some(setup) = self.open_setup() {
                    setup.ready = true;
                }
            }
            0 => {
                let Ok(index) = usize::try_from(self.queue) else {
                    return;
                };
                if let Some(setup) = self.setups.get_mut(index) {
                    setup.ready = false;
                }
                if let Some(queue) = self.queues.get_mut(index) {
                    queue.set_ready(false);
                }
            }
            _ => {}
        }
    }
}

impl<D: VirtioDevice> BusDevice for Transport<D> {
    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
        if let Some(offset) = offset.checked_sub(CONFIG) {
            let config = self.device.config();
            let rest = usize::try_from(offset).ok().and_then(|at| config.get(at..));
            fill(data, rest.unwrap_or_default());
        } else if data.len() == 4 {
            fill(data, &self.read_register(offset).to_le_bytes());
        } else {
            data.fill(0);
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError> {
        // No device here has a configuration that its driver may write.
        if let &[a, b, c, d] = data {
            self.write_register(offset, u32::from_le_bytes([a, b, c, d]));
        }
        Ok(())
    }
}

impl<D: VirtioDevice> HostEvents for Transport<D> {
    fn ready(&mut self, token: u32, events: EventSet) {
        if token == AGAIN_TOKEN {
            self.call_again();
        } else if self.is_active() {
            self.call(|device, queues| device.ready(token, events, queues));
        } else {
            self.device.ready_inactive(token, events);
        }
    }
}

#[cfg(test)]
mod tests;
