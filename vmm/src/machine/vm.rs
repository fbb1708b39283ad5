//! The KVM virtual machine: memory slots and interrupt controllers.
//!
//! Invariants: the guest RAM of every slot outlives the machine, since [`Vm`] owns both and drops
//! the machine first; slots never overlap, and nothing of them changes but whether writes are logged;
//! they are set *before* the interrupt
//! controllers, because the other order costs some 7 ms (the kernel then waits for readers of the
//! interrupt routing).
//!
//! The interrupt controllers are split (`KVM_CAP_SPLIT_IRQCHIP`): the local APICs are in the
//! kernel, where inter-processor interrupts and timers must be fast; the IOAPIC is the device in
//! [`crate::devices::ioapic`]; there is no PIC and no PIT, which a hardware-reduced ACPI machine
//! does not have. Besides building faster, this keeps the kernel's least-used emulation out of a
//! guest's reach, and the IOAPIC's state is plain data to save.

#![expect(unsafe_code, reason = "memory slots hand host addresses to the kernel")]

use kvm_bindings::{
    KVM_CAP_SPLIT_IRQCHIP, KVM_MEM_LOG_DIRTY_PAGES, kvm_clock_data, kvm_enable_cap, kvm_msi,
    kvm_userspace_memory_region,
};
use kvm_ioctls::{VcpuFd, VmFd};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

use super::host::Host;
use super::layout::{IOAPIC_PINS, KVM_IDENTITY_MAP, KVM_TSS};
use super::memory::GuestMemory;
use crate::devices::ioapic::MsiSink;

/// Why a virtual machine could not be built.
#[derive(Debug, thiserror::Error)]
#[error("KVM refuses {step}")]
pub struct VmError {
    step: &'static str,
    source: kvm_ioctls::Error,
}

impl VmError {
    pub(super) fn at(step: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |source| Self { step, source }
    }
}

/// A virtual machine with its RAM and interrupt controllers, without vCPUs.
#[derive(Debug)]
pub struct Vm {
    // First: dropped before the memory that its slots point to.
    fd: VmFd,
    memory: GuestMemory,
}

impl Vm {
    /// Builds a machine over `memory`. `logged`: KVM keeps account of what its guest writes from the
    /// beginning.
    ///
    /// # Errors
    /// [`VmError`] names the step that KVM refused.
    pub fn new(host: &Host, memory: GuestMemory, logged: bool) -> Result<Self, VmError> {
        let fd = host.create_vm().map_err(VmError::at("a new machine"))?;
        let vm = Self { fd, memory };
        vm.set_slots(if logged { KVM_MEM_LOG_DIRTY_PAGES } else { 0 })?;
        vm.fd
            .set_identity_map_address(KVM_IDENTITY_MAP)
            .map_err(VmError::at("the identity map"))?;
        vm.fd
            .set_tss_address(usize::try_from(KVM_TSS).unwrap_or(usize::MAX))
            .map_err(VmError::at("the task state"))?;
        vm.split_irqchip()?;
        Ok(vm)
    }

    /// The RAM of this machine.
    #[must_use]
    pub fn memory(&self) -> &GuestMemory {
        &self.memory
    }

    pub(super) fn create_vcpu(&self, id: u8) -> Result<VcpuFd, VmError> {
        self.fd
            .create_vcpu(u64::from(id))
            .map_err(VmError::at("a vCPU"))
    }

    /// Has KVM keep account of the pages that the guest writes to, from now on. Makes each page's next
    /// write fault.
    pub(crate) fn log_writes(&self) -> Result<(), VmError> {
        self.set_slots(KVM_MEM_LOG_DIRTY_PAGES)
    }

    /// The pages that the guest wrote to since the last call, a bit each, by region of
    /// [`Self::memory`]; their next writes count again.
    pub(crate) fn take_log(&self) -> Result<Vec<Vec<u64>>, VmError> {
        let regions = (0..).zip(self.memory.iter());
        let log = |(slot, region): (u32, &<GuestMemory as GuestMemoryBackend>::R)| {
            let len = usize::try_from(region.len()).unwrap_or(usize::MAX);
            self.fd.get_dirty_log(slot, len)
        };
        regions
            .map(log)
            .collect::<Result<_, _>>()
            .map_err(VmError::at("the log of written pages"))
    }

    /// What the guest's paravirtual clock shows, in nanoseconds.
    pub(crate) fn clock(&self) -> Result<u64, VmError> {
        let clock = self.fd.get_clock().map_err(VmError::at("the clock"))?;
        Ok(clock.clock)
    }

    /// Sets that clock. It goes on from there when a vCPU runs.
    pub(crate) fn set_clock(&self, nanoseconds: u64) -> Result<(), VmError> {
        // No flags: not what time it is meanwhile, but what time it was.
        let clock = kvm_clock_data {
            clock: nanoseconds,
            ..Default::default()
        };
        self.fd.set_clock(&clock).map_err(VmError::at("the clock"))
    }

    fn set_slots(&self, flags: u32) -> Result<(), VmError> {
        for (slot, region) in (0..).zip(self.memory.iter()) {
            let slot = kvm_userspace_memory_region {
                slot,
                flags,
                guest_phys_addr: region.start_addr().0,
                memory_size: region.len(),
                userspace_addr: region.as_ptr() as u64,
            };
            // The guest may change these bytes at any time: the only accesses in this process go
            // through vm-memory, which makes no references to them.
            // SAFETY: the range is one mapping of `self.memory`, exactly `len` long, that overlaps
            // no other; `Vm` owns it and drops it after `fd`.
            unsafe { self.fd.set_user_memory_region(slot) }
                .map_err(VmError::at("a memory slot"))?;
        }
        Ok(())
    }

    fn split_irqchip(&self) -> Result<(), VmError> {
        let mut split = kvm_enable_cap {
            cap: KVM_CAP_SPLIT_IRQCHIP,
            ..Default::default()
        };
        split.args[0] = u64::from(IOAPIC_PINS);
        self.fd
            .enable_cap(&split)
            .map_err(VmError::at("a split interrupt controller"))
    }
}

impl MsiSink for Vm {
    fn send(&self, address: u32, data: u32) -> std::io::Result<()> {
        let msi = kvm_msi {
            address_lo: address,
            data,
            ..Default::default()
        };
        // The answer 0 means that no vCPU took it (the guest blocked it): as on real hardware, the
        // message is gone.
        self.fd.signal_msi(msi).map(drop).map_err(Into::into)
    }
}
