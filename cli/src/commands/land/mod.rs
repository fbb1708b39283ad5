//! `floe land`: on workspaces; [`host`] has directories.

mod host;

use std::ffi::OsString;

use clap::Args;

use super::Context;
use super::diff::names::{from_root, quoted};
use crate::client::Client;
use crate::error::{ApiError, ErrorKind};
use crate::time;
use crate::wire;
use crate::wire::records::{Conflicting, Landed, LandedFile};

/// Merge what a workspace changed into the workspace or directory that it was made from
///
/// On a workspace: three states are compared, where both came from, the workspace, and where it lands.
/// What only one of them changed is taken as it is, equal changes are one, and text that both changed
/// is merged by lines. All of it lands, at once where WS is mounted, or nothing: then every conflict is
/// listed with what both sides did, and the exit status is 4. Landing again lands what was changed
/// since. Prints the id of the automatic snapshot that keeps the state before: rolling back to it undoes
/// the landing. Refused while something is mounted inside the workspace that is landed on.
///
/// In a directory: a workspace that was made with `ws create --from DIR` lands in DIR. All or nothing,
/// also if the daemon is killed in the middle. What others have changed there since is a conflict, unless
/// it is the same now. What was there before the last 8 landings is kept for --undo.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe land try                            back into what it was made from
  floe land try --onto web --dry-run       what would be done
  kept=$(floe land try) && floe rollback web \"$kept\"
                                           there and back
  floe land web --host --only src          in the directory that `web` was made from
  floe land web --undo                     and back

Each file is shown with a letter as by `floe diff`; MM is text merged from both sides.

Under --json, on a workspace: an object with workspace, onto, landed (false if there was nothing to do,
or a conflict), files (path, change, from, merged), conflicts (path, ours, theirs, by: the workspace that
landed there before), kept and elapsed_us. In a directory: workspace, dirs, landed, changes (as of `floe
diff --json`), added, modified, deleted, metadata and snapshot; with --undo undone and the numbers.")]
pub(crate) struct Land {
    /// Workspace whose changes are to land
    #[arg(value_name = "WS")]
    workspace: String,
    /// Workspace to land on, mounted or not [default: the one that WS was forked from]
    #[arg(long, value_name = "WS", conflicts_with = "host")]
    onto: Option<String>,
    /// Land in the directory of the host that WS stands on [default if WS is no fork]
    #[arg(long)]
    host: bool,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Land only what is at this path of the workspace, and under it; can be repeated
    #[arg(long, value_name = "PATH")]
    only: Vec<OsString>,
    /// Take text that both sides changed for a conflict
    #[arg(long)]
    no_merge: bool,
    /// Take the last landing in a directory back
    #[arg(long, conflicts_with_all = ["only", "onto", "no_merge"])]
    undo: bool,
}

impl Land {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is nowhere to land, or there are conflicts.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        if self.undo {
            return self.undo(&mut client, context);
        }
        if self.host || (self.onto.is_none() && self.is_of_host(&mut client)?) {
            return self.in_directories(&mut client, context);
        }
        self.on_workspace(&mut client, context)
    }

    /// Whether the workspace was made from a directory of the host, and not forked from another.
    fn is_of_host(&self, client: &mut Client) -> Result<bool, ApiError> {
        let shown = client.call(wire::ShowWorkspace {
            name: self.workspace.clone(),
        })?;
        Ok(shown.forked_from.is_none() && shown.base.is_some())
    }

    fn on_workspace(&self, client: &mut Client, context: &Context) -> Result<(), ApiError> {
        let done = client.call(wire::Land {
            workspace: self.workspace.clone(),
            onto: self.onto.clone(),
            dry_run: self.dry_run,
            only: self.only.iter().map(from_root).collect(),
            no_merge: self.no_merge,
        })?;
        let output = &context.output;
        if output.json {
            output.json(&done)?;
        } else {
            match (&done.kept, done.conflicts.is_empty(), self.dry_run) {
                (_, false, _) => {
                    output.text(&done.conflicts.iter().map(clash).collect::<String>())?
                }
                (_, _, true) => output.text(&done.files.iter().map(line).collect::<String>())?,
                (None, ..) => {}
                (Some(kept), ..) => {
                    for file in &done.files {
                        output.note(line(file).trim_end());
                    }
                    output.line(kept)?;
                }
            }
            output.note(&summary(&done, self.dry_run));
        }
        match done.conflicts.len() {
            0 => Ok(()),
            count => Err(refused(&done, count)),
        }
    }
}

fn refused(done: &Landed, count: usize) -> ApiError {
    let what = format!(
        "'{}' does not land on '{}': {count} {}; nothing was changed",
        done.workspace,
        done.onto,
        if count == 1 { "conflict" } else { "conflicts" }
    );
    ApiError::new(ErrorKind::Conflict, what).hint(format!(
        "see what both did with `floe diff {0}` and `floe diff {0}@base {1}`",
        done.workspace, done.onto
    ))
}

fn summary(done: &Landed, dry_run: bool) -> String {
    let count = done.files.len();
    let files = if count == 1 { "file" } else { "files" };
    let (workspace, onto) = (&done.workspace, &done.onto);
    let took = time::elapsed(done.elapsed_us);
    if count == 0 {
        return format!("'{workspace}' has nothing to land on '{onto}'");
    }
    if dry_run {
        return format!("{count} {files} of '{workspace}' would land on '{onto}'");
    }
    format!(
        "{count} {files} of '{workspace}' landed on '{onto}' in {took}; the state before is kept in \
         the snapshot above"
    )
}

/// A file that lands.
fn line(file: &LandedFile) -> String {
    let path = quoted(&file.path.to_bytes());
    let letter = match file.change.as_str() {
        _ if file.merged => "MM",
        "added" => "A",
        "deleted" => "D",
        "modified" => "M",
        "renamed" => "R",
        _ => "m",
    };
    match &file.from {
        Some(from) => format!("{letter}\t{}\t{path}\n", quoted(&from.to_bytes())),
        None => format!("{letter}\t{path}\n"),
    }
}

/// A conflict with both sides.
fn clash(conflict: &Conflicting) -> String {
    let by = match &conflict.by {
        Some(by) => format!(" (landed from {by})"),
        None => String::new(),
    };
    let path = quoted(&conflict.path.to_bytes());
    let (ours, theirs) = (&conflict.ours, &conflict.theirs);
    format!("C\t{path}\tours {ours}; theirs {theirs}{by}\n")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::wire::WirePath;

    #[test]
    fn a_conflict_names_both_sides_and_who_landed_before() {
        let mut conflict = Conflicting {
            path: WirePath::from_bytes(b"a\n"),
            ours: "changed the contents".into(),
            theirs: "removed it".into(),
            by: None,
        };
        let expected = "C\t\"a\\n\"\tours changed the contents; theirs removed it";
        assert_eq!(clash(&conflict), format!("{expected}\n"));
        conflict.by = Some("one".into());
        assert_eq!(clash(&conflict), format!("{expected} (landed from one)\n"));
    }
}
