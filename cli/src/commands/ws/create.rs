//! `floe ws create`.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;

use crate::commands::{Context, absolute};
use crate::error::{ApiError, ErrorKind};
use crate::output::size;
use crate::progress::ImportBar;
use crate::time;
use crate::wire::records::{BaseDir, Workspace};
use crate::wire::{CreateWorkspace, CreateWorkspaceFrom, Fork, ImportWorkspace, WirePath};

/// Make a workspace: empty, over a directory, with a copy of one, or on a snapshot
///
/// With --from alone the workspace shows the directory in place, at once, whatever it holds. Changes
/// stay in the workspace; the directory is only read, and written by nothing but `floe land`. A
/// file that somebody changes there later cannot be read in the workspace any more: `floe ws show`
/// names those, and `floe ws adopt` makes the workspace independent of the directory. Other mounts
/// in the directory, and the store, are shown as empty directories.
///
/// DIR=PATH shows a directory at an absolute path in the workspace; several can be shown so.
///
/// With --copy everything is copied first. A copy keeps hard links, extended attributes, ACLs, holes,
/// devices and times. A file that cannot be read is an error that names it, and no workspace is
/// made; nor if it is interrupted. On a terminal it shows how many files and bytes it has copied so
/// far, but not how many there are.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe ws create scratch
  floe ws create web --from ./web
  floe ws create web --from ./web --exclude node_modules --exclude '*.log'
  floe ws create box --from /usr=/usr --from ./app=/workspace
  floe ws create kept --from ./web --copy
  floe ws create again --from-snap web/green")]
pub(crate) struct Create {
    /// Name: letters, digits, '.', '_' and '-'
    name: String,
    /// Directory to start with, in place; DIR=PATH to show it at PATH
    #[arg(long, value_name = "DIR[=PATH]", conflicts_with = "from_snap")]
    from: Vec<PathBuf>,
    /// Copy everything in the directory now
    #[arg(long, requires = "from")]
    copy: bool,
    /// Leave out what matches: a line as in a .gitignore, relative to the workspace's root
    #[arg(
        long,
        value_name = "PATTERN",
        requires = "from",
        conflicts_with = "copy"
    )]
    exclude: Vec<String>,
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
        match (self.from.as_slice(), &self.from_snap) {
            ([dir], _) if self.copy => self.import(context, dir),
            ([_, _, ..], _) if self.copy => Err(ApiError::new(
                ErrorKind::Usage,
                "--copy takes one directory",
            )),
            ([], Some(snapshot)) => self.on_snapshot(context, snapshot),
            ([], None) => {
                let name = self.name.clone();
                let made = context.client()?.call(CreateWorkspace { name })?;
                self.tell(context, &made)
            }
            (dirs, _) => {
                let dirs = dirs.iter().map(|dir| base_dir(dir));
                let made = context.client()?.call(CreateWorkspaceFrom {
                    name: self.name.clone(),
                    dirs: dirs.collect::<Result<_, _>>()?,
                    exclude: self.exclude.clone(),
                })?;
                self.tell(context, &made)
            }
        }
    }

    fn import(&self, context: &Context, dir: &Path) -> Result<(), ApiError> {
        let dir = absolute(dir)?;
        let mut client = context.client()?;
        let mut bar = ImportBar::new("importing", !context.output.json && !context.output.quiet);
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
}

/// Takes `DIR` or `DIR=PATH` apart: the last `=` with a `/` behind it parts the two.
fn base_dir(text: &Path) -> Result<BaseDir, ApiError> {
    let bytes = text.as_os_str().as_bytes();
    let (dir, at) = match bytes.windows(2).rposition(|pair| pair == b"=/") {
        Some(parted) => (&bytes[..parted], &bytes[parted + 1..]),
        None => (bytes, &b"/"[..]),
    };
    Ok(BaseDir {
        dir: WirePath::from(&*absolute(Path::new(OsStr::from_bytes(dir)))?),
        at: WirePath::from(Path::new(OsStr::from_bytes(at))),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_and_its_place_are_parted_at_the_last_equals_sign_before_a_slash() {
        let parted = |text: &str| {
            let dir = base_dir(Path::new(text)).unwrap();
            (dir.dir.to_string(), dir.at.to_string())
        };
        let pair = |a: &str, b: &str| (a.to_owned(), b.to_owned());
        assert_eq!(parted("/usr"), pair("/usr", "/"));
        assert_eq!(parted("/usr=/opt/usr"), pair("/usr", "/opt/usr"));
        assert_eq!(parted("/a=b"), pair("/a=b", "/"));
        assert_eq!(parted("/a=/b=/c"), pair("/a=/b", "/c"));
    }
}
