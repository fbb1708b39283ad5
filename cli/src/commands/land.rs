//! `floe land`.

use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use clap::Args;

use super::{Context, diff};
use crate::error::ApiError;
use crate::output::printable;
use crate::wire::records::OnHost;
use crate::wire::{self, WirePath};

/// Land what a workspace changed in the directory that it was made from
///
/// All or nothing, also if the daemon is killed in the middle. What others have changed there since
/// is a conflict, unless it is the same now: then nothing is touched, both sides of each conflict are
/// listed, and the exit code is 4. The next landing brings what changed since this one. What was
/// landed is kept as an automatic snapshot; what was there before the last 8 landings is kept for
/// --undo.
///
/// Under --json: an object with `dirs`, `landed`, `changes` (as of `floe diff --json`), `added`,
/// `modified`, `deleted`, `metadata`, and `snapshot`; with --undo `undone` and the numbers.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe land web --dry-run                see what would change, and conflicts
  floe land web --only src --only README.md
  floe land web --undo                   and back")]
pub(crate) struct Land {
    /// Workspace
    #[arg(value_name = "WS")]
    workspace: String,
    /// Only say what would be done
    #[arg(long)]
    dry_run: bool,
    /// Only this path of the workspace and what lies under it; may be repeated
    #[arg(long, value_name = "PATH")]
    only: Vec<PathBuf>,
    /// Take the last landing back
    #[arg(long, conflicts_with = "only")]
    undo: bool,
}

impl Land {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is nothing to land in, others have changed the same, or something fails.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        if self.undo {
            return self.undo(context);
        }
        let landed = context.client()?.call(wire::Land {
            workspace: self.workspace.clone(),
            only: self.only.iter().map(|path| relative(path)).collect(),
            dry_run: self.dry_run,
        })?;
        if context.output.json {
            return context.output.json(&landed);
        }
        let lines: String = landed.changes.iter().map(diff::status).collect();
        context.output.text(&lines)?;
        let dirs: Vec<_> = landed.dirs.iter().map(|dir| format!("'{dir}'")).collect();
        let done = if self.dry_run {
            "would be landed"
        } else {
            "landed"
        };
        let what = numbers(&landed.done);
        context.output.note(&printable(&format!(
            "{done} in {}: {what}",
            dirs.join(", ")
        )));
        Ok(())
    }

    fn undo(&self, context: &Context) -> Result<(), ApiError> {
        let undone = context.client()?.call(wire::UndoLanding {
            workspace: self.workspace.clone(),
            dry_run: self.dry_run,
        })?;
        if context.output.json {
            return context.output.json(&undone);
        }
        let done = if self.dry_run {
            "would be taken back"
        } else {
            "taken back"
        };
        context
            .output
            .note(&format!("{done}: {}", numbers(&undone.done)));
        Ok(())
    }
}

/// A path in the workspace, without what a shell's completion adds to it.
fn relative(path: &Path) -> WirePath {
    let bytes = path.as_os_str().as_bytes();
    let bytes = bytes.strip_prefix(b"./").unwrap_or(bytes);
    let end = bytes
        .iter()
        .rposition(|&byte| byte != b'/')
        .map_or(0, |at| at + 1);
    let begin = bytes.iter().position(|&byte| byte != b'/').unwrap_or(0);
    let bytes = &bytes[begin.min(end)..end];
    WirePath::from_bytes(if bytes == b"." { b"" } else { bytes })
}

fn numbers(done: &OnHost) -> String {
    let OnHost {
        added,
        modified,
        deleted,
        metadata,
    } = done;
    format!("{added} added, {modified} modified, {deleted} deleted, {metadata} with other metadata")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_relative_to_the_workspace() {
        for (text, expected) in [
            ("src", "src"),
            ("./src/", "src"),
            ("/src/a", "src/a"),
            (".", ""),
            ("/", ""),
        ] {
            assert_eq!(
                relative(Path::new(text)).to_bytes(),
                expected.as_bytes(),
                "{text}"
            );
        }
    }
}
