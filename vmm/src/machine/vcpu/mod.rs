//! A virtual processor: what it is, how it starts, how it runs and how it is interrupted.

mod cpuid;
mod kick;
mod registers;
mod run;
mod state;

use kvm_bindings::CpuId;
use kvm_ioctls::VcpuFd;

pub use kick::install_kick_handler;
pub(super) use kick::kick;
pub use registers::{Entry, GDT};
pub(super) use run::{Buses, Runner};
pub use state::{VcpuState, VcpuStateError};

use super::host::Host;
use super::memory::VcpuCount;
use super::vm::{Vm, VmError};

/// A vCPU that does not run.
#[derive(Debug)]
pub struct Vcpu {
    fd: VcpuFd,
    id: u8,
    /// What it says of itself.
    cpuid: CpuId,
    /// The model-specific registers that are saved.
    msrs: Vec<u32>,
}

impl Vcpu {
    /// Makes the vCPU `id` (which is also its APIC id) of a machine that has `count`.
    ///
    /// # Errors
    /// [`VmError`] names the step that KVM refused.
    pub fn new(host: &Host, vm: &Vm, id: u8, count: VcpuCount) -> Result<Self, VmError> {
        let fd = vm.create_vcpu(id)?;
        let cpuid = cpuid::of(host.cpuid(), id, count).map_err(VmError::at("so many features"))?;
        fd.set_cpuid2(&cpuid)
            .map_err(VmError::at("the processor features"))?;
        let msrs = state::present_msrs(&fd, host.msrs());
        Ok(Self {
            fd,
            id,
            cpuid,
            msrs,
        })
    }

    /// How fast its time-stamp counter counts, in kHz.
    ///
    /// # Errors
    /// [`VmError`] when KVM does not say.
    pub fn tsc_khz(&self) -> Result<u32, VmError> {
        self.fd
            .get_tsc_khz()
            .map_err(VmError::at("to show the rate of its counter"))
    }

    /// Sets the first vCPU to start at `entry`. The others wait for the guest to start them, as
    /// KVM makes them.
    ///
    /// # Errors
    /// [`VmError`] names the step that KVM refused.
    pub fn set_entry(&self, entry: Entry) -> Result<(), VmError> {
        registers::set(&self.fd, entry)
    }
}
