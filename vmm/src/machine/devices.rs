//! The devices of one machine: which there are, where they lie, and their saved form.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde::{Deserialize, Serialize};

use super::gate::Gate;
use super::layout;
use super::memory::GuestMemory;
use super::vcpu::Buses;
use crate::devices::bus::{Bus, RangeError};
use crate::devices::events::EventLoop;
use crate::devices::ioapic::{IoApic, IoApicState, IrqLine, MsiSink};
use crate::devices::power::{AcpiPower, I8042};
use crate::devices::serial::{SerialPort, SerialState, SharedConsole};
use crate::devices::virtio::VirtioDevice;
use crate::devices::virtio::fs::{Fs, FsState, FsTag};
use crate::devices::virtio::mmio::{RestoreError, Transport, TransportState};
use crate::devices::virtio::rng::{Rng, RngState};
use crate::devices::virtio::vsock::{HostSockets, Vsock, VsockError, VsockState};

/// Most file systems of one machine: the windows that the other devices leave.
pub const FS_MAX: usize = layout::VIRTIO_MAX - 2;

/// A file system for the guest.
#[derive(Debug)]
pub struct FsConfig {
    /// The name the guest mounts it by.
    pub tag: FsTag,
    /// The socket to its server.
    pub server: UnixStream,
}

/// Sockets between guest and host.
#[derive(Debug)]
pub struct VsockConfig {
    /// The guest's address, 3 or more.
    pub guest_cid: u32,
    /// The host's side.
    pub host: HostSockets,
}

/// What a machine has beyond its console and random numbers.
#[derive(Debug, Default)]
pub struct DevicesConfig {
    /// Sockets, if any.
    pub vsock: Option<VsockConfig>,
    /// File systems, in the order in which the guest finds them.
    pub fs: Vec<FsConfig>,
}

/// Why a machine's devices could not be built.
#[derive(Debug, thiserror::Error)]
pub enum DevicesError {
    /// Two devices in one place: a mistake of this program.
    #[error(transparent)]
    Range(#[from] RangeError),
    /// The vsock device cannot be.
    #[error(transparent)]
    Vsock(#[from] VsockError),
    /// There are too many file systems.
    #[error("a machine has at most {FS_MAX} file systems, not {asked}")]
    TooManyFs {
        /// How many were asked for.
        asked: usize,
    },
    /// The system gives no descriptors.
    #[error("the host gives no descriptors for devices")]
    Host(#[from] std::io::Error),
}

/// The saved form of every device. Connections of the vsock device and the console's log are not
/// part of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DevicesState {
    /// The serial port.
    pub serial: SerialState,
    /// The IOAPIC.
    pub ioapic: IoApicState,
    /// The entropy device.
    pub rng: TransportState<RngState>,
    /// The socket device, if there is one.
    pub vsock: Option<TransportState<VsockState>>,
    /// The file systems in order.
    pub fs: Vec<TransportState<FsState>>,
}

/// Why saved devices are refused.
#[derive(Debug, thiserror::Error)]
pub enum DevicesRestoreError {
    /// The machine has other devices.
    #[error("the saved machine has other devices than this one")]
    OtherDevices,
    /// A virtio device does not fit.
    #[error("the saved {device} does not fit")]
    Virtio {
        /// Which device.
        device: &'static str,
        /// Why not.
        source: RestoreError,
    },
    /// The serial port does not fit.
    #[error("the saved serial port does not fit")]
    Serial(#[source] std::io::Error),
}

type Shared<T> = Arc<Mutex<T>>;

/// The devices.
pub(crate) struct Devices {
    pub(super) serial: Shared<SerialPort>,
    ioapic: Shared<IoApic>,
    rng: Shared<Transport<Rng>>,
    vsock: Option<Shared<Transport<Vsock>>>,
    fs: Vec<Shared<Transport<Fs>>>,
}

/// Everything that devices are attached to.
pub(super) struct Wiring<'a> {
    pub(super) memory: &'a GuestMemory,
    pub(super) gate: &'a Arc<Gate>,
    pub(super) events: &'a mut EventLoop,
    pub(super) buses: &'a mut Buses,
    pub(super) msi: Arc<dyn MsiSink>,
    pub(super) console: &'a SharedConsole,
}

impl Devices {
    /// Builds all devices and attaches them.
    pub(super) fn new(
        config: DevicesConfig,
        wiring: &mut Wiring<'_>,
    ) -> Result<Self, DevicesError> {
        if config.fs.len() > FS_MAX {
            return Err(DevicesError::TooManyFs {
                asked: config.fs.len(),
            });
        }
        let ioapic = shared(IoApic::new(Arc::clone(&wiring.msi)));
        wiring.buses.mmio.insert(
            layout::IOAPIC,
            layout::IOAPIC_SIZE,
            Arc::clone(&ioapic) as _,
        )?;
        let serial = serial(&ioapic, wiring)?;
        power(wiring)?;

        let mut windows = Windows {
            ioapic: &ioapic,
            next: 0,
        };
        let rng = windows.attach(wiring, |_| Ok(Rng))?;
        let vsock = config.vsock.map(|vsock| {
            windows.attach(wiring, |registrar| {
                Ok(Vsock::new(vsock.guest_cid, vsock.host, registrar)?)
            })
        });
        let vsock = vsock.transpose()?;
        let mut fs = Vec::new();
        for config in config.fs {
            let device = windows.attach(wiring, |registrar| {
                Ok(Fs::new(config.tag, config.server, registrar)?)
            })?;
            fs.push(device);
        }
        Ok(Self {
            serial,
            ioapic,
            rng,
            vsock,
            fs,
        })
    }

    /// How many virtio-mmio windows are taken.
    pub(super) fn windows(&self) -> usize {
        1 + usize::from(self.vsock.is_some()) + self.fs.len()
    }

    /// A line of the machine's IOAPIC.
    pub(super) fn line(&self, pin: u8) -> IrqLine {
        IrqLine::new(Arc::clone(&self.ioapic), pin)
    }

    /// The virtio devices that stand still after a fault, and why.
    pub(super) fn faults(&self) -> Vec<(&'static str, String)> {
        let mut faults = Vec::new();
        let mut note = |device, fault: Option<String>| {
            faults.extend(fault.map(|fault| (device, fault)));
        };
        note("rng", fault_of(&self.rng));
        if let Some(vsock) = &self.vsock {
            note("vsock", fault_of(vsock));
        }
        for fs in &self.fs {
            note("fs", fault_of(fs));
        }
        faults
    }

    /// Requests to file system servers that have no answer yet.
    pub(crate) fn fs_in_flight(&self) -> usize {
        let in_flight = |fs: &Shared<Transport<Fs>>| lock(fs).device().in_flight();
        self.fs.iter().map(in_flight).sum()
    }

    /// Requests that were sent to servers.
    pub(super) fn fs_requests(&self) -> u64 {
        let sent = |fs: &Shared<Transport<Fs>>| lock(fs).device().requests();
        self.fs.iter().map(sent).sum()
    }

    /// Whether nothing is under way between the guest and the servers of its file systems, FORGETs
    /// included, which have no answer.
    pub(crate) fn fs_is_quiet(&self) -> bool {
        self.fs.iter().all(|fs| lock(fs).device().is_quiet())
    }

    pub(crate) fn save(&self) -> DevicesState {
        DevicesState {
            serial: lock(&self.serial).save(),
            ioapic: lock(&self.ioapic).save(),
            rng: lock(&self.rng).save(),
            vsock: self.vsock.as_ref().map(|vsock| lock(vsock).save()),
            fs: self.fs.iter().map(|fs| lock(fs).save()).collect(),
        }
    }

    pub(super) fn restore(&self, state: DevicesState) -> Result<(), DevicesRestoreError> {
        if state.vsock.is_some() != self.vsock.is_some() || state.fs.len() != self.fs.len() {
            return Err(DevicesRestoreError::OtherDevices);
        }
        let virtio = |device| move |source| DevicesRestoreError::Virtio { device, source };
        lock(&self.rng).restore(state.rng).map_err(virtio("rng"))?;
        if let (Some(vsock), Some(state)) = (&self.vsock, state.vsock) {
            lock(vsock).restore(state).map_err(virtio("vsock"))?;
        }
        for (fs, state) in self.fs.iter().zip(state.fs) {
            lock(fs).restore(state).map_err(virtio("fs"))?;
        }
        lock(&self.serial)
            .restore(&state.serial)
            .map_err(DevicesRestoreError::Serial)?;
        lock(&self.ioapic).restore(state.ioapic);
        lock(&self.rng).kick();
        self.vsock.iter().for_each(|vsock| lock(vsock).kick());
        self.fs.iter().for_each(|fs| lock(fs).kick());
        Ok(())
    }
}

/// Hands out virtio-mmio windows one after the other.
struct Windows<'a> {
    ioapic: &'a Shared<IoApic>,
    next: u8,
}

impl Windows<'_> {
    fn attach<D: VirtioDevice + 'static>(
        &mut self,
        wiring: &mut Wiring<'_>,
        make: impl FnOnce(crate::devices::events::Registrar) -> Result<D, DevicesError>,
    ) -> Result<Shared<Transport<D>>, DevicesError> {
        let registrar = wiring.events.registrar();
        let line = IrqLine::new(Arc::clone(self.ioapic), layout::VIRTIO_IRQ + self.next);
        let device = make(registrar.clone())?;
        let mut transport = Transport::new(device, wiring.memory.clone(), line);
        transport.register(&registrar)?;
        let transport = shared(transport);
        wiring.events.attach(Arc::clone(&transport) as _);
        wiring.buses.mmio.insert(
            layout::VIRTIO_MMIO + u64::from(self.next) * layout::VIRTIO_MMIO_SIZE,
            layout::VIRTIO_MMIO_SIZE,
            Arc::clone(&transport) as _,
        )?;
        self.next += 1;
        Ok(transport)
    }
}

fn serial(
    ioapic: &Shared<IoApic>,
    wiring: &mut Wiring<'_>,
) -> Result<Shared<SerialPort>, RangeError> {
    let line = IrqLine::new(Arc::clone(ioapic), layout::SERIAL_IRQ);
    let serial = shared(SerialPort::new(line, wiring.console.clone()));
    wiring.buses.ports.insert(
        u64::from(layout::SERIAL_PORT),
        u64::from(layout::SERIAL_PORTS),
        Arc::clone(&serial) as _,
    )?;
    Ok(serial)
}

fn power(wiring: &mut Wiring<'_>) -> Result<(), RangeError> {
    let ports: &mut Bus = &mut wiring.buses.ports;
    let keyboard = I8042::new(Arc::clone(wiring.gate) as _);
    ports.insert(u64::from(layout::I8042_PORT), 1, shared(keyboard))?;
    let power = AcpiPower::new(Arc::clone(wiring.gate) as _);
    ports.insert(
        u64::from(layout::POWER_PORT),
        u64::from(layout::POWER_PORTS),
        shared(power),
    )
}

fn fault_of<D: VirtioDevice>(device: &Shared<Transport<D>>) -> Option<String> {
    lock(device).fault().map(ToString::to_string)
}

fn shared<T>(device: T) -> Shared<T> {
    Arc::new(Mutex::new(device))
}

fn lock<T>(device: &Shared<T>) -> MutexGuard<'_, T> {
    device.lock().unwrap_or_else(PoisonError::into_inner)
}
