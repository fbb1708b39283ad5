//! Building a machine: everything of it in the one order that works.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};

use super::devices::{Devices, DevicesConfig, DevicesError, Wiring};
use super::gate::Gate;
use super::host::Host;
use super::layout;
use super::memory::{self, MapError, RamSize, VcpuCount};
use super::vcpu::{Buses, Vcpu, install_kick_handler};
use super::vm::{Vm, VmError};
use super::{Machine, Parts, lock};
use crate::boot::{self, BootError, Payload};
use crate::devices::bus::Bus;
use crate::devices::events::EventLoop;
use crate::devices::serial::SharedConsole;
use crate::snapshot::compat::Compat;

/// What a machine consists of.
#[derive(Debug)]
pub struct Config {
    /// How much RAM.
    pub ram: RamSize,
    /// How many vCPUs.
    pub vcpus: VcpuCount,
    /// What it boots.
    pub payload: Payload,
    /// Where its serial port leads.
    pub console: SharedConsole,
    /// Its other devices.
    pub devices: DevicesConfig,
}

/// Why a machine could not be built.
#[derive(Debug, thiserror::Error)]
pub enum BuildError {
    /// No memory.
    #[error(transparent)]
    Memory(#[from] MapError),
    /// KVM refused something.
    #[error("the virtual machine cannot be built")]
    Vm(#[from] VmError),
    /// Nothing to boot.
    #[error("the machine cannot boot")]
    Boot(#[from] BootError),
    /// The devices cannot be.
    #[error("the machine's devices cannot be built")]
    Devices(#[from] DevicesError),
    /// The system gives no descriptors, signals or random numbers.
    #[error("the host gives no resources for a machine")]
    Host(#[from] std::io::Error),
}

impl BuildError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Memory(_) => Some("give the machine less memory"),
            Self::Boot(error) => Some(error.hint()),
            Self::Vm(_) => Some("run `floe doctor`"),
            Self::Devices(_) | Self::Host(_) => None,
        }
    }
}

/// A machine without anything to run, that an image is put into.
#[derive(Debug)]
pub struct EmptyConfig {
    /// How much RAM.
    pub ram: RamSize,
    /// How many vCPUs.
    pub vcpus: VcpuCount,
    /// Where its serial port leads.
    pub console: SharedConsole,
    /// Its other devices.
    pub devices: DevicesConfig,
}

impl Machine {
    /// Builds a machine that is ready to start.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn new(host: &Host, config: Config) -> Result<Self, BuildError> {
        let mut payload = config.payload;
        let rest = EmptyConfig {
            ram: config.ram,
            vcpus: config.vcpus,
            console: config.console,
            devices: config.devices,
        };
        let mut machine = Self::assemble(host, rest, false)?;
        let parts = &machine.parts;
        let entry = boot::load(
            parts.vm.memory(),
            config.ram,
            config.vcpus,
            parts.devices.windows(),
            &mut payload,
        )?;
        lock(&parts.vcpus[0]).set_entry(entry)?;
        let mut generation = [0; 16];
        getrandom::fill(&mut generation).map_err(std::io::Error::other)?;
        machine
            .write_generation(generation)
            .map_err(|source| BootError::Write {
                what: "the generation id",
                source,
            })?;
        machine.fill();
        Ok(machine)
    }

    /// Builds a machine that an image can be put into ([`Self::restore`]), before or after it is started.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn empty(host: &Host, config: EmptyConfig) -> Result<Self, BuildError> {
        // Writes are logged from the beginning: what differs from the image is known without looking.
        Self::assemble(host, config, true)
    }

    fn assemble(host: &Host, config: EmptyConfig, logged: bool) -> Result<Self, BuildError> {
        install_kick_handler()?;
        let vm = Arc::new(Vm::new(host, memory::map(config.ram)?, logged)?);
        let gate = Arc::new(Gate::closed()?);
        let mut events = EventLoop::new()?;
        let mut buses = Buses {
            ports: Bus::default(),
            mmio: Bus::default(),
        };
        let devices = Devices::new(
            config.devices,
            &mut Wiring {
                memory: vm.memory(),
                gate: &gate,
                events: &mut events,
                buses: &mut buses,
                msi: Arc::clone(&vm) as _,
                console: &config.console,
            },
        )?;
        let vcpus = (0..config.vcpus.get())
            .map(|id| Vcpu::new(host, &vm, id, config.vcpus))
            .collect::<Result<Vec<_>, _>>()?;
        let tsc_khz = vcpus[0].tsc_khz()?;
        let parts = Parts {
            gate,
            waker: events.waker(),
            buses: Arc::new(buses),
            event_line: devices.line(layout::EVENT_IRQ),
            devices,
            console: config.console,
            vcpus: vcpus.into_iter().map(Mutex::new).collect(),
            vcpu_threads: Mutex::default(),
            exits: AtomicU64::new(0),
            vm,
            ram: config.ram,
            host: Compat::of(host, tsc_khz),
        };
        Ok(Self {
            events: Some(events),
            empty: true,
            event_thread: None,
            parts: Arc::new(parts),
        })
    }
}
