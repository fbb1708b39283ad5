//! What kind of KVM the host has, found out by reading files only.
//!
//! Three things decide: the device `/dev/kvm`, the right to open it, and the processor flag that
//! tells hardware virtualisation (`vmx` or `svm`) from a page-table KVM. The latter (module
//! `kvm_pvm`) runs a guest's user mode natively but interprets its kernel mode, lacks
//! instructions that stock kernels need, and therefore boots none of them.

use std::fs::OpenOptions;
use std::io;
use std::path::{Path, PathBuf};

/// Where the probe looks. [`HostPaths::default`] is the real host.
#[derive(Clone, Debug)]
pub struct HostPaths {
    /// The KVM device.
    pub device: PathBuf,
    /// The kernel's list of processors.
    pub cpuinfo: PathBuf,
    /// Directory with one entry per loaded module.
    pub modules: PathBuf,
}

impl Default for HostPaths {
    fn default() -> Self {
        Self {
            device: PathBuf::from("/dev/kvm"),
            cpuinfo: PathBuf::from("/proc/cpuinfo"),
            modules: PathBuf::from("/sys/module"),
        }
    }
}

/// The result of [`probe`].
#[derive(Debug)]
pub enum KvmStatus {
    /// There is no such device: no KVM in this kernel, or none passed to this container.
    Absent {
        /// Whether the processor could do it.
        processor: bool,
    },
    /// The device is there but this user may not open it.
    NoPermission,
    /// The device is there but opening it failed otherwise.
    Broken {
        /// The system's error.
        error: io::Error,
    },
    /// A page-table KVM: user-mode guest code only, no stock kernel boots.
    PageTable,
    /// Hardware virtualisation, ready to use.
    Hardware {
        /// `vmx` (Intel) or `svm` (AMD).
        flag: &'static str,
    },
    /// The device opens, yet the processor shows no flag and no page-table module is loaded.
    Unknown,
}

/// Finds out what KVM the host has.
#[must_use]
pub fn probe(host: &HostPaths) -> KvmStatus {
    let flag = hardware_flag(&host.cpuinfo);
    match OpenOptions::new().read(true).write(true).open(&host.device) {
        Err(error) => match error.kind() {
            io::ErrorKind::NotFound => KvmStatus::Absent {
                processor: flag.is_some(),
            },
            io::ErrorKind::PermissionDenied => KvmStatus::NoPermission,
            _ => KvmStatus::Broken { error },
        },
        Ok(_) => match flag {
            Some(flag) => KvmStatus::Hardware { flag },
            None if host.modules.join("kvm_pvm").exists() => KvmStatus::PageTable,
            None => KvmStatus::Unknown,
        },
    }
}

/// The virtualisation flag of the first processor that lists any; `None` also when the file
/// cannot be read.
fn hardware_flag(cpuinfo: &Path) -> Option<&'static str> {
    let text = std::fs::read_to_string(cpuinfo).ok()?;
    let flags = text.lines().find_map(|line| line.strip_prefix("flags"))?;
    ["vmx", "svm"]
        .into_iter()
        .find(|flag| flags.split_whitespace().any(|word| word == *flag))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(dir: &Path, flags: &str) -> HostPaths {
        std::fs::write(
            dir.join("cpuinfo"),
            format!("processor\t: 0\nflags\t\t: {flags}\n"),
        )
        .unwrap();
        HostPaths {
            device: dir.join("kvm"),
            cpuinfo: dir.join("cpuinfo"),
            modules: dir.join("module"),
        }
    }

    fn scratch(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("floe-kvm-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    #[test]
    fn a_missing_device_tells_whether_the_processor_could() {
        let dir = scratch("absent");
        let found = probe(&host(&dir, "fpu svm lm"));
        assert!(
            matches!(found, KvmStatus::Absent { processor: true }),
            "{found:?}"
        );
        let found = probe(&host(&dir, "fpu svmx lm"));
        assert!(
            matches!(found, KvmStatus::Absent { processor: false }),
            "{found:?}"
        );
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn a_page_table_kvm_is_not_mistaken_for_a_real_one() {
        let dir = scratch("pvm");
        std::fs::write(dir.join("kvm"), "").unwrap();
        let found = probe(&host(&dir, "fpu lm"));
        assert!(matches!(found, KvmStatus::Unknown), "{found:?}");
        std::fs::create_dir_all(dir.join("module/kvm_pvm")).unwrap();
        let found = probe(&host(&dir, "fpu lm"));
        assert!(matches!(found, KvmStatus::PageTable), "{found:?}");
        let found = probe(&host(&dir, "fpu vmx lm"));
        assert!(
            matches!(found, KvmStatus::Hardware { flag: "vmx" }),
            "{found:?}"
        );
        std::fs::remove_dir_all(dir).unwrap();
    }
}
