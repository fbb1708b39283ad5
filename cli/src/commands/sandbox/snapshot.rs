//! `floe sandbox snapshot`.

use clap::Args;

use crate::commands::{Context, label, labels};
use crate::error::ApiError;
use crate::time;
use crate::wire::SnapshotSandbox;

/// Freeze the files of a sandbox and print the snapshot's id
///
/// Its processes stand still for that moment, so that all files are of one point in time, and go on. A
/// snapshot that is being taken already is the answer. It outlives the sandbox. A name makes it a
/// template too, `NAME` or `NAME:TAG`; one that is taken moves to this snapshot.
///
/// The processes' memory is not in it: what starts from it starts with these files and no processes.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  snap=$(floe sandbox snapshot sb3f9c --quiet) && floe sandbox create \"$snap\"
  floe sandbox snapshot sb3f9c --name python:tested -m 'all tests pass' --label commit=1f3c2aa")]
pub(crate) struct Snapshot {
    /// Sandbox (id or its first 4 or more characters)
    #[arg(value_name = "SB")]
    sandbox: String,
    /// Name, of a template too
    #[arg(long)]
    name: Option<String>,
    /// Message to keep with it
    #[arg(long, short, value_name = "MSG")]
    message: Option<String>,
    /// Label to keep with it; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
}

impl Snapshot {
    /// Carries it out.
    ///
    /// # Errors
    /// When the reference fits none, or its state forbids it.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let snapshot = context.client()?.call(SnapshotSandbox {
            sandbox: self.sandbox.clone(),
            name: self.name.clone(),
            message: self.message.clone(),
            labels: labels(&self.labels)?,
        })?;
        if context.output.json {
            return context.output.json(&snapshot);
        }
        context.output.line(&snapshot.id)?;
        let taken = time::elapsed(snapshot.elapsed_us);
        let of = &snapshot.workspace;
        context
            .output
            .note(&format!("snapshot of '{of}' in {taken}"));
        Ok(())
    }
}
