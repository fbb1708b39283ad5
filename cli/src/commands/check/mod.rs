//! `floe check`.

mod told;

use std::process::ExitCode;

use clap::Args;

use self::told::{lines, read};
use super::Context;
use crate::error::ApiError;
use crate::output::{counted, printable};
use crate::progress::ImportBar;
use crate::time;
use crate::wire;
use crate::wire::check::{Checked, Repaired};

/// Check that the store is sound
///
/// Looks at everything the catalog holds and at the files beside it; contents are read only with --data. The
/// store may be in use meanwhile. Problems are printed one a line, and end it with status 1. What is
/// damaged is named by its path and by the snapshots and workspaces that show it there.
///
/// With --repair everything is put right that can be without guessing, and the rest is named with the
/// reason: nothing may be mounted. Damaged contents are not what they were, so reading them fails from
/// then on, and everything else of the file can be read. Nothing is removed: files that belong to nothing,
/// and a copy of the catalog as it was, go to the directory quarantine in the store.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe check
  floe check --data
  floe check --repair --data --dry-run
  floe check --json | jq '.problems[].message'

Under --json: an object with problems and known (lists of objects with problem, message, places and, for
damaged contents, object, start and end), more, layers, inodes, names, objects, data and elapsed_us. With
--repair: repaired, steps (with action), left (with why), catalog_copy, data, clean, and after (as above).")]
pub(crate) struct Check {
    /// Also read all contents, and verify those that were hashed
    #[arg(long)]
    data: bool,
    /// Put right what can be without guessing
    #[arg(long)]
    repair: bool,
    /// Only say what --repair would do
    #[arg(long, requires = "repair")]
    dry_run: bool,
}

impl Check {
    /// Carries it out.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) fn run(&self, context: &Context) -> Result<ExitCode, ApiError> {
        let shown = self.data && !context.output.json && !context.output.quiet;
        let mut bar = ImportBar::new("reading", shown);
        let mut client = context.client()?;
        let mut update = |progress: &wire::Progress| bar.update(progress);
        let sound = if self.repair {
            let (data, dry_run) = (self.data, self.dry_run);
            let request = wire::RepairStore { data, dry_run };
            let done = client.call_with_progress(request, &mut update);
            drop(bar);
            let done = done?;
            tell_repaired(context, &done)?;
            done.clean
        } else {
            let request = wire::CheckStore { data: self.data };
            let found = client.call_with_progress(request, &mut update);
            drop(bar);
            let found = found?;
            tell_checked(context, &found)?;
            problems(&found) == 0
        };
        Ok(if sound {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}

fn problems(found: &Checked) -> u64 {
    found.problems.len() as u64 + found.more
}

fn tell_checked(context: &Context, found: &Checked) -> Result<(), ApiError> {
    let output = &context.output;
    if output.json {
        return output.json(found);
    }
    for problem in &found.problems {
        for line in lines(problem) {
            output.line(&line)?;
        }
    }
    let known = found.known.iter().flat_map(lines);
    for line in known {
        output.line(&line)?;
    }
    let problems = problems(found);
    let verdict = match problems {
        0 => "the store is sound".to_owned(),
        1 => "the store has a problem".to_owned(),
        _ if found.more == 0 => format!("the store has {problems} problems"),
        _ => format!("the store has {problems} problems, the first are above"),
    };
    if let Some(data) = &found.data {
        output.note(&read(data));
    }
    output.note(&format!(
        "{verdict}: {} layers, {} inodes, {} names and {} objects looked at in {}",
        found.layers,
        found.inodes,
        found.names,
        found.objects,
        time::elapsed(found.elapsed_us)
    ));
    Ok(())
}

fn tell_repaired(context: &Context, done: &Repaired) -> Result<(), ApiError> {
    let output = &context.output;
    if output.json {
        return output.json(done);
    }
    let word = if done.repaired {
        "repaired"
    } else {
        "to repair"
    };
    for step in &done.steps {
        for line in lines(&step.problem) {
            output.line(format!("{word}: {line}: {}", step.action))?;
        }
    }
    for left in &done.left {
        for line in lines(&left.problem) {
            output.line(format!("left: {line}: {}", left.why))?;
        }
    }
    if let Some(data) = &done.data {
        output.note(&read(data));
    }
    if let Some(copy) = &done.catalog_copy {
        let copy = printable(&copy.to_string());
        output.note(&format!("the catalog before is kept in {copy}"));
    }
    let steps = counted(done.steps.len(), "problem");
    output.note(&match (done.repaired, done.clean) {
        (false, true) => "nothing is to be repaired".to_owned(),
        (false, false) => format!(
            "{steps} would be repaired, {} left; nothing was changed",
            done.left.len()
        ),
        (true, true) => format!("{steps} repaired: the store is sound"),
        (true, false) => format!(
            "{steps} repaired, {} left",
            counted(done.after.problems.len(), "problem")
        ),
    });
    Ok(())
}
