//! What a virtual machine boots: a kernel, its initial file system, and the kernel's command line.

use std::path::{Path, PathBuf};

use floe_guest::vm::VmOptions;
use floe_vmm::guest_kernel::{FindError, Installed, Source, find, install, refresh};

use super::VmError;
use crate::agent::image::IMAGE;
use crate::wire::sandbox::VmSpec;

/// Where in a store the kernel of virtual machines is.
const INSTALLED: &str = "guest/kernel";
/// Where in a machine's directory its own is, if it has one.
const OWN: &str = "boot";

/// Where the kernel of virtual machines is installed.
pub(in crate::daemon) fn installed_in(store: &Path) -> PathBuf {
    store.join(INSTALLED)
}

/// What the kernel is told: its console, that it ends when it fails, and what init is to do. `quiet`: on
/// the console is what is worth reading.
pub(super) fn command_line(id: &str, with_workspace: bool) -> String {
    let options = VmOptions {
        workspace: with_workspace,
        hostname: id.to_owned(),
        ..VmOptions::default()
    };
    format!("console=ttyS0 quiet panic=-1 {options}")
}

/// The kernel that a machine asks for, made ready in its directory, or else the one that is installed.
///
/// # Errors
/// [`VmError::NoKernel`] when none is installed, or the one it asks for is none.
pub(super) fn prepare(store: &Path, vm: &VmSpec, dir: &Path) -> Result<Installed, VmError> {
    let Some(kernel) = &vm.kernel else {
        let found = find(&installed_in(store)).map_err(|error| match error {
            FindError::None => VmError::NoKernel,
            source => VmError::Kernel {
                hint: source.hint(),
                source: Box::new(source),
            },
        })?;
        return refresh(found, IMAGE).map_err(not_made);
    };
    let source = Source::Files {
        kernel: PathBuf::from(kernel),
        modules: vm.modules.as_ref().map(PathBuf::from),
    };
    install(&source, IMAGE, &dir.join(OWN)).map_err(not_made)
}

fn not_made(source: floe_vmm::guest_kernel::InstallError) -> VmError {
    VmError::Kernel {
        hint: source.hint(),
        source: Box::new(source),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_init_is_told_it_understands() {
        for with_workspace in [false, true] {
            let line = command_line("sb-1", with_workspace);
            let read = VmOptions::parse(line.as_bytes()).unwrap();
            assert_eq!(
                (read.workspace, &read.hostname[..]),
                (with_workspace, "sb-1")
            );
        }
    }

    #[test]
    fn a_store_without_a_kernel_says_so() {
        let dir = tempfile::tempdir().unwrap();
        let none = prepare(dir.path(), &VmSpec::default(), dir.path());
        assert!(matches!(none, Err(VmError::NoKernel)));
        let missing = VmSpec {
            kernel: Some("/nonexistent".to_owned()),
            ..VmSpec::default()
        };
        let missing = prepare(dir.path(), &missing, dir.path());
        assert!(matches!(missing, Err(VmError::Kernel { .. })));
    }
}
