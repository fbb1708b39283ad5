//! Installs a kernel for guests: `guest_kernel DIR AGENT [KERNEL [MODULES]]`, where `AGENT` is a static
//! `floe-guest`. Without a kernel, the distribution's is fetched. Prints what was installed.

use std::error::Error;
use std::path::PathBuf;

use floe_vmm::guest_kernel::{Source, install};

fn main() -> Result<(), Box<dyn Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let dir = args.next().ok_or("into which directory?")?;
    let agent = std::fs::read(args.next().ok_or("which agent?")?)?;
    let source = match args.next() {
        Some(kernel) => Source::Files {
            kernel,
            modules: args.next(),
        },
        None => Source::Distribution,
    };
    let installed = match install(&source, &agent, &dir) {
        Ok(installed) => installed,
        Err(error) => {
            let mut cause: &dyn Error = &error;
            let mut text = error.to_string();
            while let Some(next) = cause.source() {
                text.push_str(&format!("\ncaused by: {next}"));
                cause = next;
            }
            return Err(format!("{text}\nhint: {}", error.hint()).into());
        }
    };
    println!("{}", serde_json::to_string_pretty(&installed.facts)?);
    Ok(())
}
