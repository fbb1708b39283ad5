//! `floe bisect`.

mod search;
mod trial;

use std::collections::HashMap;
use std::ffi::OsString;

use clap::Args;
use serde::Serialize;

use self::search::{Next, Search, Verdict};
use self::trial::Trials;
use super::{Context, diff};
use crate::client::Client;
use crate::error::{ApiError, ErrorKind};
use crate::output::{first_line, printable};
use crate::wire::records::{Changed, Snapshot};
use crate::wire::{Diff, ListSnapshots, ShowSnapshot, ShowWorkspace};

/// Find the snapshot with which something began to fail
///
/// Forks a snapshot between a good and a bad one, runs the command in the fork, and halves what is
/// left, until the first bad snapshot is known. It is printed with what differs from the one before.
/// Exit code 0 of the command says good, 125 that it cannot be told, any other below 128 bad; 128 and
/// above end the search.
///
/// The command runs in the fork's root, with FLOE_WORKSPACE (the fork), FLOE_SNAPSHOT and FLOE_STORE
/// set; what it prints goes to stderr. The forks are called bisect-PID-N and are removed, and
/// what the command left running in its process group is ended, also on an interrupt.
///
/// Under --json: an object with `first_bad` and `previous` (snapshots), `runs` (each `snapshot`,
/// `verdict` and `code`), and `changes` as of `floe diff --json`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe bisect web --good green -- make test
  floe bisect web --good green --bad red -- sh -c '! grep -r FIXME src'")]
pub(crate) struct Bisect {
    /// Workspace whose snapshots are tried
    #[arg(value_name = "WS")]
    workspace: String,
    /// A snapshot in which the command succeeds
    #[arg(long, value_name = "SNAP")]
    good: String,
    /// A snapshot in which it fails [default: the workspace as it is now]
    #[arg(long, value_name = "SNAP")]
    bad: Option<String>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Found<'a> {
    first_bad: &'a Snapshot,
    previous: &'a Snapshot,
    runs: &'a [Run],
    changes: &'a [Changed],
}

/// One run of the command.
#[derive(Serialize)]
struct Run {
    snapshot: String,
    verdict: &'static str,
    code: i32,
}

impl Bisect {
    /// Carries it out.
    ///
    /// # Errors
    /// When the good one fails, the bad one does not, the command ends the search, or no single
    /// snapshot can be named.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut trials = Trials::new(context, &self.command)?;
        let good = find(trials.client(), &self.workspace, &self.good)?;
        let bad = match &self.bad {
            Some(bad) => Some(find(trials.client(), &self.workspace, bad)?),
            None => None,
        };
        self.check_order(trials.client(), &good, bad.as_ref())?;
        let mut runs = Vec::new();
        if self.try_one(context, &mut trials, &good.id, &mut runs)?.1 != Verdict::Good {
            let good = shown(&good);
            let what = format!("the command does not succeed in {good}, which was to be good");
            return Err(ApiError::new(ErrorKind::Failed, what)
                .hint("try it by hand: fork the snapshot with `floe fork`"));
        }
        // Of a workspace, the fork tells which snapshot its present state is.
        let of = bad.as_ref().map_or(&self.workspace, |bad| &bad.id);
        let (last, verdict) = self.try_one(context, &mut trials, of, &mut runs)?;
        if verdict != Verdict::Bad {
            let now = || format!("'{}' as it is now", self.workspace);
            let bad = bad.as_ref().map_or_else(now, shown);
            let what = format!("the command does not fail in {bad}, which was to be bad");
            return Err(ApiError::new(ErrorKind::Failed, what));
        }
        let snapshots = trials.client().call(ListSnapshots::default())?;
        let row = between(&snapshots, &good.id, &last).ok_or_else(|| not_before(&good, &last))?;
        let mut search = Search::new(row.len());
        let first = loop {
            match search.next() {
                Next::Try(at) => {
                    let (_, verdict) =
                        self.try_one(context, &mut trials, &row[at].id, &mut runs)?;
                    search.note(at, verdict);
                }
                Next::Found(at) => break at,
                Next::OneOf(left) => return Err(not_told(left.iter().map(|&at| row[at]))),
            }
        };
        let previous = if first == 0 { &good } else { row[first - 1] };
        let changes = trials.client().call(Diff {
            a: previous.id.clone(),
            b: Some(row[first].id.clone()),
            ..Diff::default()
        })?;
        if context.output.json {
            return context.output.json(&Found {
                first_bad: row[first],
                previous,
                runs: &runs,
                changes: &changes,
            });
        }
        context
            .output
            .line(format!("{} is the first bad snapshot", shown(row[first])))?;
        let lines: String = changes.iter().map(diff::names::status).collect();
        context.output.text(&lines)?;
        context
            .output
            .note(&format!("found with {} runs", runs.len()));
        Ok(())
    }

    /// The bad one must come from the good one.
    fn check_order(
        &self,
        client: &mut Client,
        good: &Snapshot,
        bad: Option<&Snapshot>,
    ) -> Result<(), ApiError> {
        let workspace = client.call(ShowWorkspace {
            name: self.workspace.clone(),
        })?;
        let (last, may_be_good) = match bad {
            Some(bad) => (Some(bad.id.clone()), false),
            None => (workspace.parent, true),
        };
        let snapshots = client.call(ListSnapshots::default())?;
        match last {
            Some(last) if may_be_good && last == good.id => Ok(()),
            Some(last) if between(&snapshots, &good.id, &last).is_some() => Ok(()),
            Some(last) => Err(not_before(good, &last)),
            None => Err(not_before(good, &format!("'{}'", self.workspace))),
        }
    }

    /// Runs the command in a fork and says so.
    fn try_one(
        &self,
        context: &Context,
        trials: &mut Trials<'_>,
        of: &str,
        runs: &mut Vec<Run>,
    ) -> Result<(String, Verdict), ApiError> {
        let (snapshot, verdict, code) = trials.run(of)?;
        let word = match verdict {
            Verdict::Good => "good",
            Verdict::Bad => "bad",
            Verdict::Skip => "skip",
        };
        context
            .output
            .note(&format!("{snapshot}: {word} (exit code {code})"));
        runs.push(Run {
            snapshot: snapshot.clone(),
            verdict: word,
            code,
        });
        Ok((snapshot, verdict))
    }
}

/// A snapshot, by its own name first if the workspace has one of that name.
fn find(client: &mut Client, workspace: &str, reference: &str) -> Result<Snapshot, ApiError> {
    if !reference.contains('/') {
        let own = ShowSnapshot {
            snapshot: format!("{workspace}/{reference}"),
        };
        match client.call(own) {
            Err(error) if error.kind == ErrorKind::NotFound => {}
            found => return found,
        }
    }
    client.call(ShowSnapshot {
        snapshot: reference.to_owned(),
    })
}

/// The snapshots after the good one to the bad one, oldest first; none if there are none.
fn between<'a>(snapshots: &'a [Snapshot], good: &str, bad: &str) -> Option<Vec<&'a Snapshot>> {
    let by_id: HashMap<_, _> = snapshots.iter().map(|one| (one.id.as_str(), one)).collect();
    let mut row = Vec::new();
    let mut at = *by_id.get(bad)?;
    while at.id != good {
        row.push(at);
        // A parent is older; one that is not would be a loop.
        let parent = by_id.get(at.parent.as_deref()?);
        at = parent.filter(|parent| parent.layer < at.layer)?;
    }
    row.reverse();
    (!row.is_empty()).then_some(row)
}

fn not_before(good: &Snapshot, bad: &str) -> ApiError {
    let good = shown(good);
    let what = format!("{good} is not among the snapshots that {bad} comes from");
    ApiError::new(ErrorKind::Usage, what).hint("see what comes from what with `floe snap tree`")
}

/// Id, name and message in one line.
fn shown(snapshot: &Snapshot) -> String {
    let mut text = snapshot.id.clone();
    if let Some(name) = &snapshot.name {
        text.push_str(&format!(" ({name})"));
    }
    if let Some(message) = &snapshot.message {
        text.push_str(&format!(" \"{}\"", printable(first_line(message))));
    }
    text
}

fn not_told<'a>(left: impl Iterator<Item = &'a Snapshot>) -> ApiError {
    let what = "the first bad snapshot is one of several of which it cannot be told";
    let mut error = ApiError::new(ErrorKind::Failed, what);
    error.causes = left.map(shown).collect();
    error
}
