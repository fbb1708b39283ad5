//! `floe snap show`.

use clap::Args;

use crate::commands::{Context, facts};
use crate::error::ApiError;
use crate::output::printable;
use crate::time;
use crate::wire::ShowSnapshot;

/// Show one snapshot
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// Id or its first 4 or more digits, name, or WORKSPACE/NAME
    #[arg(value_name = "SNAP")]
    snapshot: String,
}

impl Show {
    /// Carries it out.
    ///
    /// # Errors
    /// When the reference fits none, or more than one.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let shown = context.client()?.call(ShowSnapshot {
            snapshot: self.snapshot.clone(),
        })?;
        if context.output.json {
            return context.output.json(&shown);
        }
        let none = || "-".to_owned();
        let mut lines = vec![
            ("id", shown.id),
            ("workspace", shown.workspace),
            ("name", shown.name.unwrap_or_else(none)),
            (
                "message",
                shown.message.as_deref().map_or_else(none, printable),
            ),
            ("parent", shown.parent.unwrap_or_else(none)),
            (
                "taken",
                format!("{} ({})", shown.created_at, time::ago(&shown.created_at)),
            ),
            ("took", time::elapsed(shown.elapsed_us)),
            (
                "durable",
                if shown.durable { "yes" } else { "no" }.to_owned(),
            ),
            (
                "protected",
                if shown.protected { "yes" } else { "no" }.to_owned(),
            ),
            (
                "expires",
                shown.expires_at.as_ref().map_or_else(
                    || "never".to_owned(),
                    |at| format!("{at} ({})", time::until(at)),
                ),
            ),
            ("fidelity", shown.fidelity),
            ("layer", shown.layer.to_string()),
        ];
        if let Some(reason) = shown.automatic {
            lines.push(("automatic", format!("before a {reason}")));
        }
        for (key, value) in &shown.labels {
            lines.push(("label", printable(&format!("{key}={value}"))));
        }
        context.output.text(&facts(&lines))
    }
}
