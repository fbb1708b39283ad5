//! `floe sandbox ...`: sandboxes.

pub(crate) mod create;
pub(crate) mod exec;
pub(crate) mod fork;
pub(crate) mod kill;
pub(crate) mod list;
pub(crate) mod logs;
pub(crate) mod pause;
pub(crate) mod resume;
pub(crate) mod rollback;
#[cfg(test)]
mod samples;
pub(crate) mod show;
pub(crate) mod snapshot;

use std::collections::BTreeMap;
use std::process::ExitCode;

use clap::Subcommand;

use super::Context;
use crate::error::{ApiError, ErrorKind};

/// Commands on sandboxes.
#[derive(Debug, Subcommand)]
pub(crate) enum Sandbox {
    Create(create::Create),
    #[command(visible_alias = "ls")]
    List(list::List),
    Show(show::Show),
    Exec(exec::Exec),
    Pause(pause::Pause),
    Resume(resume::Resume),
    Snapshot(snapshot::Snapshot),
    Fork(fork::Fork),
    Rollback(rollback::Rollback),
    #[command(visible_alias = "rm")]
    Kill(kill::Kill),
    Logs(logs::Logs),
}

impl Sandbox {
    /// Carries the command out.
    ///
    /// # Errors
    /// What kept it from doing so.
    pub(crate) fn run(&self, context: &Context) -> Result<ExitCode, ApiError> {
        let done = match self {
            Self::Create(command) => command.run(context),
            Self::List(command) => command.run(context),
            Self::Show(command) => command.run(context),
            Self::Exec(command) => return command.run(context),
            Self::Pause(command) => command.run(context),
            Self::Resume(command) => command.run(context),
            Self::Snapshot(command) => command.run(context),
            Self::Fork(command) => command.run(context),
            Self::Rollback(command) => command.run(context),
            Self::Kill(command) => command.run(context),
            Self::Logs(command) => command.run(context),
        };
        done.map(|()| ExitCode::SUCCESS)
    }
}

/// Splits `KEY=VALUE`; for clap.
fn pair(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key.to_owned(), value.to_owned())),
        _ => Err("it is KEY=VALUE".to_owned()),
    }
}

/// Values by key. A key given twice is an error: one of its values would be lost.
fn by_key(what: &str, given: &[(String, String)]) -> Result<BTreeMap<String, String>, ApiError> {
    let mut pairs = BTreeMap::new();
    for (key, value) in given {
        if pairs.insert(key.clone(), value.clone()).is_some() {
            let what = format!("{what} '{key}' is given more than once");
            return Err(ApiError::new(ErrorKind::Usage, what).hint("give each key one value"));
        }
    }
    Ok(pairs)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_given_twice_is_wrong_usage_and_says_of_what() {
        let pairs = ["a=1", "b=", "c=x=y"].map(|text| pair(text).unwrap());
        let read = by_key("the variable", &pairs).unwrap();
        assert_eq!(read["b"], "");
        assert_eq!(read["c"], "x=y");
        let twice = ["a=1", "a=1"].map(|text| pair(text).unwrap());
        let error = by_key("the variable", &twice).unwrap_err();
        assert_eq!(error.kind, ErrorKind::Usage);
        assert!(error.error.contains("the variable 'a'"), "{error}");
        assert!(pair("=v").is_err() && pair("k").is_err());
    }
}
