//! `floe snap delete`.

use clap::Args;

use super::matching::Matching;
use super::title;
use crate::commands::{Context, gc};
use crate::error::{ApiError, ErrorKind};
use crate::output::{counted, printable, size};
use crate::progress::ImportBar;
use crate::wire::DeleteSnapshots;
use crate::wire::space::DeletedSnapshot;

/// Delete snapshots, by reference or by what they have in common
///
/// Whatever was forked from a snapshot, was taken after it, or is mounted from it goes on as it is:
/// what it still shows of the snapshot stays as long as it needs it. The rest of the space comes back
/// in the background; with --wait the command returns when that is done, and says how much it was.
///
/// Without references, at least one of --ws, --name, --label, --older-than and --keep-last says which:
/// those that match all of them. --keep-last keeps the newest that match, of each workspace.
///
/// Protected snapshots are refused by reference, and then none is deleted; else they are passed over.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe snap delete web/green 1f3c2aa09b7e6d54
  floe snap delete --ws web --keep-last 10 --dry-run
  floe snap delete --older-than 7d --wait
  floe snap delete --label ci=passed --older-than '12h 30m'

Prints the ids. Under --json: an object with deleted (false in a dry run), snapshots (as of `floe
snap show`, each with held_by: what stands on it, at
most 16, and more_held_by: how many more), protected (how many were passed over), frees (bytes, in a dry run), and with --wait
freed (as of `floe gc`).")]
pub(crate) struct Delete {
    /// Snapshots (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "SNAP")]
    #[arg(conflicts_with_all = ["ws", "name", "labels", "older_than", "keep_last"])]
    snapshots: Vec<String>,
    #[command(flatten)]
    matching: Matching,
    /// But for so many of the newest that match, of each workspace
    #[arg(long, value_name = "N")]
    keep_last: Option<usize>,
    /// Only say which they are
    #[arg(long)]
    dry_run: bool,
    /// Return when their space was given back
    #[arg(long)]
    wait: bool,
    /// Pass over references that fit no snapshot
    #[arg(long, requires = "snapshots")]
    if_exists: bool,
}

impl Delete {
    /// Carries it out.
    ///
    /// # Errors
    /// When a snapshot is not found: then none was deleted.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let filtered = self.matching.says_anything() || self.keep_last.is_some();
        if self.snapshots.is_empty() && !filtered {
            let what = "which snapshots are to be deleted is not said";
            return Err(ApiError::new(ErrorKind::Usage, what)
                .hint("name them, or say what they have in common: `floe snap delete --help`"));
        }
        let mut client = context.client()?;
        let mut snapshots = self.snapshots.clone();
        if self.if_exists {
            let mut there = Vec::new();
            for snapshot in snapshots {
                let shown = client.call(crate::wire::ShowSnapshot {
                    snapshot: snapshot.clone(),
                });
                match shown {
                    Err(error) if error.kind == ErrorKind::NotFound => {}
                    shown => there.push(shown?.id),
                }
            }
            if there.is_empty() {
                return self.nothing(context);
            }
            snapshots = there;
        }
        let request = DeleteSnapshots {
            snapshots,
            workspace: self.matching.ws.clone(),
            name: self.matching.name.clone(),
            labels: self.matching.labels()?,
            before: self.matching.before(),
            keep_last: self.keep_last.unwrap_or(0),
            dry_run: self.dry_run,
            wait: self.wait,
        };
        let output = &context.output;
        let mut bar = ImportBar::new("freeing", self.wait && !output.json && !output.quiet);
        let done = client.call_with_progress(request, &mut |progress| bar.update(progress));
        drop(bar);
        let done = done?;
        if output.json {
            return output.json(&done);
        }
        let ids = done
            .snapshots
            .iter()
            .map(|one| format!("{}\n", one.snapshot.id));
        output.text(&ids.collect::<String>())?;
        for one in &done.snapshots {
            if let Some(held) = held(one) {
                output.note(&held);
            }
        }
        let what = counted(done.snapshots.len(), "snapshot");
        output.note(&match (&done.freed, done.deleted) {
            (_, false) => {
                let frees = size(done.frees.unwrap_or(0));
                format!("{what} would be deleted, which would free {frees}")
            }
            (Some(freed), _) => format!("{what} deleted; {}", gc::told(freed)),
            (None, _) => format!("{what} deleted; space comes back in the background"),
        });
        if done.protected > 0 {
            output.note(&format!(
                "{} passed over: protected",
                counted(done.protected, "snapshot")
            ));
        }
        Ok(())
    }

    fn nothing(&self, context: &Context) -> Result<(), ApiError> {
        if context.output.json {
            return context.output.json(&crate::wire::space::SnapshotsDeleted {
                deleted: !self.dry_run,
                snapshots: Vec::new(),
                protected: 0,
                frees: self.dry_run.then_some(0),
                freed: None,
            });
        }
        context.output.note("no snapshot of these is there");
        Ok(())
    }
}

/// What needs something of a snapshot still.
fn held(one: &DeletedSnapshot) -> Option<String> {
    let (first, others) = one.held_by.split_first()?;
    let more = usize::try_from(one.more_held_by).unwrap_or(usize::MAX);
    let others = match others.len().saturating_add(more) {
        0 => String::new(),
        count => format!(" and {}", counted(count, "other")),
    };
    let title = printable(&title(&one.snapshot));
    let id = &one.snapshot.id;
    Some(format!(
        "{id} ({title}): what '{first}'{others} shows of it stays"
    ))
}
