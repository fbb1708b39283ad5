//! What a saved machine asks of the host that it goes on at, and whether that one has it.
//!
//! A processor's saved registers mean something on a processor of the same kind only. What differs is
//! refused with both values before anything is set: KVM would take some of it, and the guest crash.

use kvm_bindings::{KVM_CPUID_FLAG_SIGNIFCANT_INDEX, kvm_cpuid_entry2};
use serde::{Deserialize, Serialize};

use crate::machine::host::Host;

/// Counts changes of where things lie in a guest (`machine/layout.rs`) and of what its devices are.
pub const LAYOUT: u32 = 1;
/// By how much time-stamp counters may differ, in parts of a million: what KVM takes for the same rate.
const TSC_PPM: u64 = 250;

/// A host, as far as a guest depends on it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compat {
    /// Who made the processor (CPUID leaf 0).
    pub vendor: String,
    /// Family, model and stepping, as CPUID leaf 1 has them in EAX.
    pub model: u32,
    /// The kind of KVM: `vmx`, `svm`, `pvm` or `unknown`.
    pub kvm: String,
    /// The kernel's release.
    pub kernel: String,
    /// How fast time-stamp counters count, in kHz.
    pub tsc_khz: u32,
    /// [`LAYOUT`] of the monitor.
    pub layout: u32,
}

/// A host is not one that a machine can go on at.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Mismatch {
    /// Something differs that must not.
    #[error("the machine was saved with the {what} {saved}, and here it is {here}")]
    Differs {
        /// What differs.
        what: &'static str,
        /// As the machine was saved.
        saved: String,
        /// As it is here.
        here: String,
    },
    /// The processor's features are not all there.
    #[error(
        "the machine uses processor features that are not here: leaf {leaf:#x} {register} {missing:#x}"
    )]
    Features {
        /// The CPUID leaf.
        leaf: u32,
        /// The register of it.
        register: &'static str,
        /// The bits that are missing.
        missing: u32,
    },
}

impl Compat {
    /// This host. `tsc_khz` is a vCPU's.
    #[must_use]
    pub fn of(host: &Host, tsc_khz: u32) -> Self {
        let leaf = |function| {
            let entries = host.cpuid().as_slice().iter();
            entries.copied().find(|entry| entry.function == function)
        };
        let vendor = leaf(0).map_or_else(String::new, |entry| {
            let bytes = [entry.ebx, entry.edx, entry.ecx].map(u32::to_le_bytes);
            String::from_utf8_lossy(&bytes.concat()).into_owned()
        });
        Self {
            vendor,
            model: leaf(1).map_or(0, |entry| entry.eax),
            kvm: host.kind().to_owned(),
            kernel: rustix::system::uname()
                .release()
                .to_string_lossy()
                .into_owned(),
            tsc_khz,
            layout: LAYOUT,
        }
    }

    /// Whether a machine that was saved at `self` can go on at `here`. A newer kernel is fine: what KVM
    /// gives to be saved, later ones take; an older one may not know all of it.
    ///
    /// # Errors
    /// [`Mismatch`]: the first thing that differs.
    pub fn check(&self, here: &Self) -> Result<(), Mismatch> {
        let same = |what, saved: &dyn ToString, here: &dyn ToString| {
            let (saved, here) = (saved.to_string(), here.to_string());
            match saved == here {
                true => Ok(()),
                false => Err(Mismatch::Differs { what, saved, here }),
            }
        };
        same("layout", &self.layout, &here.layout)?;
        same("kind of KVM", &self.kvm, &here.kvm)?;
        same("processor vendor", &self.vendor, &here.vendor)?;
        let model = |model| format!("{model:#x}");
        same("processor model", &model(self.model), &model(here.model))?;
        let difference = u64::from(self.tsc_khz.abs_diff(here.tsc_khz));
        if difference * 1_000_000 > u64::from(self.tsc_khz) * TSC_PPM {
            let khz = |khz| format!("{khz} kHz");
            same("time-stamp counter", &khz(self.tsc_khz), &khz(here.tsc_khz))?;
        }
        if release(&here.kernel) < release(&self.kernel) {
            same("kernel", &self.kernel, &here.kernel)?;
        }
        Ok(())
    }
}

/// The version and patch level of a kernel's release: `6.18.3-amd64` is `[6, 18]`.
fn release(text: &str) -> Vec<u32> {
    let parts = text
        .split(['.', '-', '+'])
        .map_while(|part| part.parse().ok());
    parts.take(2).collect()
}

/// Whether everything that a saved vCPU says of itself can be had here.
///
/// # Errors
/// [`Mismatch::Features`]: the first bits that are missing.
pub fn check_features(
    saved: &[kvm_cpuid_entry2],
    here: &[kvm_cpuid_entry2],
) -> Result<(), Mismatch> {
    // Those that hold nothing but features, a bit each (Intel SDM volume 2, CPUID; AMD manual volume 3,
    // appendix E). Bits that the monitor itself gives and takes away are not KVM's to have.
    const ECX_1: u32 = !(1 << 31 | 1 << 24 | 1 << 27);
    const EDX_1: u32 = !(1 << 28);
    type Get = fn(&kvm_cpuid_entry2) -> u32;
    let registers: [(u32, u32, &'static str, u32, Get); 11] = [
        (1, 0, "ecx", ECX_1, |entry| entry.ecx),
        (1, 0, "edx", EDX_1, |entry| entry.edx),
        (7, 0, "ebx", u32::MAX, |entry| entry.ebx),
        (7, 0, "ecx", !(1 << 4), |entry| entry.ecx),
        (7, 0, "edx", u32::MAX, |entry| entry.edx),
        (7, 1, "eax", u32::MAX, |entry| entry.eax),
        (0xd, 0, "eax", u32::MAX, |entry| entry.eax),
        (0xd, 1, "eax", u32::MAX, |entry| entry.eax),
        (0x4000_0001, 0, "eax", u32::MAX, |entry| entry.eax),
        (0x8000_0001, 0, "ecx", u32::MAX, |entry| entry.ecx),
        (0x8000_0001, 0, "edx", u32::MAX, |entry| entry.edx),
    ];
    let bits = |entries: &[kvm_cpuid_entry2], leaf, index, get: Get| {
        let found = entries.iter().find(|entry| {
            let indexed = entry.flags & KVM_CPUID_FLAG_SIGNIFCANT_INDEX != 0;
            entry.function == leaf && (!indexed || entry.index == index)
        });
        found.map_or(0, get)
    };
    for (leaf, index, register, counted, get) in registers {
        let missing = bits(saved, leaf, index, get) & !bits(here, leaf, index, get) & counted;
        if missing != 0 {
            return Err(Mismatch::Features {
                leaf,
                register,
                missing,
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host() -> Compat {
        Compat {
            vendor: "AuthenticAMD".to_owned(),
            model: 0xa2_0f12,
            kvm: "svm".to_owned(),
            kernel: "6.18.3-amd64".to_owned(),
            tsc_khz: 3_400_000,
            layout: LAYOUT,
        }
    }

    #[test]
    fn another_host_is_refused_with_what_differs() {
        assert_eq!(host().check(&host()), Ok(()));
        let other = |change: fn(&mut Compat)| {
            let mut other = host();
            change(&mut other);
            host().check(&other).unwrap_err().to_string()
        };
        assert_eq!(
            other(|host| host.model = 0xa2_0f10),
            "the machine was saved with the processor model 0xa20f12, and here it is 0xa20f10"
        );
        assert_eq!(
            other(|host| host.kvm = "pvm".to_owned()),
            "the machine was saved with the kind of KVM svm, and here it is pvm"
        );
        assert!(other(|host| host.vendor = "GenuineIntel".to_owned()).contains("GenuineIntel"));
        assert!(other(|host| host.layout = 2).contains("layout 1, and here it is 2"));
        assert!(
            other(|host| host.tsc_khz += 1_000).contains("3400000 kHz, and here it is 3401000 kHz")
        );
        assert!(
            other(|host| host.kernel = "6.9.1".to_owned())
                .contains("6.18.3-amd64, and here it is 6.9.1")
        );
    }

    #[test]
    fn a_newer_kernel_and_a_slightly_other_clock_are_fine() {
        let mut other = host();
        other.kernel = "7.0.0-rc1".to_owned();
        other.tsc_khz += 800;
        assert_eq!(host().check(&other), Ok(()));
        other.kernel = "6.18.1".to_owned();
        assert_eq!(host().check(&other), Ok(()));
    }

    #[test]
    fn missing_features_are_named() {
        let leaf = |function, ecx| kvm_cpuid_entry2 {
            function,
            ecx,
            ..Default::default()
        };
        let saved = [leaf(1, 1 << 31 | 1 << 28 | 1), leaf(0x8000_0001, 1)];
        assert_eq!(
            check_features(&saved, &[leaf(1, 1 << 28 | 1), leaf(0x8000_0001, 3)]),
            Ok(())
        );
        assert_eq!(
            check_features(&saved, &[leaf(1, 1), leaf(0x8000_0001, 3)]),
            Err(Mismatch::Features {
                leaf: 1,
                register: "ecx",
                missing: 1 << 28
            })
        );
        assert!(check_features(&saved, &[leaf(1, u32::MAX)]).is_err());
    }
}
