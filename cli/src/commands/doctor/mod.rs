//! `floe doctor`.

mod host;
mod sandboxes;
mod store;

use std::process::ExitCode;

use clap::Args;
use serde::Serialize;

use super::Context;
use crate::error::ApiError;
use crate::output::{Paint, printable};

/// Check whether this host and the store have what Floe needs
///
/// Changes nothing and starts nothing. Ends with status 1 if a check fails; warnings are about
/// what works less well or not yet.
#[derive(Args, Debug)]
pub(crate) struct Doctor {}

/// How a check went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Status {
    Ok,
    Warn,
    Fail,
}

/// One check.
#[derive(Debug, Serialize)]
struct Check {
    name: &'static str,
    status: Status,
    detail: String,
    hint: Option<String>,
}

impl Check {
    fn ok(name: &'static str, detail: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Ok,
            detail: detail.into(),
            hint: None,
        }
    }

    fn warn(name: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Warn,
            detail: detail.into(),
            hint: Some(hint.into()),
        }
    }

    fn fail(name: &'static str, detail: impl Into<String>, hint: impl Into<String>) -> Self {
        Self {
            name,
            status: Status::Fail,
            detail: detail.into(),
            hint: Some(hint.into()),
        }
    }
}

impl Doctor {
    /// Carries it out.
    ///
    /// # Errors
    /// When stdout cannot be written.
    pub(crate) fn run(&self, context: &Context) -> Result<ExitCode, ApiError> {
        let mut checks = host::checks();
        checks.extend(sandboxes::checks());
        checks.extend(store::checks(&context.store));
        if context.output.json {
            context.output.json(&checks)?;
        } else {
            context.output.text(&drawn(context, &checks))?;
        }
        let failed = checks.iter().any(|check| check.status == Status::Fail);
        Ok(if failed {
            ExitCode::FAILURE
        } else {
            ExitCode::SUCCESS
        })
    }
}

fn drawn(context: &Context, checks: &[Check]) -> String {
    let width = checks
        .iter()
        .map(|check| check.name.len())
        .max()
        .unwrap_or(0);
    let mut text = String::new();
    for check in checks {
        let (paint, word) = match check.status {
            Status::Ok => (Paint::Good, "ok  "),
            Status::Warn => (Paint::Warn, "warn"),
            Status::Fail => (Paint::Bad, "FAIL"),
        };
        let word = context.output.paint(paint, word);
        text.push_str(&format!(
            "{word}  {:width$}  {}\n",
            check.name,
            printable(&check.detail)
        ));
        if let Some(hint) = &check.hint {
            let label = context.output.paint(Paint::Hint, "hint");
            text.push_str(&format!("      {:width$}  {label}: {hint}\n", ""));
        }
    }
    text
}
