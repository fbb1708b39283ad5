//! `floe retention apply`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::output::{counted, printable, shortened, size, table};
use crate::time;
use crate::wire::ApplyRetention;

/// Delete now what has expired and what no rule keeps
///
/// The daemon does it by itself. This looks at all snapshots, and says which those were.
///
/// Under --json: an object with deleted (false in a dry run), snapshots (each with id, workspace, name,
/// automatic, created_at, expires_at, and why: expired or rule), in_use (how many stay because they are), and
/// frees (bytes, in a dry run).
#[derive(Args, Debug)]
pub(crate) struct Apply {
    /// Only say which they are
    #[arg(long)]
    dry_run: bool,
}

impl Apply {
    /// Carries it out.
    ///
    /// # Errors
    /// When the store fails.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let output = &context.output;
        let done = context.client()?.call(ApplyRetention {
            dry_run: self.dry_run,
        })?;
        if output.json {
            return output.json(&done);
        }
        if output.quiet {
            let ids = done.snapshots.iter().map(|one| format!("{}\n", one.id));
            return output.text(&ids.collect::<String>());
        }
        if !done.snapshots.is_empty() {
            let rows: Vec<Vec<String>> = done
                .snapshots
                .iter()
                .map(|one| {
                    vec![
                        one.id.clone(),
                        shortened(&one.workspace, 24),
                        time::ago(&one.created_at),
                        one.why.clone(),
                        printable(one.name.as_deref().unwrap_or("-")),
                    ]
                })
                .collect();
            output.text(&table(&["ID", "WORKSPACE", "TAKEN", "WHY", "NAME"], &rows))?;
        }
        let what = counted(done.snapshots.len(), "snapshot");
        output.note(&match done.deleted {
            true => format!("{what} deleted; space comes back in the background"),
            false => {
                let frees = size(done.frees.unwrap_or(0));
                format!("{what} would be deleted, which would free {frees}")
            }
        });
        if done.in_use > 0 {
            output.note(&format!("{} in use", counted(done.in_use, "snapshot")));
        }
        Ok(())
    }
}
