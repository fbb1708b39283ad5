//! `floe ws list`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::output::{printable, shortened, size, table};
use crate::time;
use crate::wire::ListWorkspaces;

/// List the workspaces
#[derive(Args, Debug)]
pub(crate) struct List {}

impl List {
    /// Carries it out.
    ///
    /// # Errors
    /// When the daemon cannot answer.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let all = context.client()?.call(ListWorkspaces {})?;
        if context.output.json {
            return context.output.json(&all);
        }
        if context.output.quiet {
            let names: String = all.iter().map(|one| format!("{}\n", one.name)).collect();
            return context.output.text(&names);
        }
        if all.is_empty() {
            context
                .output
                .note("no workspaces; make one with: floe ws create NAME");
            return Ok(());
        }
        let rows: Vec<Vec<String>> = all
            .iter()
            .map(|one| {
                vec![
                    one.name.clone(),
                    one.snapshot_count.to_string(),
                    size(one.bytes),
                    time::ago(&one.created_at),
                    mounted_on(
                        &one.mounts
                            .iter()
                            .map(ToString::to_string)
                            .collect::<Vec<_>>(),
                    ),
                ]
            })
            .collect();
        let head = ["NAME", "SNAPSHOTS", "SIZE", "CREATED", "MOUNTED ON"];
        context.output.text(&table(&head, &rows))
    }
}

fn mounted_on(dirs: &[String]) -> String {
    match dirs {
        [] => "-".to_owned(),
        [one] => shortened(&printable(one), 60),
        [first, rest @ ..] => {
            format!(
                "{} and {} more",
                shortened(&printable(first), 48),
                rest.len()
            )
        }
    }
}
