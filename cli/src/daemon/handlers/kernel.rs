//! The kernel of virtual machines.

use floe_vmm::guest_kernel::{FindError, Installed, Source, find, install};

use super::Daemon;
use crate::agent::image::IMAGE;
use crate::daemon::sandboxes::vm::kernel::installed_in;
use crate::error::{ApiError, ErrorKind};
use crate::wire::sandbox::{Kernel, KernelInstalled};
use crate::wire::{InstallKernel, WirePath};

/// Gets a kernel, and makes its initial file system.
///
/// # Errors
/// When it cannot be had, or lacks what a virtual machine needs; what was there stays then.
pub fn install_kernel(daemon: &Daemon, request: &InstallKernel) -> Result<Kernel, ApiError> {
    let source = match &request.kernel {
        None => Source::Distribution,
        Some(kernel) => Source::Files {
            kernel: kernel.to_path(),
            modules: request.modules.as_ref().map(WirePath::to_path),
        },
    };
    let installed = install(&source, IMAGE, &installed_in(daemon.store.dir()));
    let installed = installed
        .map_err(|error| ApiError::from_error(ErrorKind::Failed, &error).hint(error.hint()))?;
    Ok(shown(installed))
}

/// Describes the kernel that is installed.
///
/// # Errors
/// When it is damaged.
pub fn show_kernel(daemon: &Daemon) -> Result<KernelInstalled, ApiError> {
    match find(&installed_in(daemon.store.dir())) {
        Ok(installed) => Ok(KernelInstalled {
            installed: Some(shown(installed)),
        }),
        Err(FindError::None) => Ok(KernelInstalled { installed: None }),
        Err(error) => Err(ApiError::from_error(ErrorKind::Failed, &error).hint(error.hint())),
    }
}

fn shown(installed: Installed) -> Kernel {
    let facts = installed.facts;
    let at = i64::try_from(facts.installed_at).ok();
    let at = at.and_then(|at| jiff::Timestamp::from_second(at).ok());
    Kernel {
        version: facts.version,
        origin: facts.origin,
        installed_at: at.map_or_else(|| facts.installed_at.to_string(), |at| at.to_string()),
        kernel_blake3: facts.kernel_blake3,
        kernel_bytes: facts.kernel_bytes,
        initramfs_bytes: facts.initramfs_bytes,
        modules: facts.modules,
    }
}
