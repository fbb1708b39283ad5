//! Opening the host's KVM and checking that it can do what a machine needs.
//!
//! Invariant: a [`Host`] has every capability of [`NEEDED`], so code that holds one does not ask
//! again. What a page-table KVM cannot do (run a stock kernel) is not a capability; it is asked of
//! the probe in [`crate::kvm`] and refused by [`Host::require_linux`] only, because such a KVM does
//! run small guests.

use std::path::{Path, PathBuf};

use kvm_bindings::{CpuId, KVM_API_VERSION, KVM_MAX_CPUID_ENTRIES};
use kvm_ioctls::{Cap, Kvm, VmFd};

use crate::kvm::{HostPaths, KvmStatus, probe};

/// What a machine needs of KVM, with the name that the kernel's documentation uses
/// (`Documentation/virt/kvm/api.rst`).
pub const NEEDED: &[(Cap, &str)] = &[
    (Cap::UserMemory, "KVM_CAP_USER_MEMORY"),
    (Cap::Irqchip, "KVM_CAP_IRQCHIP"),
    (Cap::SplitIrqchip, "KVM_CAP_SPLIT_IRQCHIP"),
    (Cap::SignalMsi, "KVM_CAP_SIGNAL_MSI"),
    (Cap::ImmediateExit, "KVM_CAP_IMMEDIATE_EXIT"),
    (Cap::ExtCpuid, "KVM_CAP_EXT_CPUID"),
    (Cap::MpState, "KVM_CAP_MP_STATE"),
    (Cap::VcpuEvents, "KVM_CAP_VCPU_EVENTS"),
    (Cap::Debugregs, "KVM_CAP_DEBUGREGS"),
    (Cap::Xsave, "KVM_CAP_XSAVE"),
    (Cap::Xcrs, "KVM_CAP_XCRS"),
    (Cap::AdjustClock, "KVM_CAP_ADJUST_CLOCK"),
    (Cap::GetTscKhz, "KVM_CAP_GET_TSC_KHZ"),
];

/// Why a machine cannot be had on this host.
#[derive(Debug, thiserror::Error)]
pub enum HostError {
    /// There is no KVM device.
    #[error("there is no {path}", path = path.display())]
    Absent {
        /// Where it was looked for.
        path: PathBuf,
        /// Whether the processor could do it.
        processor: bool,
    },
    /// The device may not be opened by this user.
    #[error("no permission to open {path}", path = path.display())]
    NoPermission {
        /// The device.
        path: PathBuf,
    },
    /// The device does not open, or does not answer as KVM does.
    #[error("{path} does not work", path = path.display())]
    Broken {
        /// The device.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The kernel speaks another version of the interface.
    #[error("KVM speaks version {found} of its interface, not {KVM_API_VERSION}")]
    ApiVersion {
        /// What `KVM_GET_API_VERSION` returned.
        found: i32,
    },
    /// The kernel's KVM is too old or was built without something.
    #[error("this KVM lacks {name}")]
    MissingCapability {
        /// The capability's name in the kernel's documentation.
        name: &'static str,
    },
    /// The processor lacks something that every guest needs.
    #[error("KVM offers guests no {feature} on this processor")]
    UnsupportedCpu {
        /// The processor feature.
        feature: &'static str,
    },
    /// A page-table KVM, asked to run Linux.
    #[error("this KVM (module kvm_pvm) runs user-mode code only and cannot boot Linux")]
    PageTable,
}

impl HostError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> &'static str {
        match self {
            Self::Absent {
                processor: true, ..
            } => "load the module kvm_intel or kvm_amd, or pass /dev/kvm into this container",
            Self::Absent { .. } => {
                "turn on virtualisation in the firmware, or nested virtualisation of this machine"
            }
            Self::NoPermission { .. } => "add the user to the group kvm, or run as root",
            Self::Broken { .. } => "dmesg may say why; another hypervisor may hold the processor",
            Self::ApiVersion { .. } | Self::MissingCapability { .. } => {
                "use a Linux kernel of version 4.20 or later"
            }
            Self::UnsupportedCpu { .. } => "use a 64-bit processor with virtualisation",
            Self::PageTable => {
                "use a host whose processor shows vmx or svm; process sandboxes work here"
            }
        }
    }
}

/// The host's KVM, open and checked.
#[derive(Debug)]
pub struct Host {
    kvm: Kvm,
    cpuid: CpuId,
    msrs: Vec<u32>,
    kind: &'static str,
    paths: HostPaths,
}

impl Host {
    /// Opens KVM and checks every capability.
    ///
    /// # Errors
    /// Every variant of [`HostError`] but [`HostError::PageTable`].
    pub fn open(paths: &HostPaths) -> Result<Self, HostError> {
        let broken = |source| HostError::Broken {
            path: paths.device.clone(),
            source,
        };
        let kvm = open_device(paths)?;
        let found = kvm.get_api_version();
        if i64::from(found) != i64::from(KVM_API_VERSION) {
            return match found {
                // Not a KVM at all: the ioctl itself failed.
                ..0 => Err(broken(std::io::Error::from_raw_os_error(libc::ENOTTY))),
                _ => Err(HostError::ApiVersion { found }),
            };
        }
        for (cap, name) in NEEDED {
            if !kvm.check_extension(*cap) {
                return Err(HostError::MissingCapability { name });
            }
        }
        let cpuid = kvm
            .get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)
            .map_err(|error| broken(error.into()))?;
        check_cpu(&cpuid)?;
        let msrs = kvm
            .get_msr_index_list()
            .map_err(|error| broken(error.into()))?;
        Ok(Self {
            msrs: msrs.as_slice().to_vec(),
            kind: match probe(paths) {
                KvmStatus::Hardware { flag } => flag,
                KvmStatus::PageTable => "pvm",
                _ => "unknown",
            },
            kvm,
            cpuid,
            paths: paths.clone(),
        })
    }

    /// Refuses a KVM that cannot boot a stock kernel.
    ///
    /// # Errors
    /// [`HostError::PageTable`].
    pub fn require_linux(&self) -> Result<(), HostError> {
        match probe(&self.paths) {
            KvmStatus::PageTable => Err(HostError::PageTable),
            _ => Ok(()),
        }
    }

    /// The processor features that KVM can give a guest.
    #[must_use]
    pub fn cpuid(&self) -> &CpuId {
        &self.cpuid
    }

    /// The model-specific registers that KVM says are to be saved.
    pub(super) fn msrs(&self) -> &[u32] {
        &self.msrs
    }

    /// What kind of KVM it is: `vmx`, `svm`, `pvm` (a page-table KVM) or `unknown`.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        self.kind
    }

    /// Makes a virtual machine without memory, interrupt controllers or vCPUs.
    pub(super) fn create_vm(&self) -> Result<VmFd, kvm_ioctls::Error> {
        // KVM_CREATE_VM registers MMU notifiers and answers EINTR when a signal comes meanwhile;
        // five tries are many for a thread that gets at most one kick.
        let mut tries = 0;
        loop {
            match self.kvm.create_vm() {
                Err(error) if error.errno() == libc::EINTR && tries < 5 => tries += 1,
                result => return result,
            }
        }
    }
}

fn open_device(paths: &HostPaths) -> Result<Kvm, HostError> {
    let path = paths.device.clone();
    let name = path_to_cstring(&path)?;
    Kvm::new_with_path(name).map_err(|error| match error.errno() {
        libc::ENOENT => HostError::Absent {
            processor: matches!(probe(paths), KvmStatus::Absent { processor: true }),
            path,
        },
        libc::EACCES | libc::EPERM => HostError::NoPermission { path },
        _ => HostError::Broken {
            path,
            source: error.into(),
        },
    })
}

fn path_to_cstring(path: &Path) -> Result<std::ffi::CString, HostError> {
    use std::os::unix::ffi::OsStrExt;
    std::ffi::CString::new(path.as_os_str().as_bytes()).map_err(|source| HostError::Broken {
        path: path.to_owned(),
        source: source.into(),
    })
}

/// 64-bit mode and an x2APIC: what stock kernels expect of every machine with several vCPUs. Bits
/// are of leaves 1 and 0x8000_0001 (Intel SDM volume 2, CPUID).
fn check_cpu(cpuid: &CpuId) -> Result<(), HostError> {
    const LONG_MODE: u32 = 1 << 29;
    const X2APIC: u32 = 1 << 21;
    let leaf = |function| {
        let entry = cpuid
            .as_slice()
            .iter()
            .find(|entry| entry.function == function);
        entry.map_or((0, 0), |entry| (entry.ecx, entry.edx))
    };
    if leaf(0x8000_0001).1 & LONG_MODE == 0 {
        return Err(HostError::UnsupportedCpu {
            feature: "64-bit mode",
        });
    }
    if leaf(1).0 & X2APIC == 0 {
        return Err(HostError::UnsupportedCpu { feature: "x2APIC" });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(device: &Path) -> HostPaths {
        HostPaths {
            device: device.to_owned(),
            ..HostPaths::default()
        }
    }

    #[test]
    fn an_absent_device_is_told_with_a_hint() {
        let error = Host::open(&paths(Path::new("/nonexistent/kvm"))).unwrap_err();
        assert!(matches!(error, HostError::Absent { .. }), "{error:?}");
        assert_eq!(error.to_string(), "there is no /nonexistent/kvm");
        assert!(!error.hint().is_empty());
    }

    #[test]
    fn a_device_that_is_not_kvm_is_broken() {
        let error = Host::open(&paths(Path::new("/dev/null"))).unwrap_err();
        assert!(matches!(error, HostError::Broken { .. }), "{error:?}");
        let error = Host::open(&paths(Path::new("/dev/k\0vm"))).unwrap_err();
        assert!(matches!(error, HostError::Broken { .. }), "{error:?}");
    }

    #[test]
    fn a_processor_without_64_bit_mode_is_refused() {
        let empty = CpuId::from_entries(&[]).unwrap();
        let error = check_cpu(&empty).unwrap_err();
        assert_eq!(
            error.to_string(),
            "KVM offers guests no 64-bit mode on this processor"
        );
    }
}
