//! `floe sandbox show`.

use clap::Args;
use serde::Serialize;

use crate::commands::{Context, facts};
use crate::error::{ApiError, ErrorKind};
use crate::output::{printable, size};
use crate::time;
use crate::wire::sandbox::{OnTimeout, Sandbox, SandboxUsage};
use crate::wire::{MeasureSandbox, ShowSandbox};

/// Show one sandbox, with what it uses
///
/// Under --json: an object with the sandbox's fields, and usage: an object, or null if it has no
/// processes.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe sandbox show sb3f9c
  floe sandbox show sb3f9c --json | jq -r .state")]
pub(crate) struct Show {
    /// Sandbox (id or its first 4 or more characters)
    #[arg(value_name = "SB")]
    sandbox: String,
}

/// What `--json` prints.
#[derive(Serialize)]
struct Shown {
    #[serde(flatten)]
    sandbox: Sandbox,
    usage: Option<SandboxUsage>,
}

impl Show {
    /// Carries it out.
    ///
    /// # Errors
    /// When the reference fits none, or more than one.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        let sandbox = client.call(ShowSandbox {
            sandbox: self.sandbox.clone(),
        })?;
        let measured = client.call(MeasureSandbox {
            sandbox: sandbox.id.clone(),
        });
        let usage = match measured {
            Ok(usage) => Some(usage),
            // It has no processes, or was killed in between.
            Err(error) if matches!(error.kind, ErrorKind::Conflict | ErrorKind::NotFound) => None,
            Err(error) => return Err(error),
        };
        let shown = Shown { sandbox, usage };
        if context.output.json {
            return context.output.json(&shown);
        }
        context.output.text(&facts(&lines(&shown)))
    }
}

fn lines(shown: &Shown) -> Vec<(&'static str, String)> {
    let Shown { sandbox, usage } = shown;
    let or_none = |text: &Option<String>| text.as_deref().map_or_else(|| "-".to_owned(), printable);
    let when = |text: &str| format!("{text} ({})", time::ago(text));
    let mut lines = vec![
        ("id", sandbox.id.clone()),
        ("state", state(sandbox)),
        ("kind", sandbox.kind.clone()),
        ("template", printable(&sandbox.template)),
        ("snapshot", or_none(&sandbox.snapshot)),
        ("workspace", sandbox.workspace.clone()),
        ("created", when(&sandbox.created_at)),
        (
            "started",
            sandbox
                .started_at
                .as_deref()
                .map_or_else(|| "-".to_owned(), when),
        ),
        ("ends", ends(sandbox)),
        ("auto-resume", yes_no(sandbox.auto_resume)),
        ("session", or_none(&sandbox.session)),
        ("generation", sandbox.generation.to_string()),
        (
            "network",
            if sandbox.network { "host" } else { "none" }.to_owned(),
        ),
        ("fidelity", sandbox.fidelity.clone()),
    ];
    let used = usage.as_ref();
    let limits = &sandbox.limits;
    let bytes = |used: Option<u64>, limit: Option<u64>| of(used.map(size), limit.map(size));
    let count = |used: Option<u64>, limit: Option<u64>| {
        of(used.map(|n| n.to_string()), limit.map(|n| n.to_string()))
    };
    let cpu_time = used.and_then(|u| u.cpu_us).map(seconds);
    lines.extend([
        ("cpus", of(None, limits.cpu_millis.map(processors))),
        ("cpu time", cpu_time.unwrap_or_else(|| "-".to_owned())),
        (
            "memory",
            bytes(used.and_then(|u| u.memory_bytes), limits.memory_bytes),
        ),
        ("pids", count(used.and_then(|u| u.pids), limits.pids)),
        ("disk", bytes(used.map(|u| u.disk_bytes), limits.disk_bytes)),
    ]);
    if !sandbox.unenforced.is_empty() {
        lines.push(("not enforced", printable(&sandbox.unenforced.join(", "))));
    }
    for (key, value) in &sandbox.metadata {
        lines.push(("metadata", printable(&format!("{key}={value}"))));
    }
    lines
}

fn state(sandbox: &Sandbox) -> String {
    match &sandbox.reason {
        Some(reason) => printable(&format!("{}: {reason}", sandbox.state.word())),
        None => sandbox.state.word().to_owned(),
    }
}

fn ends(sandbox: &Sandbox) -> String {
    let then = match sandbox.on_timeout {
        OnTimeout::Kill => "is killed",
        OnTimeout::Pause => "is paused",
    };
    match &sandbox.ends_at {
        Some(at) => format!("{at} ({}), then it {then}", time::until(at)),
        None => "never".to_owned(),
    }
}

/// `USED of LIMIT`, as far as they are known.
fn of(used: Option<String>, limit: Option<String>) -> String {
    match (used, limit) {
        (Some(used), Some(limit)) => format!("{used} of {limit}"),
        (Some(used), None) => format!("{used}, no limit"),
        (None, Some(limit)) => format!("at most {limit}"),
        (None, None) => "no limit".to_owned(),
    }
}

/// Thousandths of a processor as processors: `1.5`, `0.042`, `2`.
fn processors(millis: u64) -> String {
    let text = format!("{}.{:03}", millis / 1000, millis % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Microseconds as seconds, to two places.
fn seconds(us: u64) -> String {
    format!("{}.{:02} s", us / 1_000_000, us % 1_000_000 / 10_000)
}

fn yes_no(yes: bool) -> String {
    if yes { "yes" } else { "no" }.to_owned()
}

#[cfg(test)]
mod tests {
    use super::super::samples::sandbox;
    use super::*;
    use crate::wire::sandbox::SandboxState;

    #[test]
    fn processors_are_shown_as_they_are_typed() {
        for (millis, text) in [
            (2000, "2"),
            (1500, "1.5"),
            (42, "0.042"),
            (10_000, "10"),
            (0, "0"),
        ] {
            assert_eq!(processors(millis), text);
        }
    }

    #[test]
    fn limits_and_use_stand_side_by_side_and_the_rest_is_said() {
        let mut one = sandbox("sb1", SandboxState::Stopped);
        one.reason = Some("the daemon was\u{1b} killed".to_owned());
        one.limits.memory_bytes = Some(512 << 20);
        one.limits.pids = Some(64);
        one.unenforced = vec!["cpus".to_owned()];
        one.metadata = [("k".to_owned(), "v\nw".to_owned())].into();
        let usage = Some(SandboxUsage {
            memory_bytes: Some(1 << 20),
            cpu_us: Some(61_250_999),
            ..SandboxUsage::default()
        });
        let text = facts(&lines(&Shown {
            sandbox: one.clone(),
            usage,
        }));
        for line in [
            "state:        stopped: the daemon was\\u{1b} killed",
            "memory:       1.0 MiB of 512 MiB",
            "cpus:         no limit",
            "cpu time:     61.25 s",
            "pids:         at most 64",
            "disk:         0 B, no limit",
            "not enforced: cpus",
            "metadata:     k=v\\nw",
            "ends:         never",
        ] {
            assert!(text.contains(line), "{line}\n{text}");
        }
        let without = facts(&lines(&Shown {
            sandbox: one,
            usage: None,
        }));
        assert!(without.contains("disk:         no limit"), "{without}");
    }

    #[test]
    fn json_has_the_sandboxs_fields_at_the_top() {
        let shown = Shown {
            sandbox: sandbox("sb1", SandboxState::Running),
            usage: None,
        };
        let json = serde_json::to_value(&shown).unwrap();
        assert_eq!(json["id"], "sb1");
        assert_eq!(json["state"], "running");
        assert!(json["usage"].is_null());
    }
}
