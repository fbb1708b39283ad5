//! The registers of the transport (specification, section 4.2.2, table 4.1).

use virtio_queue::{Queue, QueueState, QueueT};

use super::{Transport, VENDOR};
use crate::devices::virtio::{Fault, VirtioDevice};
use crate::machine::memory::GuestMemory;

/// Bits of the device status (specification, section 2.1).
pub(super) mod status {
    pub(crate) const ACKNOWLEDGE: u32 = 1;
    pub(crate) const DRIVER: u32 = 2;
    pub(crate) const DRIVER_OK: u32 = 4;
    pub(crate) const FEATURES_OK: u32 = 8;
    pub(crate) const NEEDS_RESET: u32 = 64;
    pub(crate) const FAILED: u32 = 128;
    /// What a driver may set.
    pub(crate) const DRIVERS: u32 = ACKNOWLEDGE | DRIVER | DRIVER_OK | FEATURES_OK | FAILED;
    /// All there are.
    pub(crate) const ALL: u32 = DRIVERS | NEEDS_RESET;
}

const MAGIC: u64 = 0x000;
const VERSION: u64 = 0x004;
const DEVICE_ID: u64 = 0x008;
const VENDOR_ID: u64 = 0x00c;
const DEVICE_FEATURES: u64 = 0x010;
const DEVICE_FEATURES_SEL: u64 = 0x014;
const DRIVER_FEATURES: u64 = 0x020;
const DRIVER_FEATURES_SEL: u64 = 0x024;
const QUEUE_SEL: u64 = 0x030;
const QUEUE_SIZE_MAX: u64 = 0x034;
const QUEUE_SIZE: u64 = 0x038;
const QUEUE_READY: u64 = 0x044;
const QUEUE_NOTIFY: u64 = 0x050;
const INTERRUPT_STATUS: u64 = 0x060;
const INTERRUPT_ACK: u64 = 0x064;
const STATUS: u64 = 0x070;
const QUEUE_DESC_LOW: u64 = 0x080;
const QUEUE_DESC_HIGH: u64 = 0x084;
const QUEUE_DRIVER_LOW: u64 = 0x090;
const QUEUE_DRIVER_HIGH: u64 = 0x094;
const QUEUE_DEVICE_LOW: u64 = 0x0a0;
const QUEUE_DEVICE_HIGH: u64 = 0x0a4;
const SHM_FIRST: u64 = 0x0b0;
const SHM_LAST: u64 = 0x0bc;
const CONFIG_GENERATION: u64 = 0x0fc;

/// "virt" in ASCII.
const MAGIC_VALUE: u32 = u32::from_le_bytes(*b"virt");
const VERSION_VALUE: u32 = 2;

/// Which 32 of the feature bits a register shows: 0, 1, or none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Selected(pub(super) u32);

impl Selected {
    fn shift(self) -> Option<u32> {
        (self.0 < 2).then(|| self.0 * 32)
    }
}

/// What a driver wrote about a queue: claims, until [`Self::build`].
#[derive(Clone, Debug)]
pub(super) struct QueueSetup {
    pub(super) max_size: u16,
    pub(super) size: u32,
    pub(super) ready: bool,
    pub(super) desc: u64,
    pub(super) driver: u64,
    pub(super) device: u64,
}

impl QueueSetup {
    pub(super) fn new(max_size: u16) -> Self {
        Self {
            max_size,
            size: u32::from(max_size),
            ready: false,
            desc: 0,
            driver: 0,
            device: 0,
        }
    }

    /// The queue that was claimed, if there can be one.
    pub(super) fn build(
        &self,
        number: usize,
        event_idx: bool,
        memory: &GuestMemory,
    ) -> Result<Queue, Fault> {
        let wrong = Fault::QueuePlace { queue: number };
        let state = QueueState {
            max_size: self.max_size,
            size: if self.ready {
                u16::try_from(self.size).unwrap_or(0)
            } else {
                self.max_size
            },
            ready: self.ready,
            event_idx_enabled: event_idx,
            desc_table: self.desc,
            avail_ring: self.driver,
            used_ring: self.device,
            ..QueueState::default()
        };
        checked(state, memory).ok_or(wrong)
    }
}

/// The queue of a state that somebody claims.
pub(super) fn checked(state: QueueState, memory: &GuestMemory) -> Option<Queue> {
    if !state.ready {
        return Queue::new(state.max_size).ok();
    }
    let queue = Queue::try_from(state).ok()?;
    // An available ring at address 0 is "not set up" to virtio-queue.
    (state.avail_ring != 0 && queue.is_valid(memory)).then_some(queue)
}

impl<D: VirtioDevice> Transport<D> {
    pub(super) fn read_register(&self, offset: u64) -> u32 {
        match offset {
            MAGIC => MAGIC_VALUE,
            VERSION => VERSION_VALUE,
            DEVICE_ID => self.device.id(),
            VENDOR_ID => VENDOR,
            DEVICE_FEATURES => self
                .device_features_high
                .shift()
                .map_or(0, |shift| low(self.offered() >> shift)),
            QUEUE_SIZE_MAX => self.setup().map_or(0, |setup| u32::from(setup.max_size)),
            QUEUE_READY => self.setup().map_or(0, |setup| u32::from(setup.ready)),
            INTERRUPT_STATUS => self.interrupt.status,
            STATUS => self.status,
            // "No such region": all ones.
            SHM_FIRST..=SHM_LAST => u32::MAX,
            // No device here changes its configuration.
            CONFIG_GENERATION => 0,
            _ => 0,
        }
    }

    pub(super) fn write_register(&mut self, offset: u64, value: u32) {
        match offset {
            DEVICE_FEATURES_SEL => self.device_features_high = Selected(value),
            DRIVER_FEATURES_SEL => self.driver_features_high = Selected(value),
            DRIVER_FEATURES => self.set_driver_features(value),
            QUEUE_SEL => self.queue = value,
            QUEUE_READY => self.set_queue_ready(value),
            QUEUE_NOTIFY => self.notify(value),
            INTERRUPT_ACK => self.interrupt.status &= !value,
            STATUS => self.set_status(value),
            QUEUE_SIZE..=QUEUE_DEVICE_HIGH => self.set_queue(offset, value),
            _ => {}
        }
    }

    fn set_driver_features(&mut self, value: u32) {
        let open = self.status & (status::DRIVER | status::FEATURES_OK) == status::DRIVER;
        if let Some(shift) = self.driver_features_high.shift().filter(|_| open) {
            let kept = self.driver_features & !(u64::from(u32::MAX) << shift);
            self.driver_features = kept | u64::from(value) << shift;
        }
    }

    fn set_queue(&mut self, offset: u64, value: u32) {
        let Some(setup) = self.open_setup() else {
            return;
        };
        match offset {
            QUEUE_SIZE => setup.size = value,
            QUEUE_DESC_LOW => set_low(&mut setup.desc, value),
            QUEUE_DESC_HIGH => set_high(&mut setup.desc, value),
            QUEUE_DRIVER_LOW => set_low(&mut setup.driver, value),
            QUEUE_DRIVER_HIGH => set_high(&mut setup.driver, value),
            QUEUE_DEVICE_LOW => set_low(&mut setup.device, value),
            QUEUE_DEVICE_HIGH => set_high(&mut setup.device, value),
            _ => {}
        }
    }
}

fn low(value: u64) -> u32 {
    let [a, b, c, d, ..] = value.to_le_bytes();
    u32::from_le_bytes([a, b, c, d])
}

fn set_low(target: &mut u64, value: u32) {
    *target = *target & !u64::from(u32::MAX) | u64::from(value);
}

fn set_high(target: &mut u64, value: u32) {
    *target = *target & u64::from(u32::MAX) | u64::from(value) << 32;
}
