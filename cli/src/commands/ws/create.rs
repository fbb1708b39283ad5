//! `floe ws create`.

use std::path::{Path, PathBuf};

use clap::Args;

use crate::commands::{Context, absolute};
use crate::error::{ApiError, ErrorKind, shell_word};
use crate::output::size;
use crate::progress::ImportBar;
use crate::time;
use crate::wire::records::Workspace;
use crate::wire::{CreateWorkspace, Fork, ImportWorkspace, WirePath};

/// Make a workspace: empty, with a copy of a directory, or on a snapshot
///
/// A copy keeps hard links, extended attributes, ACLs, holes, devices and times. A file that
/// cannot be read is an error that names it, and no workspace is made; nor if it is interrupted.
/// On a terminal it shows how many files and bytes it has copied so far, but not how many there are.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe ws create scratch
  floe ws create web --from ./web --copy
  floe ws create again --from-snap web/green")]
pub(crate) struct Create {
    /// Name: letters, digits, '.', '_' and '-'
    name: String,
    /// Directory to start with; needs --copy
    #[arg(long, value_name = "DIR", conflicts_with = "from_snap")]
    from: Option<PathBuf>,
    /// Copy everything in the directory now
    #[arg(long, requires = "from")]
    copy: bool,
    /// Snapshot to start on (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(long, value_name = "SNAP")]
    from_snap: Option<String>,
}

impl Create {
    /// Carries it out.
    ///
    /// # Errors
    /// When the name is not allowed or taken, or the origin cannot be used.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        match (&self.from, &self.from_snap) {
            (Some(dir), _) if self.copy => self.import(context, dir),
            (Some(dir), _) => Err(self.needs_copy(dir)),
            (None, Some(snapshot)) => self.on_snapshot(context, snapshot),
            (None, None) => {
                let name = self.name.clone();
                let made = context.client()?.call(CreateWorkspace { name })?;
                self.tell(context, &made)
            }
        }
    }

    fn import(&self, context: &Context, dir: &Path) -> Result<(), ApiError> {
        let dir = absolute(dir)?;
        let mut client = context.client()?;
        let mut bar = ImportBar::new(!context.output.json && !context.output.quiet);
        let request = ImportWorkspace {
            name: self.name.clone(),
            dir: WirePath::from(&*dir),
        };
        let result = client.call_with_progress(request, &mut |progress| bar.update(progress));
        drop(bar);
        let made = result?;
        if context.output.json {
            return context.output.json(&made);
        }
        context.output.note(&format!(
            "created workspace '{}': {} files, {} in {}",
            made.workspace.name,
            made.import.files,
            size(made.import.bytes),
            time::elapsed(made.import.elapsed_us)
        ));
        Ok(())
    }

    fn on_snapshot(&self, context: &Context, snapshot: &str) -> Result<(), ApiError> {
        let made = context.client()?.call(Fork {
            source: snapshot.to_owned(),
            snapshot_only: true,
            name: self.name.clone(),
            ..Fork::default()
        })?;
        match made.workspaces.as_slice() {
            [one] => self.tell(context, one),
            _ => Err(ApiError::new(
                ErrorKind::Internal,
                "the daemon made no workspace",
            )),
        }
    }

    fn tell(&self, context: &Context, made: &Workspace) -> Result<(), ApiError> {
        if context.output.json {
            return context.output.json(made);
        }
        context
            .output
            .note(&format!("created workspace '{}'", made.name));
        Ok(())
    }

    fn needs_copy(&self, dir: &Path) -> ApiError {
        ApiError::new(ErrorKind::Usage, "--from needs --copy")
            .caused_by(&NoInstantBases)
            .hint(format!(
                "copy the directory in: `floe ws create {} --from {} --copy`",
                shell_word(&self.name),
                shell_word(&dir.to_string_lossy())
            ))
    }
}

#[derive(Debug, thiserror::Error)]
#[error("this version cannot use a directory in place as the base of a workspace yet")]
struct NoInstantBases;
