//! Saving a vCPU that is held, and setting another one to what was saved.
//!
//! The order is part of the contract with KVM (`Documentation/virt/kvm/api.rst`); each step below says
//! why it is where it is. Invariant: what was saved is restored whole or not at all: a register that
//! KVM refuses is an error that names it, never left out.

#![expect(
    unsafe_code,
    reason = "KVM reads as many bytes of extended state as the processor has"
)]

use kvm_bindings::{
    CpuId, Msrs, kvm_cpuid_entry2, kvm_debugregs, kvm_lapic_state, kvm_mp_state, kvm_msr_entry,
    kvm_regs, kvm_sregs, kvm_vcpu_events, kvm_xcrs, kvm_xsave,
};
use kvm_ioctls::VcpuFd;
use serde::{Deserialize, Serialize};

use super::Vcpu;

/// The time-stamp counter (Intel SDM volume 4).
const MSR_TSC: u32 = 0x10;
/// When the local APIC's timer is due, in units of [`MSR_TSC`].
const MSR_TSC_DEADLINE: u32 = 0x6e0;

/// Everything of a vCPU that its guest can tell.
#[derive(Debug, Serialize, Deserialize)]
pub struct VcpuState {
    /// What it says of itself.
    pub cpuid: Vec<kvm_cpuid_entry2>,
    /// Whether it runs, halts, or was never started.
    pub mp_state: kvm_mp_state,
    /// General registers.
    pub regs: kvm_regs,
    /// Segments, control registers, and where the local APIC is.
    pub sregs: kvm_sregs,
    /// Floating point and vector registers, as the processor lays them out.
    pub xsave: kvm_xsave,
    /// Which of these there are.
    pub xcrs: kvm_xcrs,
    /// Debug registers.
    pub debug_regs: kvm_debugregs,
    /// The local APIC.
    pub lapic: kvm_lapic_state,
    /// How fast its time-stamp counter counts, in kHz.
    pub tsc_khz: u32,
    /// Model-specific registers, in the order in which they are set.
    pub msrs: Vec<kvm_msr_entry>,
    /// Exceptions and interrupts that are on their way.
    pub events: kvm_vcpu_events,
}

/// Why a vCPU could not be saved, or set to what was saved.
#[derive(Debug, thiserror::Error)]
pub enum VcpuStateError {
    /// KVM refuses a part of it.
    #[error("KVM refuses {action} {part} of a vCPU")]
    Refused {
        /// `to show` or `to set`.
        action: &'static str,
        /// Which part.
        part: &'static str,
        /// KVM's answer.
        source: kvm_ioctls::Error,
    },
    /// KVM does not take a model-specific register with the value that it had.
    #[error("KVM does not take the model-specific register {index:#x} with the value {value:#x}")]
    Msr {
        /// Which register.
        index: u32,
        /// What it was saved as.
        value: u64,
    },
    /// There are more registers or features than KVM takes at once.
    #[error("the saved vCPU has more {what} than KVM takes")]
    TooMany {
        /// Of what.
        what: &'static str,
    },
}

impl VcpuStateError {
    fn show(part: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |source| Self::Refused {
            action: "to show",
            part,
            source,
        }
    }

    fn set(part: &'static str) -> impl FnOnce(kvm_ioctls::Error) -> Self {
        move |source| Self::Refused {
            action: "to set",
            part,
            source,
        }
    }
}

/// The model-specific registers of `listed` that this vCPU has, in the order in which they are to be
/// set. KVM lists some that a machine like this one does not have.
pub(super) fn present_msrs(fd: &VcpuFd, listed: &[u32]) -> Vec<u32> {
    let one = |index| {
        let entry = kvm_msr_entry {
            index,
            ..Default::default()
        };
        let mut msrs = Msrs::from_entries(&[entry]).ok()?;
        fd.get_msrs(&mut msrs).ok().filter(|count| *count == 1)
    };
    let mut found: Vec<u32> = listed.to_vec();
    // KVM has it wherever it has a local APIC, and does not list it everywhere.
    found.push(MSR_TSC_DEADLINE);
    found.sort_unstable();
    found.dedup();
    found.retain(|index| one(*index).is_some());
    // A deadline is compared with the counter when it is set, so the counter comes before it; KVM
    // drops a deadline whose timer mode is off, so the local APIC comes before both.
    found.sort_by_key(|index| match *index {
        MSR_TSC => 0,
        MSR_TSC_DEADLINE => 2,
        _ => 1,
    });
    found
}

impl Vcpu {
    /// Everything of this vCPU. It is held, and owes its guest nothing: see the loop that runs it.
    ///
    /// # Errors
    /// [`VcpuStateError`].
    pub(crate) fn save(&self) -> Result<VcpuState, VcpuStateError> {
        use VcpuStateError as Fail;
        let fd = &self.fd;
        // First: asking for it has the local APIC take INIT and STARTUP messages that wait for it,
        // which changes everything below.
        let mp_state = fd.get_mp_state().map_err(Fail::show("the run state"))?;
        let regs = fd.get_regs().map_err(Fail::show("general registers"))?;
        let sregs = fd.get_sregs().map_err(Fail::show("segment registers"))?;
        let xsave = fd.get_xsave().map_err(Fail::show("vector registers"))?;
        let xcrs = fd.get_xcrs().map_err(Fail::show("extended controls"))?;
        let debug_regs = fd.get_debug_regs().map_err(Fail::show("debug registers"))?;
        let lapic = fd.get_lapic().map_err(Fail::show("the local APIC"))?;
        let tsc_khz = fd
            .get_tsc_khz()
            .map_err(Fail::show("the rate of its counter"))?;
        let msrs = self.save_msrs()?;
        // Last: what was asked for above may have had an event delivered.
        let events = fd.get_vcpu_events().map_err(Fail::show("its events"))?;
        Ok(VcpuState {
            // As it was set, not as KVM shows it: a page-table KVM shows features that it does not take.
            cpuid: self.cpuid.as_slice().to_vec(),
            mp_state,
            regs,
            sregs,
            xsave,
            xcrs,
            debug_regs,
            lapic,
            tsc_khz,
            msrs,
            events,
        })
    }

    fn save_msrs(&self) -> Result<Vec<kvm_msr_entry>, VcpuStateError> {
        let entry = |index: &u32| kvm_msr_entry {
            index: *index,
            ..Default::default()
        };
        let entries: Vec<_> = self.msrs.iter().map(entry).collect();
        let mut msrs = Msrs::from_entries(&entries).map_err(|_| VcpuStateError::TooMany {
            what: "model-specific registers",
        })?;
        let count = self
            .fd
            .get_msrs(&mut msrs)
            .map_err(VcpuStateError::show("model-specific registers"))?;
        match entries.get(count) {
            None => Ok(msrs.as_slice().to_vec()),
            // It was there when the vCPU was made.
            Some(missing) => Err(VcpuStateError::Msr {
                index: missing.index,
                value: 0,
            }),
        }
    }

    /// Sets a vCPU that has never run to a saved state.
    ///
    /// # Errors
    /// [`VcpuStateError`]: then the vCPU is of no use.
    pub(crate) fn restore(&mut self, state: &VcpuState) -> Result<(), VcpuStateError> {
        use VcpuStateError as Fail;
        let fd = &self.fd;
        // First: which registers there are, and which of their bits, KVM takes from it.
        let cpuid =
            CpuId::from_entries(&state.cpuid).map_err(|_| Fail::TooMany { what: "features" })?;
        fd.set_cpuid2(&cpuid).map_err(Fail::set("its features"))?;
        self.cpuid = cpuid;
        fd.set_mp_state(state.mp_state)
            .map_err(Fail::set("the run state"))?;
        fd.set_regs(&state.regs)
            .map_err(Fail::set("general registers"))?;
        // Before the local APIC, whose mode and place are in it.
        fd.set_sregs(&state.sregs)
            .map_err(Fail::set("segment registers"))?;
        // SAFETY: KVM reads `KVM_CHECK_EXTENSION(KVM_CAP_XSAVE2)` bytes, which is more than a
        // `kvm_xsave` has only if this process asked for dynamic features (`arch_prctl`,
        // ARCH_REQ_XCOMP_GUEST_PERM). No code of Floe's does.
        unsafe { fd.set_xsave(&state.xsave) }.map_err(Fail::set("vector registers"))?;
        fd.set_xcrs(&state.xcrs)
            .map_err(Fail::set("extended controls"))?;
        fd.set_debug_regs(&state.debug_regs)
            .map_err(Fail::set("debug registers"))?;
        fd.set_lapic(&state.lapic)
            .map_err(Fail::set("the local APIC"))?;
        self.restore_msrs(&state.msrs)?;
        let fd = &self.fd;
        // After all that could inject something.
        fd.set_vcpu_events(&state.events)
            .map_err(Fail::set("its events"))?;
        match fd.kvmclock_ctrl() {
            // Tells a guest that reads this clock that it was stopped, so that its watchdogs do not
            // bark. EINVAL: it does not read it.
            Err(error) if error.errno() != libc::EINVAL => {
                Err(Fail::set("the mark of a pause")(error))
            }
            _ => Ok(()),
        }
    }

    fn restore_msrs(&self, saved: &[kvm_msr_entry]) -> Result<(), VcpuStateError> {
        let msrs = Msrs::from_entries(saved).map_err(|_| VcpuStateError::TooMany {
            what: "model-specific registers",
        })?;
        let count = self
            .fd
            .set_msrs(&msrs)
            .map_err(VcpuStateError::set("model-specific registers"))?;
        match saved.get(count) {
            None => Ok(()),
            Some(refused) => Err(VcpuStateError::Msr {
                index: refused.index,
                value: refused.data,
            }),
        }
    }
}
