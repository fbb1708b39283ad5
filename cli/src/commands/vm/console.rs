//! `floe vm console`.

use std::time::Duration;

use clap::Args;

use crate::client::Client;
use crate::commands::Context;
use crate::error::{ApiError, ErrorKind};
use crate::output::printable;
use crate::wire::sandbox::{Console as Read, Sandbox, SandboxState};
use crate::wire::{ReadConsole, ShowSandbox};

/// How often it is looked for more.
const STEP: Duration = Duration::from_millis(200);

/// Print what a virtual machine's kernel and agent said on its console
///
/// Of a long log the end is kept. Control characters are shown as such.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe vm console sb3f9c
  floe vm console sb3f9c --follow

Under --json: an object with text, of --follow one for each piece.")]
pub(crate) struct Console {
    /// Virtual machine (id or its first 4 or more characters)
    #[arg(value_name = "VM")]
    vm: String,
    /// Go on as more comes, until the machine is gone
    #[arg(long, short)]
    follow: bool,
}

impl Console {
    /// Carries it out.
    ///
    /// # Errors
    /// When the reference fits none, or no virtual machine.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        let sandbox = client.call(ShowSandbox {
            sandbox: self.vm.clone(),
        })?;
        must_be_vm(&sandbox)?;
        let id = sandbox.id;
        let mut offset = 0;
        loop {
            // Asked before: what it says until it ends is read after that.
            let goes_on = self.follow && runs(&mut client, &id)?;
            let read = client.call(ReadConsole {
                sandbox: id.clone(),
                offset,
            });
            let read = match read {
                Err(error) if self.follow && error.kind == ErrorKind::NotFound => return Ok(()),
                read => read?,
            };
            offset = read.next;
            show(context, &read, self.follow)?;
            if !goes_on {
                return Ok(());
            }
            std::thread::sleep(STEP);
        }
    }
}

/// Whether more may come.
fn runs(client: &mut Client, id: &str) -> Result<bool, ApiError> {
    let now = client.call(ShowSandbox {
        sandbox: id.to_owned(),
    });
    match now {
        Ok(now) => Ok(!matches!(
            now.state,
            SandboxState::Stopped | SandboxState::Failed
        )),
        Err(error) if error.kind == ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}

fn show(context: &Context, read: &Read, is_piece: bool) -> Result<(), ApiError> {
    if is_piece && read.text.is_empty() {
        return Ok(());
    }
    if context.output.json {
        return context.output.json(read);
    }
    // A serial line ends its lines with both.
    let text = read.text.replace("\r\n", "\n");
    let lines: Vec<_> = text.split('\n').map(printable).collect();
    context.output.text(&lines.join("\n"))
}

/// Refuses a sandbox of processes.
pub(super) fn must_be_vm(sandbox: &Sandbox) -> Result<(), ApiError> {
    if sandbox.kind == "vm" {
        return Ok(());
    }
    let what = format!("'{}' is no virtual machine", sandbox.id);
    Err(ApiError::new(ErrorKind::Usage, what).hint("see which there are with `floe vm list`"))
}
