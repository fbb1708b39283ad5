//! `floe ws delete`.

use clap::Args;

use crate::commands::Context;
use crate::error::{ApiError, ErrorKind};
use crate::output::printable;
use crate::wire::{DeleteWorkspace, ShowWorkspace};

/// Delete workspaces; their snapshots stay
///
/// What was changed since the last snapshot of a workspace is lost with it. Where one is mounted, those
/// who use it go on until it is unmounted (`floe umount DIR`), or the daemon ends; its name is free at
/// once. The space comes back in the background. Under --json: an array of the workspaces.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe ws delete try-1 try-2
  floe ws delete --dry-run try-3
  floe ws delete --if-exists scratch")]
pub(crate) struct Delete {
    /// Names
    #[arg(required = true, value_name = "NAME")]
    names: Vec<String>,
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
    /// Pass over names that do not exist
    #[arg(long)]
    if_exists: bool,
}

impl Delete {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no workspace of a name: then none is deleted. One that is deleted by somebody else
    /// meanwhile does not keep those before it.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        for name in &self.names {
            match client.call(ShowWorkspace { name: name.clone() }) {
                Ok(_) => {}
                Err(error) if self.if_exists && error.kind == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        let mut answers = Vec::new();
        for name in &self.names {
            let request = DeleteWorkspace {
                name: name.clone(),
                dry_run: self.dry_run,
            };
            match client.call(request) {
                Ok(answer) => {
                    let verb = if answer.deleted {
                        "deleted"
                    } else {
                        "would delete"
                    };
                    let kept = answer.workspace.snapshot_count;
                    let kept = match kept {
                        1 => "its snapshot stays".to_owned(),
                        count => format!("its {count} snapshots stay"),
                    };
                    context.output.note(&format!("{verb} '{name}'; {kept}"));
                    for dir in &answer.workspace.mounts {
                        let dir = printable(&dir.to_string());
                        let what = format!("it can be used on {dir} until that is unmounted");
                        context.output.note(&what);
                    }
                    answers.push(answer);
                }
                Err(error) if self.if_exists && error.kind == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        if context.output.json {
            return context.output.json(&answers);
        }
        Ok(())
    }
}
