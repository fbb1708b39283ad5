//! `floe land`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use clap::Args;

use super::diff::names::{from_root, letter, quoted};
use super::{Context, absolute};
use crate::error::{ApiError, ErrorKind};
use crate::output::counted;
use crate::time;
use crate::wire;
use crate::wire::WirePath;
use crate::wire::records::{Conflicting, Landed, LandedFile, OnHost};

/// Merge what a workspace changed into what it was forked or made from, or into another workspace
///
/// Three states are compared: where both came from, the workspace, and where it lands. What only one of
/// them changed is taken as it is, equal changes are one, and text that both changed is merged by lines.
/// All of it lands, at once where WS is mounted, or nothing: then every conflict is listed with what
/// both sides did, and the exit status is 4. Landing again lands what was changed since.
///
/// On a workspace: prints the id of the automatic snapshot that keeps the state before, and the files on
/// standard error; rolling back to it undoes the landing. Refused while something is mounted inside the
/// workspace that is landed on.
///
/// In directories of the host: where WS was made from some, it lands in all of them, or in the one that
/// --onto names, also all or nothing, even if the daemon is killed in the middle. Prints the files. What
/// others changed there since is a conflict, unless it is the same now; lines are not merged. --undo
/// takes the last such landing back, and then those before it, as far as the last 8 are kept.
///
/// What others put or change there in the very moment of a landing stays, and the landing goes back;
/// what was at such a path before is then beside it, under the name that the conflict tells.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe land try                            back into what it was forked from
  floe land try --onto web --dry-run       what would be done
  floe land web                            into the directory that web was made from
  floe land try --onto ./app               there, from a fork of web
  floe land web --undo                     and back
  kept=$(floe land try) && floe rollback web \"$kept\"
                                           there and back

Each file is shown with a letter as by `floe diff`; MM is text merged from both sides.

Under --json: an object with workspace, onto, dirs (of the host), landed (false if there was nothing to
do, or a conflict), files (path, change, from, merged), conflicts (path, ours, theirs, by: the workspace
that landed there before, saved: where what was there is now), kept, source (the snapshot of what
landed) and elapsed_us. With --undo: an object with workspace, undone (false in a dry run), added,
modified, deleted and metadata: how many of each.")]
pub(crate) struct Land {
    /// Workspace whose changes are to land
    #[arg(value_name = "WS")]
    workspace: String,
    /// Workspace to land on, mounted or not, or the directory of the host under WS (`/` or `.` begins
    /// it) [default: what WS was forked or made from]
    #[arg(long, value_name = "WS|DIR")]
    onto: Option<OsString>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Land only what is at this path of the workspace, and under it; can be repeated
    #[arg(long, value_name = "PATH")]
    only: Vec<OsString>,
    /// Take text that both sides changed for a conflict
    #[arg(long)]
    no_merge: bool,
    /// Take the last landing in directories of the host back
    #[arg(long, conflicts_with_all = ["only", "onto", "no_merge"])]
    undo: bool,
}

impl Land {
    /// Carries it out.
    ///
    /// # Errors
    /// When a workspace does not exist, or there are conflicts.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        if self.undo {
            return self.take_back(context);
        }
        let done = context.client()?.call(wire::Land {
            workspace: self.workspace.clone(),
            onto: self.onto.as_ref().map(target).transpose()?,
            dry_run: self.dry_run,
            only: self.only.iter().map(from_root).collect(),
            no_merge: self.no_merge,
        })?;
        let output = &context.output;
        if output.json {
            output.json(&done)?;
        } else {
            if !done.conflicts.is_empty() {
                output.text(&done.conflicts.iter().map(clash).collect::<String>())?;
            } else if let Some(kept) = &done.kept {
                // The snapshot is what a script wants.
                for file in &done.files {
                    output.note(line(file).trim_end());
                }
                output.line(kept)?;
            } else {
                output.text(&done.files.iter().map(line).collect::<String>())?;
            }
            if done.conflicts.is_empty() {
                output.note(&summary(&done, self.dry_run));
            }
        }
        match done.conflicts.len() {
            0 => Ok(()),
            count => Err(refused(&done, count)),
        }
    }

    fn take_back(&self, context: &Context) -> Result<(), ApiError> {
        let undone = context.client()?.call(wire::UndoLanding {
            workspace: self.workspace.clone(),
            dry_run: self.dry_run,
        })?;
        if context.output.json {
            return context.output.json(&undone);
        }
        let OnHost {
            added,
            modified,
            deleted,
            metadata,
        } = undone.done;
        let done = if self.dry_run {
            "would be taken back"
        } else {
            "taken back"
        };
        context.output.note(&format!(
            "{done}: {added} added, {modified} modified, {deleted} deleted, {metadata} with other \
             metadata"
        ));
        Ok(())
    }
}

/// A workspace's name as it is, or a directory as an absolute path.
fn target(onto: &OsString) -> Result<WirePath, ApiError> {
    let bytes = onto.as_bytes();
    if !bytes.contains(&b'/') && !bytes.starts_with(b".") {
        return Ok(WirePath::from_bytes(bytes));
    }
    Ok(WirePath::from(&*absolute(Path::new(onto))?))
}

fn refused(done: &Landed, count: usize) -> ApiError {
    let what = format!(
        "'{}' does not land on '{}': {}; {}",
        done.workspace,
        done.onto,
        counted(count, "conflict"),
        if done.conflicts.iter().any(|one| one.saved.is_some()) {
            "what had begun was taken back"
        } else {
            "nothing was changed"
        }
    );
    if !done.dirs.is_empty() {
        return ApiError::new(ErrorKind::Conflict, what)
            .hint("make them equal on one of the sides, or leave them out with --only");
    }
    ApiError::new(ErrorKind::Conflict, what).hint(format!(
        "see what both did with `floe diff {0}` and `floe diff {0}@base {1}`",
        done.workspace, done.onto
    ))
}

fn summary(done: &Landed, dry_run: bool) -> String {
    let count = done.files.len();
    let files = counted(count, "file");
    let (workspace, onto) = (&done.workspace, &done.onto);
    let took = time::elapsed(done.elapsed_us);
    if count == 0 {
        return format!("'{workspace}' has nothing to land on '{onto}'");
    }
    if !dry_run && !done.dirs.is_empty() {
        return format!("{files} of '{workspace}' landed in '{onto}' in {took}");
    }
    if dry_run {
        return format!("{files} of '{workspace}' would land on '{onto}'");
    }
    format!(
        "{files} of '{workspace}' landed on '{onto}' in {took}; the state before is kept in \
         the snapshot above"
    )
}

/// A file that lands.
fn line(file: &LandedFile) -> String {
    let path = quoted(&file.path.to_bytes());
    let letter = if file.merged {
        "MM"
    } else {
        letter(&file.change)
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
    let saved = match &conflict.saved {
        Some(saved) => format!("; what was there is {}", quoted(&saved.to_bytes())),
        None => String::new(),
    };
    let (ours, theirs) = (&conflict.ours, &conflict.theirs);
    format!("C\t{path}\tours {ours}; theirs {theirs}{by}{saved}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_conflict_names_both_sides_and_who_landed_before() {
        let mut conflict = Conflicting {
            path: WirePath::from_bytes(b"a\n"),
            ours: "changed the contents".into(),
            theirs: "removed it".into(),
            by: None,
            saved: None,
        };
        let expected = "C\t\"a\\n\"\tours changed the contents; theirs removed it";
        assert_eq!(clash(&conflict), format!("{expected}\n"));
        conflict.by = Some("one".into());
        assert_eq!(clash(&conflict), format!("{expected} (landed from one)\n"));
    }
}
