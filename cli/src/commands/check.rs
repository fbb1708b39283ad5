//! `floe check`.

use std::process::ExitCode;

use clap::Args;

use super::Context;
use crate::error::ApiError;
use crate::time;
use crate::wire;

/// Check that the store is sound
///
/// Looks at everything the catalog holds and at the files beside it; contents are not read. The
/// store may be in use meanwhile. Problems are printed one a line, and end it with status 1.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe check
  floe check --json | jq '.problems[].message'")]
pub(crate) struct Check {}

impl Check {
    /// Carries it out.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub(crate) fn run(&self, context: &Context) -> Result<ExitCode, ApiError> {
        let found = context.client()?.call(wire::CheckStore {})?;
        let problems = found.problems.len() as u64 + found.more;
        if context.output.json {
            context.output.json(&found)?;
        } else {
            for problem in &found.problems {
                context.output.line(&problem.message)?;
            }
            let verdict = match problems {
                0 => "the store is sound".to_owned(),
                1 => "the store has a problem".to_owned(),
                _ if found.more == 0 => format!("the store has {problems} problems"),
                _ => format!("the store has {problems} problems, the first are above"),
            };
            context.output.note(&format!(
                "{verdict}: {} layers, {} inodes, {} names and {} objects looked at in {}",
                found.layers,
                found.inodes,
                found.names,
                found.objects,
                time::elapsed(found.elapsed_us)
            ));
        }
        Ok(if problems == 0 {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        })
    }
}
