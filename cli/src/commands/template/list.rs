//! `floe template list`.

use clap::Args;

use crate::commands::Context;
use crate::error::ApiError;
use crate::output::{printable, table};
use crate::time;
use crate::wire::ListTemplates;

/// List the templates
///
/// `base` is there once the first sandbox was made. Under --json: an array of objects with name,
/// snapshot and updated_at.
#[derive(Args, Debug)]
pub(crate) struct List {}

impl List {
    /// Carries it out.
    ///
    /// # Errors
    /// When the daemon cannot answer.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let all = context.client()?.call(ListTemplates {})?;
        if context.output.json {
            return context.output.json(&all);
        }
        if context.output.quiet {
            let names: String = all.iter().map(|one| printable(&one.name) + "\n").collect();
            return context.output.text(&names);
        }
        if all.is_empty() {
            context
                .output
                .note("no templates; make one with: floe template build NAME");
            return Ok(());
        }
        let rows: Vec<Vec<String>> = all
            .iter()
            .map(|one| {
                vec![
                    printable(&one.name),
                    one.snapshot.clone(),
                    time::ago(&one.updated_at),
                ]
            })
            .collect();
        context
            .output
            .text(&table(&["NAME", "SNAPSHOT", "UPDATED"], &rows))
    }
}
