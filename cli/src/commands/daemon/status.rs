//! `floe daemon status`.

use clap::Args;

use crate::client::Client;
use crate::commands::{Context, facts};
use crate::error::{ApiError, ErrorKind};
use crate::output::{printable, table};
use crate::time;
use crate::wire;

/// Show the running daemon and its mounts
///
/// Ends with status 5 if none runs. Does not start one.
#[derive(Args, Debug)]
pub(crate) struct Status {}

impl Status {
    /// Carries it out.
    ///
    /// # Errors
    /// When no daemon runs.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let Some(mut client) = Client::connect_any_version(&context.store)? else {
            let what = format!(
                "the daemon of '{}' is not running",
                context.store.path().display()
            );
            return Err(ApiError::new(ErrorKind::DaemonUnreachable, what)
                .hint("start it with `floe daemon start`"));
        };
        let status = client.call(wire::Status {})?;
        if context.output.json {
            return context.output.json(&status);
        }
        let mut text = facts(&[
            ("pid", status.pid.to_string()),
            ("version", status.version),
            ("store", printable(&status.store.to_string())),
            (
                "started",
                format!("{} ({})", status.started_at, time::ago(&status.started_at)),
            ),
            (
                "api",
                status
                    .api
                    .unwrap_or_else(|| "not served; see `floe serve`".to_owned()),
            ),
            ("mounts", status.mounts.len().to_string()),
        ]);
        if !status.mounts.is_empty() {
            let rows: Vec<Vec<String>> = status
                .mounts
                .into_iter()
                .map(|mount| {
                    let what = mount.workspace.or(mount.snapshot).unwrap_or_default();
                    let access = if mount.read_only {
                        "read-only"
                    } else {
                        "read-write"
                    };
                    vec![what, access.to_owned(), printable(&mount.dir.to_string())]
                })
                .collect();
            text.push('\n');
            text.push_str(&table(&["WHAT", "ACCESS", "DIRECTORY"], &rows));
        }
        if !status.unrestored.is_empty() {
            let rows: Vec<Vec<String>> = status
                .unrestored
                .into_iter()
                .map(|it| vec![printable(&it.dir.to_string()), printable(&it.error)])
                .collect();
            text.push('\n');
            text.push_str(&table(&["NOT MOUNTED AGAIN", "WHY"], &rows));
        }
        context.output.text(&text)
    }
}
