//! `floe snap tree`.

use clap::Args;
use serde::Serialize;

use super::draw::{Page, drawn, lead_max};
use super::graph::{Graph, Node, Only, Standing};
use crate::commands::Context;
use crate::error::ApiError;
use crate::output::width;
use crate::wire::records::Snapshot;
use crate::wire::{ListSnapshots, ListWorkspaces};

/// Draw which snapshot and workspace comes from which
///
/// Oldest first. A line of snapshots stays in its column, whatever its length; what was forked or
/// rolled back from it branches off to the right. `*` is a snapshot, `o` a workspace.
///
/// Under --json: an array of the snapshots, each with `workspaces`, the names of those that stand
/// on it.
#[derive(Args, Debug)]
pub(crate) struct Tree {
    /// Only the trees in which this workspace or its snapshots occur
    #[arg(long, value_name = "WS")]
    ws: Option<String>,
}

#[derive(Serialize)]
struct JsonNode<'a> {
    #[serde(flatten)]
    snapshot: &'a Snapshot,
    workspaces: Vec<&'a str>,
}

impl Tree {
    /// Carries it out.
    ///
    /// # Errors
    /// When the daemon cannot answer, or there is no workspace of that name.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut client = context.client()?;
        let snapshots = client.call(ListSnapshots::default())?;
        let workspaces = client.call(ListWorkspaces {})?;
        // Its own, and not those of a deleted workspace of the same name.
        let own = match &self.ws {
            Some(name) => client.call(ListSnapshots {
                workspace: Some(name.clone()),
                ..ListSnapshots::default()
            })?,
            None => Vec::new(),
        };
        let standing: Vec<_> = workspaces.iter().map(Standing::new).collect();
        let graph = Graph::new(&snapshots, &standing);
        let only = self.ws.as_deref().map(|workspace| Only {
            workspace,
            snapshots: &own,
        });
        let width = width();
        let rows = graph.rows(only.as_ref(), lead_max(width));
        if context.output.json {
            let nodes: Vec<_> = rows
                .iter()
                .filter_map(|row| match row.node {
                    Node::Snapshot(snapshot) => Some(JsonNode {
                        snapshot,
                        workspaces: graph.workspaces_on(snapshot).collect(),
                    }),
                    Node::Workspace(_) => None,
                })
                .collect();
            return context.output.json(&nodes);
        }
        if rows.is_empty() {
            context.output.note("no snapshots and no workspaces");
        }
        let page = Page {
            width,
            unicode: speaks_unicode(),
            output: &context.output,
        };
        context.output.text(&drawn(&rows, &page))
    }
}

fn speaks_unicode() -> bool {
    let value = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
    let locale = value("LC_ALL")
        .or_else(|| value("LC_CTYPE"))
        .or_else(|| value("LANG"));
    locale.is_some_and(|locale| {
        locale
            .to_ascii_lowercase()
            .replace('-', "")
            .contains("utf8")
    })
}
