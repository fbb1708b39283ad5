//! `floe guest show`.

use clap::Args;

use crate::commands::{Context, facts};
use crate::error::ApiError;
use crate::output::{printable, size};
use crate::wire::ShowKernel;
use crate::wire::sandbox::Kernel;

/// Show the kernel that virtual machines boot
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe guest show
  floe guest show --json | jq -r .version")]
pub(crate) struct Show {}

impl Show {
    /// Carries it out.
    ///
    /// # Errors
    /// When none is installed.
    #[expect(clippy::unused_self, reason = "as all commands")]
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let found = context.client()?.call(ShowKernel {})?;
        let installed = found.installed.ok_or_else(super::install::none)?;
        if context.output.json {
            return context.output.json(&installed);
        }
        context.output.text(&facts(&lines(&installed)))
    }
}

pub(super) fn lines(kernel: &Kernel) -> Vec<(&'static str, String)> {
    let version = kernel.version.as_deref().unwrap_or("not said in its file");
    vec![
        ("version", printable(version)),
        ("origin", printable(&kernel.origin)),
        ("installed", kernel.installed_at.clone()),
        ("kernel", size(kernel.kernel_bytes)),
        ("blake3", kernel.kernel_blake3.clone()),
        ("initramfs", size(kernel.initramfs_bytes)),
        ("modules", printable(&kernel.modules.join(" "))),
    ]
}
