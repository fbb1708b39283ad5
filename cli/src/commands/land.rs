//! `floe land`.

use std::ffi::OsString;

use clap::Args;

use super::Context;
use super::diff::names::{from_root, quoted};
use crate::error::{ApiError, ErrorKind};
use crate::time;
use crate::wire;
use crate::wire::records::{Conflicting, Landed, LandedFile};

/// Merge what a workspace changed into the workspace that it was forked from, or into another
///
/// Three states are compared: where both came from, the workspace, and where it lands. What only one of
/// them changed is taken as it is, equal changes are one, and text that both changed is merged by lines.
/// All of it lands, at once where WS is mounted, or nothing: then every conflict is listed with what
/// both sides did, and the exit status is 4. Landing again lands what was changed since.
///
/// Prints the id of the automatic snapshot that keeps the state before: rolling back to it undoes
/// the landing. Refused while something is mounted inside the workspace that is landed on.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe land try                            back into what it was forked from
  floe land try --onto web --dry-run       what would be done
  kept=$(floe land try) && floe rollback web \"$kept\"
                                           there and back

Each file is shown with a letter as by `floe diff`; MM is text merged from both sides.

Under --json: an object with workspace, onto, landed (false if there was nothing to do, or a conflict),
files (path, change, from, merged), conflicts (path, ours, theirs, by: the workspace that landed there
before), kept and elapsed_us.")]
pub(crate) struct Land {
    /// Workspace whose changes are to land
    #[arg(value_name = "WS")]
    workspace: String,
    /// Workspace to land on, mounted or not [default: the one that WS was forked from]
    #[arg(long, value_name = "WS")]
    onto: Option<String>,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Land only what is at this path of the workspace, and under it; can be repeated
    #[arg(long, value_name = "PATH")]
    only: Vec<OsString>,
    /// Take text that both sides changed for a conflict
    #[arg(long)]
    no_merge: bool,
}

impl Land {
    /// Carries it out.
    ///
    /// # Errors
    /// When a workspace does not exist, or there are conflicts.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let done = context.client()?.call(wire::Land {
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
