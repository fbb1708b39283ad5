//! `floe snap tree`.

use clap::Args;
use serde::Serialize;

use super::graph::{Graph, Node, Only, Standing};
use super::title;
use crate::commands::Context;
use crate::error::ApiError;
use crate::output::{Paint, printable, shortened, width};
use crate::time;
use crate::wire::records::{Snapshot, Workspace};
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

/// The least room for the text after the graph.
const TEXT_MIN: usize = 40;

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
        let rows = graph.rows(only.as_ref());
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
        let (width, unicode) = (width(), speaks_unicode());
        let mut text = String::new();
        for row in &rows {
            let lead = if unicode {
                row.lead.clone()
            } else {
                ascii(&row.lead)
            };
            let room = width.saturating_sub(lead.chars().count() + 2).max(TEXT_MIN);
            let (mark, words) = match row.node {
                Node::Snapshot(snapshot) => ("*", snapshot_words(context, snapshot, room)),
                Node::Workspace(one) => ("o", workspace_words(context, one.workspace, room)),
            };
            text.push_str(&format!("{lead}{mark} {words}\n"));
        }
        context.output.text(&text)
    }
}

/// `ID  WORKSPACE  AGE  TITLE`, in at most `room` characters.
fn snapshot_words(context: &Context, snapshot: &Snapshot, room: usize) -> String {
    let facts = format!(
        "  {}  {}  ",
        shortened(&snapshot.workspace, 20),
        time::ago(&snapshot.created_at)
    );
    let left = room.saturating_sub(snapshot.id.len() + facts.chars().count());
    let title = shortened(&printable(&title(snapshot)), left);
    let title = if snapshot.automatic.is_some() {
        context.output.paint(Paint::Dim, &title)
    } else {
        title
    };
    format!(
        "{}{facts}{title}",
        context.output.paint(Paint::Hint, &snapshot.id)
    )
}

fn workspace_words(context: &Context, workspace: &Workspace, room: usize) -> String {
    let state = match workspace.mounts.first() {
        Some(dir) => format!("  on {}", printable(&dir.to_string())),
        None => "  (not mounted)".to_owned(),
    };
    let state = shortened(&state, room.saturating_sub(workspace.name.len()));
    format!(
        "{}{state}",
        context.output.paint(Paint::Good, &workspace.name)
    )
}

fn ascii(lead: &str) -> String {
    lead.replace(['│', '├'], "|").replace('─', "-")
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
