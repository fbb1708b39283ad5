//! `floe ws adopt`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::output::size;
use crate::progress::ImportBar;
use crate::time;
use crate::wire::AdoptWorkspace;

/// Make a workspace independent of the directory it was made from
///
/// Takes in everything that `floe ws create --from` shows in place, so that the directory can be
/// changed or removed. The daemon does it in the background: it goes on when this command is
/// interrupted, and after the daemon was killed. The workspace can be used meanwhile; its forks and
/// snapshots become independent with it. A file that was changed since cannot be taken in; the
/// rest is, and `floe ws show` names it.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe ws adopt web
  floe ws adopt web --detach && floe ws show web")]
pub(crate) struct Adopt {
    /// Name of the workspace
    name: String,
    /// Do not wait for the end
    #[arg(long)]
    detach: bool,
}

impl Adopt {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is nothing to adopt, or some of it could not be taken in.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        let mut bar = ImportBar::new(
            "adopting",
            !context.output.json && !context.output.quiet && !self.detach,
        );
        let request = AdoptWorkspace {
            name: self.name.clone(),
            detach: self.detach,
        };
        let result = client.call_with_progress(request, &mut |progress| bar.update(progress));
        drop(bar);
        let answer = result?;
        if context.output.json {
            return context.output.json(&answer);
        }
        context.output.note(&match &answer.adopted {
            Some(report) => format!(
                "adopted '{}': {} files, {} in {}",
                answer.workspace.name,
                report.files,
                size(report.bytes),
                time::elapsed(report.elapsed_us)
            ),
            None => format!("adopting '{}'", answer.workspace.name),
        });
        Ok(())
    }
}
