//! Which device answers at which address.
//!
//! One bus for ports, one for memory-mapped registers. Invariants: ranges do not overlap, none is
//! empty, none wraps; a device sees only accesses that lie inside its range, as offsets from its
//! start, and never more than [`ACCESS_MAX`] bytes at once. What no device answers reads as all
//! ones and is otherwise ignored, as on real hardware.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Most bytes of one access: what KVM passes in one exit (`struct kvm_run`: `mmio.data`; ports are
/// passed one element at a time by [`Bus::read`]'s callers).
pub const ACCESS_MAX: usize = 8;

/// Why a device could not carry out an access. Nothing a guest does may cause one: the machine
/// ends with it.
#[derive(Debug, thiserror::Error)]
#[error("the device {device} failed")]
pub struct BusError {
    /// Which device.
    pub device: &'static str,
    /// The system's error.
    pub source: std::io::Error,
}

/// What a guest can reach by an address.
pub trait BusDevice: Send {
    /// Reads `data.len()` bytes at `offset` from the start of the device's range. Called by any
    /// vCPU, one at a time.
    ///
    /// # Errors
    /// [`BusError`] when the host failed, never because of what the guest asked.
    fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError>;

    /// Writes likewise.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError>;
}

/// Two devices were put in the same place.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("the range of {len:#x} at {start:#x} is empty, wraps or overlaps another device")]
pub struct RangeError {
    start: u64,
    len: u64,
}

/// A device as the bus holds it.
pub type SharedDevice = Arc<Mutex<dyn BusDevice>>;

/// An address space of devices.
#[derive(Default)]
pub struct Bus {
    // By first address.
    ranges: BTreeMap<u64, Range>,
}

struct Range {
    len: u64,
    device: SharedDevice,
}

impl std::fmt::Debug for Bus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let ranges = self.ranges.iter().map(|(start, range)| (start, range.len));
        f.debug_map().entries(ranges).finish()
    }
}

impl Bus {
    /// Puts `device` at `len` addresses from `start`.
    ///
    /// # Errors
    /// [`RangeError`] when the range is empty, wraps, or is taken in part.
    pub fn insert(&mut self, start: u64, len: u64, device: SharedDevice) -> Result<(), RangeError> {
        let refuse = RangeError { start, len };
        let Some(last) = len.checked_sub(1).and_then(|len| start.checked_add(len)) else {
            return Err(refuse);
        };
        let before = self.ranges.range(..=last).next_back();
        if before.is_some_and(|(other, range)| other + (range.len - 1) >= start) {
            return Err(refuse);
        }
        self.ranges.insert(start, Range { len, device });
        Ok(())
    }

    /// Reads from whatever is at `address`.
    ///
    /// # Errors
    /// The device's own.
    pub fn read(&self, address: u64, data: &mut [u8]) -> Result<(), BusError> {
        match self.find(address, data.len()) {
            Some((device, offset)) => lock(device).read(offset, data),
            None => {
                data.fill(0xff);
                Ok(())
            }
        }
    }

    /// Writes to whatever is at `address`.
    ///
    /// # Errors
    /// The device's own.
    pub fn write(&self, address: u64, data: &[u8]) -> Result<(), BusError> {
        match self.find(address, data.len()) {
            Some((device, offset)) => lock(device).write(offset, data),
            None => Ok(()),
        }
    }

    fn find(&self, address: u64, len: usize) -> Option<(&SharedDevice, u64)> {
        let (start, range) = self.ranges.range(..=address).next_back()?;
        let offset = address - start;
        let len = u64::try_from(len).ok()?;
        let fits = len > 0 && len <= ACCESS_MAX as u64 && len <= range.len.checked_sub(offset)?;
        fits.then_some((&range.device, offset))
    }
}

/// A device whose thread panicked is used on: its lock guards no invariant between accesses, and
/// the panic ends the machine anyway.
fn lock(device: &SharedDevice) -> std::sync::MutexGuard<'_, dyn BusDevice + 'static> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Answers a read with `value`, zero beyond its end, and cut to what was asked.
pub fn fill(data: &mut [u8], value: &[u8]) {
    let len = data.len().min(value.len());
    data[..len].copy_from_slice(&value[..len]);
    data[len..].fill(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Default)]
    struct Last(Vec<(u64, usize)>);

    impl BusDevice for Last {
        fn read(&mut self, offset: u64, data: &mut [u8]) -> Result<(), BusError> {
            self.0.push((offset, data.len()));
            data.fill(1);
            Ok(())
        }

        fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), BusError> {
            self.0.push((offset, data.len()));
            Ok(())
        }
    }

    #[test]
    fn a_device_sees_offsets_inside_its_range_only() {
        let device = Arc::new(Mutex::new(Last::default()));
        let mut bus = Bus::default();
        bus.insert(0x100, 0x10, device.clone()).unwrap();
        let mut data = [0; 4];
        bus.read(0x104, &mut data).unwrap();
        assert_eq!(data, [1; 4]);
        bus.write(0x10f, &[0]).unwrap();
        // Across the end, before the start, after the end, too long, of no length.
        bus.read(0x10e, &mut data).unwrap();
        assert_eq!(data, [0xff; 4]);
        bus.write(0xff, &[0]).unwrap();
        bus.write(0x110, &[0]).unwrap();
        bus.write(0x100, &[0; 16]).unwrap();
        bus.write(0x100, &[]).unwrap();
        bus.read(u64::MAX, &mut data).unwrap();
        assert_eq!(device.lock().unwrap().0, [(4, 4), (15, 1)]);
    }

    #[test]
    fn overlapping_and_impossible_ranges_are_refused() {
        let device: SharedDevice = Arc::new(Mutex::new(Last::default()));
        let mut bus = Bus::default();
        bus.insert(0x100, 0x10, device.clone()).unwrap();
        for (start, len) in [(0x100, 1), (0xff, 2), (0x10f, 1), (0, 0x1000), (5, 0)] {
            assert!(
                bus.insert(start, len, device.clone()).is_err(),
                "{start:#x}"
            );
        }
        assert!(bus.insert(u64::MAX, 2, device.clone()).is_err());
        bus.insert(u64::MAX, 1, device.clone()).unwrap();
        bus.insert(0x110, 1, device.clone()).unwrap();
        bus.insert(0xff, 1, device).unwrap();
    }
}
