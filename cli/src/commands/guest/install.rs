//! `floe guest install`.

use std::path::PathBuf;

use clap::Args;

use crate::commands::{Context, absolute, facts};
use crate::error::{ApiError, ErrorKind};
use crate::wire::InstallKernel;
use crate::wire::WirePath;

use super::show::lines;

/// Get the kernel that virtual machines boot
///
/// Without arguments the one that this system's distribution has for virtual machines, by its package
/// manager: it is unpacked into the store, and nothing of it is installed on the system. What was there
/// before is replaced; machines that run go on.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe guest install
  floe guest install --kernel ./vmlinux
  floe guest install --kernel /boot/vmlinuz-6.1.0-18-amd64 --modules /lib/modules/6.1.0-18-amd64

Under --json: version, origin, installed_at, kernel_blake3, modules and more.")]
pub(crate) struct Install {
    /// This kernel: a bzImage or vmlinux
    #[arg(long, value_name = "FILE")]
    kernel: Option<PathBuf>,
    /// The directory of its modules, with modules.dep in it; none if it has all that it needs built in
    #[arg(long, value_name = "DIR", requires = "kernel")]
    modules: Option<PathBuf>,
}

impl Install {
    /// Carries it out.
    ///
    /// # Errors
    /// When it cannot be had, or lacks what a virtual machine needs.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let path = |path: &Option<PathBuf>| -> Result<Option<WirePath>, ApiError> {
            let path = path.as_deref().map(absolute).transpose()?;
            Ok(path.as_deref().map(WirePath::from))
        };
        let installed = context.client()?.call(InstallKernel {
            kernel: path(&self.kernel)?,
            modules: path(&self.modules)?,
        })?;
        if context.output.json {
            return context.output.json(&installed);
        }
        context.output.text(&facts(&lines(&installed)))
    }
}

/// What is not there.
pub(super) fn none() -> ApiError {
    ApiError::new(
        ErrorKind::NotFound,
        "no kernel for virtual machines is installed",
    )
    .hint("floe guest install")
}
