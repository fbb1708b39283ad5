//! Setting a machine that has never run to an image.
//!
//! Order, and why: what could not go on here is refused before anything is set; memory first, since
//! devices look into their queues when they are set; vCPUs before devices, whose pending interrupts go to
//! local APICs; the clock of the guest before it runs; a new generation last, which the guest is told by an
//! interrupt.

use std::io;

use vm_memory::GuestMemoryError;

use super::compat::{Mismatch, check_features};
use super::image::{Image, offset};
use super::ram::{Ram, bytes};
use super::state::StateError;
use crate::machine::host::Host;
use crate::machine::overlay::overlay;
use crate::machine::vcpu::VcpuStateError;
use crate::machine::vm::VmError;
use crate::machine::{DevicesRestoreError, Machine};

/// Why a machine was not set to an image. It is of no use then.
#[derive(Debug, thiserror::Error)]
pub enum RestoreImageError {
    /// It ran before, or was set to an image before.
    #[error("only a machine that has never run can be set to an image")]
    NotEmpty,
    /// The host is another one.
    #[error("the image cannot go on here")]
    Mismatch(#[from] Mismatch),
    /// The machine has another size.
    #[error("the image is of a machine with {saved} {what}, this one has {here}")]
    OtherSize {
        /// Of what.
        what: &'static str,
        /// In the image.
        saved: u32,
        /// Here.
        here: u32,
    },
    /// The state is none.
    #[error(transparent)]
    State(#[from] StateError),
    /// Its memory cannot be mapped.
    #[error("the image's memory cannot be mapped")]
    Map(#[source] io::Error),
    /// A vCPU does not take it.
    #[error("a vCPU cannot be set")]
    Vcpu(#[from] VcpuStateError),
    /// KVM does not take it.
    #[error("the machine cannot be set")]
    Vm(#[from] VmError),
    /// A device does not take it.
    #[error("a device cannot be set")]
    Devices(#[from] DevicesRestoreError),
    /// There is no new generation.
    #[error("the machine gets no new generation")]
    Generation(#[from] GuestMemoryError),
    /// The host gives no random numbers.
    #[error("the host gives no random numbers")]
    Random(#[source] io::Error),
}

impl Machine {
    /// Sets a machine that was made empty ([`Machine::empty`]) to an image. It is held; it goes on where
    /// the image was taken when it is resumed.
    ///
    /// # Errors
    /// [`RestoreImageError`]: then the machine is of no use.
    pub fn restore(&mut self, image: &Image, host: &Host) -> Result<(), RestoreImageError> {
        if !self.is_empty() {
            return Err(RestoreImageError::NotEmpty);
        }
        let parts = self.parts();
        let manifest = image.manifest();
        manifest.host.check(&parts.host)?;
        let same = |what, saved: u32, here: u32| match saved == here {
            true => Ok(()),
            false => Err(RestoreImageError::OtherSize { what, saved, here }),
        };
        let count = |len: usize| u32::try_from(len).unwrap_or(u32::MAX);
        same("MiB of memory", manifest.ram_mib, parts.ram.mib())?;
        same("vCPUs", u32::from(manifest.vcpus), count(parts.vcpus.len()))?;
        let state = image.state()?;
        same("MiB of memory", state.ram_mib, parts.ram.mib())?;
        same("vCPUs", count(state.vcpus.len()), count(parts.vcpus.len()))?;
        for vcpu in &state.vcpus {
            check_features(&vcpu.cpuid, host.cpuid().as_slice())?;
        }
        let ram = Ram::new(parts.vm.memory());
        for extent in &manifest.extents {
            let file = &image.files()[extent.file];
            for (part, address) in ram.parts(extent.run()) {
                overlay(
                    ram.memory(),
                    address,
                    bytes(part.len),
                    file,
                    offset(part.start),
                )
                .map_err(RestoreImageError::Map)?;
            }
        }
        // What was written before, there is no more.
        parts.vm.take_log()?;
        drop(ram.take_own_writes());
        parts.restore_vcpus(&state.vcpus)?;
        parts.vm.set_clock(state.clock)?;
        self.restore_devices(state.devices)?;
        let mut generation = [0; 16];
        getrandom::fill(&mut generation)
            .map_err(|error| RestoreImageError::Random(io::Error::other(error)))?;
        self.set_generation(generation)?;
        self.fill();
        Ok(())
    }
}
