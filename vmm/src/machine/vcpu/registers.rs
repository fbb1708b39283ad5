//! The first vCPU as the 64-bit Linux boot protocol wants it
//! (`Documentation/arch/x86/boot.rst`, "64-bit boot protocol"): long mode, paging on with memory
//! mapped one to one, flat segments `__BOOT_CS` and `__BOOT_DS`, interrupts off, RSI at the boot
//! parameters.

use kvm_bindings::{Msrs, kvm_fpu, kvm_msr_entry, kvm_regs, kvm_segment};
use kvm_ioctls::VcpuFd;

use crate::machine::layout;
use crate::machine::vm::VmError;

/// Where a guest starts. The boot parameters, the GDT and the page tables are in guest memory by
/// then, at the addresses of [`layout`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Guest-physical address of the first instruction.
    pub ip: u64,
}

/// Entries of the boot GDT: two unused, code, data.
pub const GDT: [u64; 4] = [0, 0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
/// The last byte of [`GDT`].
const GDT_LIMIT: u16 = 8 * 4 - 1;
const CODE_SELECTOR: u16 = 0x10;
const DATA_SELECTOR: u16 = 0x18;

const CR0_PE: u64 = 1;
const CR0_ET: u64 = 1 << 4;
const CR0_NE: u64 = 1 << 5;
const CR0_PG: u64 = 1 << 31;
const CR4_PAE: u64 = 1 << 5;
const EFER_LME: u64 = 1 << 8;
const EFER_LMA: u64 = 1 << 10;
/// The bit of RFLAGS that is always set.
const RFLAGS_ONE: u64 = 1 << 1;

const MSR_MISC_ENABLE: u32 = 0x1a0;
const MISC_ENABLE_FAST_STRINGS: u64 = 1;
const MSR_MTRR_DEFAULT_TYPE: u32 = 0x2ff;
/// MTRRs on, everything write-back.
const MTRR_WRITE_BACK: u64 = 1 << 11 | 6;

pub(super) fn set(vcpu: &VcpuFd, entry: Entry) -> Result<(), VmError> {
    let mut sregs = vcpu
        .get_sregs()
        .map_err(VmError::at("to show segment registers"))?;
    let code = segment(CODE_SELECTOR, 0xb, true);
    let data = segment(DATA_SELECTOR, 0x3, false);
    sregs.cs = code;
    (sregs.ds, sregs.es, sregs.ss) = (data, data, data);
    (sregs.fs, sregs.gs) = (data, data);
    sregs.gdt.base = layout::GDT;
    sregs.gdt.limit = GDT_LIMIT;
    sregs.idt.limit = 0;
    sregs.cr3 = layout::PAGE_TABLES;
    sregs.cr4 |= CR4_PAE;
    sregs.cr0 |= CR0_PE | CR0_ET | CR0_NE | CR0_PG;
    sregs.efer |= EFER_LME | EFER_LMA;
    vcpu.set_sregs(&sregs)
        .map_err(VmError::at("segment registers"))?;
    vcpu.set_regs(&kvm_regs {
        rip: entry.ip,
        rsp: layout::BOOT_STACK,
        rbp: layout::BOOT_STACK,
        rsi: layout::ZERO_PAGE,
        rflags: RFLAGS_ONE,
        ..Default::default()
    })
    .map_err(VmError::at("registers"))?;
    vcpu.set_fpu(&kvm_fpu {
        fcw: 0x37f,
        mxcsr: 0x1f80,
        ..Default::default()
    })
    .map_err(VmError::at("floating point registers"))?;
    set_msrs(vcpu)
}

/// Each in a call of its own: a KVM that has no MTRRs takes the rest all the same.
fn set_msrs(vcpu: &VcpuFd) -> Result<(), VmError> {
    let wanted = [
        (MSR_MISC_ENABLE, MISC_ENABLE_FAST_STRINGS),
        (MSR_MTRR_DEFAULT_TYPE, MTRR_WRITE_BACK),
    ];
    for (index, data) in wanted {
        let entry = kvm_msr_entry {
            index,
            data,
            ..Default::default()
        };
        let msrs = Msrs::from_entries(&[entry])
            .map_err(|_| VmError::at("a list of registers")(kvm_ioctls::Error::new(libc::E2BIG)))?;
        let taken = vcpu
            .set_msrs(&msrs)
            .map_err(VmError::at("model-specific registers"))?;
        if taken == 0 {
            tracing::debug!("KVM has no model-specific register {index:#x}");
        }
    }
    Ok(())
}

fn segment(selector: u16, kind: u8, code: bool) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_: kind,
        present: 1,
        dpl: 0,
        db: u8::from(!code),
        s: 1,
        l: u8::from(code),
        g: 1,
        ..Default::default()
    }
}
