//! `floe vm monitor`, which the daemon starts for each virtual machine.

use std::process::ExitCode;

use clap::Args;

/// Run one virtual machine, as standard input says, which is a socket
#[derive(Args, Debug)]
pub(crate) struct Monitor {}

impl Monitor {
    /// Runs it to its end. Nothing of the store is touched, and there are no threads yet.
    #[expect(clippy::unused_self, reason = "as all commands")]
    pub(crate) fn run(&self) -> ExitCode {
        floe_vmm::monitor::main_on_stdin()
    }
}
