//! `floe diff`.

pub(super) mod names;
mod patch;
mod stat;

use std::ffi::OsString;

use clap::Args;

pub(super) use self::names::status;
use super::Context;
use crate::client::Client;
use crate::error::{ApiError, ErrorKind};
use crate::wire;
use crate::wire::records::{Changed, FileLines};

/// Show what differs between two workspaces, snapshots, or what a workspace was made from
///
/// Each side is a workspace (as it is now, with what programs have written to mapped files), a
/// snapshot, or WS@base: the snapshot that a workspace was forked from, or the directories of the
/// host under it. `floe diff WS` alone means `floe diff WS@base WS`. The two must come from one
/// workspace. How long it takes follows what was changed between them, not what is in them.
///
/// One line a path: A added, D deleted, M contents modified, R renamed (from, to), T another kind of
/// file, m only attributes (mode, owner, extended attributes, time of the last change). A renamed
/// file that was changed as well is RM or Rm; what is in a renamed directory is not listed for that.
/// A file that another was renamed over is M. Names that are not printable ASCII are quoted as git
/// does.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe diff try                            since the fork
  floe diff web/green web                  since a snapshot
  floe diff web@base web --stat -- src     of what is in src
  floe diff web/green try --patch | git apply

Under --json: an array of {path, change, from}; change is added, deleted, modified, renamed,
type_changed or metadata, from is there if it was renamed, and modified is true if a renamed file
has other contents as well. With --stat each has lines too.")]
pub(crate) struct Diff {
    /// Workspace, snapshot (id or its first 4 or more digits, name, or WORKSPACE/NAME), or WS@base
    #[arg(value_name = "A")]
    a: String,
    /// What to compare it with, named likewise
    #[arg(value_name = "B")]
    b: Option<String>,
    /// A letter and the path; what is printed without any of these options
    #[arg(long, conflicts_with_all = ["stat", "patch"])]
    name_status: bool,
    /// How many lines were added and removed in each file
    #[arg(long, conflicts_with = "patch")]
    stat: bool,
    /// A patch for `git apply` or `patch -p1`
    ///
    /// Files above 8 MiB and files with a byte 0 are only named. Directories, devices, FIFOs, sockets,
    /// owners and extended attributes are not part of a patch.
    #[arg(long, short)]
    patch: bool,
    /// Only these paths and what lies under them, from the root of the workspace
    #[arg(value_name = "PATH", last = true)]
    paths: Vec<OsString>,
}

impl Diff {
    /// Carries it out.
    ///
    /// # Errors
    /// When a side does not exist, or the two have nothing in common.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        if context.output.json && self.patch {
            return Err(ApiError::new(ErrorKind::Usage, "a patch is text, not JSON")
                .hint("leave out --json or --patch"));
        }
        let mut client = context.client()?;
        let mut found = client.call(wire::Diff {
            a: self.a.clone(),
            b: self.b.clone(),
            paths: self.paths.iter().map(names::from_root).collect(),
            each_file: self.patch,
            versions: self.patch || self.stat,
        })?;
        if self.patch {
            return patch::print(context, &mut client, &found);
        }
        if self.stat {
            for one in &mut found {
                one.lines = lines(&mut client, one, false)?;
                if context.output.json {
                    (one.old, one.new) = (None, None);
                }
            }
        }
        if context.output.json {
            return context.output.json(&found);
        }
        let text: String = if context.output.quiet {
            let paths = found.iter().map(|one| names::quoted(&one.path.to_bytes()));
            paths.map(|path| format!("{path}\n")).collect()
        } else if self.stat {
            stat::table(&found, crate::output::width())
        } else {
            found.iter().map(names::status).collect()
        };
        context.output.text(&text)
    }
}

/// Compares the two contents of an entry by lines; `None` if there is nothing to compare.
fn lines(client: &mut Client, one: &Changed, hunks: bool) -> Result<Option<FileLines>, ApiError> {
    let of = |side: &Option<wire::records::Version>| {
        let side = side.as_ref().filter(|side| side.has_lines());
        side.map(|side| side.file)
    };
    let (old, new) = (of(&one.old), of(&one.new));
    let differ = one.is("added") || one.is("deleted") || one.modified();
    if !differ || (old.is_none() && new.is_none()) {
        return Ok(None);
    }
    client.call(wire::DiffFile { old, new, hunks }).map(Some)
}
