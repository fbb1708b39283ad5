//! The saved form of the transport.

use serde::{Deserialize, Serialize};

use super::registers::{Selected, checked, status};
use super::{FEATURE_EVENT_IDX, Transport};
use crate::devices::virtio::VirtioDevice;

/// The registers and queues of a device, and the device's own state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportState<S> {
    /// Device status.
    pub status: u32,
    /// What the driver accepted.
    pub driver_features: u64,
    /// Which half of the device's features is shown.
    pub device_features_sel: u32,
    /// Which half of the driver's features is written.
    pub driver_features_sel: u32,
    /// The selected queue.
    pub queue_sel: u32,
    /// Why the interrupt was raised and not acknowledged.
    pub interrupt_status: u32,
    /// The queues: with indices if the device is active, else as far as the driver came.
    pub queues: Vec<QueueState>,
    /// The device's own.
    pub device: S,
}

/// A queue. As `virtio_queue::QueueState`, which cannot be written to a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct QueueState {
    /// Most entries.
    pub max_size: u16,
    /// Entries.
    pub size: u16,
    /// Whether the driver has set it up.
    pub ready: bool,
    /// The next entry of the available ring that the device takes.
    pub next_avail: u16,
    /// The next entry of the used ring that it fills.
    pub next_used: u16,
    /// Guest-physical address of the descriptor table.
    pub desc_table: u64,
    /// Guest-physical address of the available ring.
    pub avail_ring: u64,
    /// Guest-physical address of the used ring.
    pub used_ring: u64,
}

impl From<virtio_queue::QueueState> for QueueState {
    fn from(queue: virtio_queue::QueueState) -> Self {
        Self {
            max_size: queue.max_size,
            size: queue.size,
            ready: queue.ready,
            next_avail: queue.next_avail,
            next_used: queue.next_used,
            desc_table: queue.desc_table,
            avail_ring: queue.avail_ring,
            used_ring: queue.used_ring,
        }
    }
}

impl QueueState {
    fn to_queue(self, event_idx_enabled: bool) -> virtio_queue::QueueState {
        virtio_queue::QueueState {
            max_size: self.max_size,
            next_avail: self.next_avail,
            next_used: self.next_used,
            event_idx_enabled,
            size: self.size,
            ready: self.ready,
            desc_table: self.desc_table,
            avail_ring: self.avail_ring,
            used_ring: self.used_ring,
        }
    }
}

/// Why a saved device is refused.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Another number of queues, or one of another size.
    #[error("the saved device has other queues than this one")]
    OtherQueues,
    /// Features that this monitor does not offer.
    #[error(
        "the saved device uses the features {features:#x}, of which {missing:#x} are not offered"
    )]
    Features {
        /// What its driver accepted.
        features: u64,
        /// What is missing.
        missing: u64,
    },
    /// A status that no driver can bring about.
    #[error("the saved device has the impossible status {status:#x}")]
    Status {
        /// The status.
        status: u32,
    },
    /// A queue that lies outside of memory.
    #[error("the saved queue {queue} is not where a queue can be")]
    QueuePlace {
        /// Which queue.
        queue: usize,
    },
}

impl<D: VirtioDevice> Transport<D> {
    /// What has to be kept of the device. Called while the machine is paused.
    pub fn save(&self) -> TransportState<D::State> {
        let queues = if self.queues.is_empty() {
            let setups = self.setups.iter();
            setups
                .map(|setup| QueueState {
                    max_size: setup.max_size,
                    size: u16::try_from(setup.size).unwrap_or(0),
                    ready: setup.ready,
                    desc_table: setup.desc,
                    avail_ring: setup.driver,
                    used_ring: setup.device,
                    next_avail: 0,
                    next_used: 0,
                })
                .collect()
        } else {
            let queues = self.queues.iter();
            queues.map(|queue| queue.state().into()).collect()
        };
        TransportState {
            status: self.status,
            driver_features: self.driver_features,
            device_features_sel: self.device_features_high.0,
            driver_features_sel: self.driver_features_high.0,
            queue_sel: self.queue,
            interrupt_status: self.interrupt.status,
            queues,
            device: self.device.save(),
        }
    }

    /// Sets a new device to a saved state. The state is checked as a driver's writes are: nothing
    /// in it can make the monitor touch memory that is not the guest's.
    ///
    /// # Errors
    /// [`RestoreError`] says what does not fit; the device is unchanged then.
    pub fn restore(&mut self, state: TransportState<D::State>) -> Result<(), RestoreError> {
        let fits = state.queues.len() == self.setups.len()
            && self
                .setups
                .iter()
                .zip(&state.queues)
                .all(|(setup, queue)| setup.max_size == queue.max_size);
        if !fits {
            return Err(RestoreError::OtherQueues);
        }
        let missing = state.driver_features & !self.offered();
        if missing != 0 {
            return Err(RestoreError::Features {
                features: state.driver_features,
                missing,
            });
        }
        let active = state.status & status::DRIVER_OK != 0;
        if state.status & !status::ALL != 0 || active && state.status & status::FEATURES_OK == 0 {
            return Err(RestoreError::Status {
                status: state.status,
            });
        }
        let running = active && state.status & status::NEEDS_RESET == 0;
        let mut queues = Vec::new();
        if running {
            let event_idx = state.driver_features & FEATURE_EVENT_IDX != 0;
            for (number, queue) in state.queues.iter().enumerate() {
                let queue = checked(queue.to_queue(event_idx), &self.memory)
                    .ok_or(RestoreError::QueuePlace { queue: number })?;
                queues.push(queue);
            }
        }
        for (setup, queue) in self.setups.iter_mut().zip(&state.queues) {
            setup.size = u32::from(queue.size);
            setup.ready = queue.ready;
            setup.desc = queue.desc_table;
            setup.driver = queue.avail_ring;
            setup.device = queue.used_ring;
        }
        self.queues = queues;
        self.status = state.status;
        self.driver_features = state.driver_features;
        self.device_features_high = Selected(state.device_features_sel);
        self.driver_features_high = Selected(state.driver_features_sel);
        self.queue = state.queue_sel;
        self.interrupt.status = state.interrupt_status;
        self.device.restore(state.device);
        Ok(())
    }

    /// After a restore: has the event loop look into every queue once the machine runs, since what the
    /// driver put there just before the save may not have been seen, and raises an interrupt that was not
    /// acknowledged. Nothing of the guest's is read here: who restores a machine is not confined yet.
    pub fn kick(&mut self) {
        if self.is_active() {
            for index in 0..self.queues.len() {
                self.again.add(index);
            }
            self.wake_for_again();
        }
        if self.interrupt.status != 0 {
            self.interrupt.line.raise();
        }
    }
}
