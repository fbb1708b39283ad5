//! `floe retention ...`: how long snapshots are kept.

mod apply;
mod clear;
mod set;
mod show;

use clap::Subcommand;

use super::Context;
use crate::error::ApiError;
use crate::output::{Output, table};
use crate::time;
use crate::wire::retention::RetentionRule;

/// Commands on rules.
#[derive(Debug, Subcommand)]
pub(crate) enum Retention {
    Show(show::Show),
    Set(set::Set),
    Clear(clear::Clear),
    Apply(apply::Apply),
}

impl Retention {
    /// Carries the command out.
    ///
    /// # Errors
    /// What kept it from doing so.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        match self {
            Self::Show(command) => command.run(context),
            Self::Set(command) => command.run(context),
            Self::Clear(command) => command.run(context),
            Self::Apply(command) => command.run(context),
        }
    }
}

/// Prints rules.
fn print(output: &Output, rules: &[RetentionRule]) -> Result<(), ApiError> {
    if output.json {
        return output.json(&rules);
    }
    let rows: Vec<Vec<String>> = rules
        .iter()
        .map(|rule| {
            vec![
                rule.workspace.clone().unwrap_or_else(|| "(all)".to_owned()),
                rule.class.replace('_', " "),
                kept(rule),
                rule.source.clone(),
            ]
        })
        .collect();
    output.text(&table(&["WORKSPACE", "TAKEN", "KEPT", "SET BY"], &rows))
}

/// What a rule keeps, in words.
fn kept(rule: &RetentionRule) -> String {
    let last = rule.keep_last.map(|last| format!("the last {last}"));
    let within = rule
        .keep_within_s
        .map(|seconds| format!("those of {}", time::span(seconds)));
    match (last, within) {
        (Some(last), Some(within)) => format!("{last}, and {within}"),
        (None, None) => "all".to_owned(),
        (one, other) => one.or(other).unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_are_told_in_words() {
        let of = |last, within| {
            kept(&RetentionRule {
                keep_last: last,
                keep_within_s: within,
                ..RetentionRule::default()
            })
        };
        assert_eq!(of(None, None), "all");
        assert_eq!(of(Some(3), None), "the last 3");
        assert_eq!(of(None, Some(604_800)), "those of 7 d");
        assert_eq!(
            of(Some(32), Some(90)),
            "the last 32, and those of 1 min 30 s"
        );
    }
}
