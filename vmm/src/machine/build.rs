//! Building a machine: everything of it in the one order that works.

use std::sync::Arc;

use super::Machine;
use super::devices::{Devices, DevicesConfig, DevicesError, Wiring};
use super::gate::Gate;
use super::host::Host;
use super::layout;
use super::memory::{self, MapError, RamSize, VcpuCount};
use super::vcpu::{Buses, Vcpu, install_kick_handler};
use super::vm::{Vm, VmError};
use crate::boot::{self, BootError, Payload};
use crate::devices::bus::Bus;
use crate::devices::events::EventLoop;
use crate::devices::serial::SharedConsole;

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

impl Machine {
    /// Builds a machine that is ready to start.
    ///
    /// # Errors
    /// [`BuildError`].
    pub fn new(host: &Host, mut config: Config) -> Result<Self, BuildError> {
        install_kick_handler()?;
        let vm = Arc::new(Vm::new(host, memory::map(config.ram)?)?);
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
        let entry = boot::load(
            vm.memory(),
            config.ram,
            config.vcpus,
            devices.windows(),
            &mut config.payload,
        )?;
        let vcpus = (0..config.vcpus.get())
            .map(|id| Vcpu::new(host, &vm, id, config.vcpus))
            .collect::<Result<Vec<_>, _>>()?;
        vcpus[0].set_entry(entry)?;

        let machine = Self {
            vcpu_threads: Vec::new(),
            event_thread: None,
            waker: events.waker(),
            waiting: Some((vcpus, events)),
            gate,
            buses: Arc::new(buses),
            event_line: devices.line(layout::EVENT_IRQ),
            devices,
            console: config.console,
            vm,
        };
        let mut generation = [0; 16];
        getrandom::fill(&mut generation).map_err(std::io::Error::other)?;
        machine
            .write_generation(generation)
            .map_err(|source| BootError::Write {
                what: "the generation id",
                source,
            })?;
        Ok(machine)
    }
}
