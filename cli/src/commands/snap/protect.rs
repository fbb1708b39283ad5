//! `floe snap protect` and `floe snap unprotect`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::output::counted;
use crate::wire::EditSnapshots;

/// Let nothing delete snapshots
///
/// Neither a rule nor an expiry deletes them, nor `floe snap delete`, until `floe snap unprotect`.
///
/// Prints the ids. Under --json: a list of snapshots as of `floe snap show`.
#[derive(Args, Debug)]
pub(crate) struct Protect {
    /// Snapshots (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "SNAP", required = true)]
    snapshots: Vec<String>,
}

/// Let snapshots be deleted again
///
/// An expiry that went by meanwhile takes effect at once, and so do rules (`floe retention show`).
///
/// Prints the ids. Under --json: a list of snapshots as of `floe snap show`.
#[derive(Args, Debug)]
pub(crate) struct Unprotect {
    /// Snapshots (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "SNAP", required = true)]
    snapshots: Vec<String>,
}

impl Protect {
    /// Carries it out.
    ///
    /// # Errors
    /// When a snapshot is not found: then none was changed.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        set(context, &self.snapshots, true)
    }
}

impl Unprotect {
    /// Carries it out.
    ///
    /// # Errors
    /// When a snapshot is not found: then none was changed.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        set(context, &self.snapshots, false)
    }
}

fn set(context: &Context, snapshots: &[String], protected: bool) -> Result<(), ApiError> {
    let changed = context.client()?.call(EditSnapshots {
        snapshots: snapshots.to_vec(),
        protected: Some(protected),
        ..EditSnapshots::default()
    })?;
    if context.output.json {
        return context.output.json(&changed);
    }
    let ids = changed.iter().map(|one| format!("{}\n", one.id));
    context.output.text(&ids.collect::<String>())?;
    let what = counted(changed.len(), "snapshot");
    context.output.note(&match protected {
        true => format!("{what} protected"),
        false => format!("{what} not protected any more"),
    });
    Ok(())
}
