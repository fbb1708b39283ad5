//! What a vCPU says of itself: KVM's list of features, plus the machine's topology.
//!
//! One socket, one thread a core, APIC ids from 0. Leaves and bits are of the Intel SDM, volume 2,
//! CPUID, and the AMD manual, volume 3, appendix E.

use kvm_bindings::{CpuId, KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};

use crate::machine::memory::VcpuCount;

const TSC_DEADLINE: u32 = 1 << 24;
const VIRTUALISED: u32 = 1 << 31;
const SEVERAL_CORES: u32 = 1 << 28;
/// No virtual machines inside: the kernel's code for them is what a hostile guest would try first,
/// and their state is not saved.
const VMX: u32 = 1 << 5;
const SVM: u32 = 1 << 2;
/// "Timer runs in every power state": without it a kernel looks for another timer, and there is
/// none.
const ALWAYS_RUNNING_TIMER: u32 = 1 << 2;

/// The features of vCPU `id`.
///
/// # Errors
/// When the list would be longer than KVM takes.
pub(super) fn of(supported: &CpuId, id: u8, count: VcpuCount) -> Result<CpuId, kvm_ioctls::Error> {
    let apic_id = u32::from(id);
    let cores = u32::from(count.get());
    let mut entries: Vec<kvm_cpuid_entry2> = supported
        .as_slice()
        .iter()
        .filter(|entry| !matches!(entry.function, 0xb | 0x1f))
        .copied()
        .collect();
    for entry in &mut entries {
        adjust(entry, apic_id, cores);
    }
    entries.extend(topology(apic_id, cores));
    CpuId::from_entries(&entries).map_err(|_| kvm_ioctls::Error::new(libc::E2BIG))
}

fn adjust(entry: &mut kvm_cpuid_entry2, apic_id: u32, cores: u32) {
    match entry.function {
        0 => entry.eax = entry.eax.max(0xb),
        1 => {
            entry.ebx = entry.ebx & 0xffff | cores << 16 | apic_id << 24;
            // The kernel's local APIC has the deadline mode whatever the processor has.
            entry.ecx |= VIRTUALISED | TSC_DEADLINE;
            entry.ecx &= !VMX;
            if cores > 1 {
                entry.edx |= SEVERAL_CORES;
            }
        }
        4 if entry.eax & 0x1f != 0 => {
            entry.eax = entry.eax & 0x3fff | (cores - 1) << 26;
            // Caches above the second level are shared by all.
            if entry.eax >> 5 & 7 > 2 {
                entry.eax |= (cores.next_power_of_two() - 1) << 14;
            }
        }
        6 => entry.eax = ALWAYS_RUNNING_TIMER,
        // No performance counters: they tell a guest of its neighbours, and cannot be saved.
        0xa => (entry.eax, entry.ebx, entry.ecx, entry.edx) = (0, 0, 0, 0),
        0x8000_0001 => entry.ecx &= !SVM,
        0x8000_0008 => entry.ecx = entry.ecx & !0xf0ff | (cores - 1),
        0x8000_001e => (entry.eax, entry.ebx, entry.ecx) = (apic_id, apic_id, 0),
        _ => {}
    }
}

/// Leaf 0xb: one thread a core, then all cores of the socket.
fn topology(apic_id: u32, cores: u32) -> [kvm_cpuid_entry2; 3] {
    const THREAD: u32 = 1 << 8;
    const CORE: u32 = 2 << 8;
    let level = |index, eax, ebx, kind| kvm_cpuid_entry2 {
        function: 0xb,
        index,
        flags: KVM_CPUID_FLAG_SIGNIFCANT_INDEX,
        eax,
        ebx,
        ecx: kind | index,
        edx: apic_id,
        ..Default::default()
    };
    let bits = cores.next_power_of_two().trailing_zeros();
    [
        level(0, 0, 1, THREAD),
        level(1, bits, cores, CORE),
        level(2, 0, 0, 0),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leaf(cpuid: &CpuId, function: u32, index: u32) -> kvm_cpuid_entry2 {
        *cpuid
            .as_slice()
            .iter()
            .find(|entry| entry.function == function && entry.index == index)
            .unwrap()
    }

    #[test]
    fn each_vcpu_knows_its_id_and_its_siblings() {
        let plain = |function| kvm_cpuid_entry2 {
            function,
            ..Default::default()
        };
        let mut features = [plain(0), plain(1), plain(0xb), plain(0x8000_0001)];
        features[1].ecx = VMX;
        features[3].ecx = u32::MAX;
        let supported = CpuId::from_entries(&features).unwrap();
        let cpuid = of(&supported, 2, VcpuCount::new(3).unwrap()).unwrap();
        assert_eq!(leaf(&cpuid, 0, 0).eax, 0xb);
        assert_eq!(leaf(&cpuid, 1, 0).ebx, 2 << 24 | 3 << 16);
        assert_eq!(leaf(&cpuid, 1, 0).edx & SEVERAL_CORES, SEVERAL_CORES);
        assert_eq!(leaf(&cpuid, 0xb, 1).eax, 2, "two bits of APIC id");
        assert_eq!(leaf(&cpuid, 0xb, 1).ebx, 3);
        assert_eq!(leaf(&cpuid, 0xb, 0).edx, 2);
        assert_eq!(cpuid.as_slice().len(), 6);
        assert_eq!(leaf(&cpuid, 1, 0).ecx, VIRTUALISED | TSC_DEADLINE);
        assert_eq!(leaf(&cpuid, 0x8000_0001, 0).ecx, !SVM);
    }
}
