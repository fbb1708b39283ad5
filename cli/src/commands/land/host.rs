//! Landing in directories of the host.

use super::super::diff;
use super::super::diff::names::from_root;
use super::Land;
use crate::client::Client;
use crate::commands::Context;
use crate::error::ApiError;
use crate::output::printable;
use crate::wire;
use crate::wire::records::OnHost;

impl Land {
    pub(super) fn in_directories(
        &self,
        client: &mut Client,
        context: &Context,
    ) -> Result<(), ApiError> {
        let landed = client.call(wire::LandOnHost {
            workspace: self.workspace.clone(),
            only: self.only.iter().map(from_root).collect(),
            dry_run: self.dry_run,
        })?;
        if context.output.json {
            return context.output.json(&landed);
        }
        let lines: String = landed.changes.iter().map(diff::status).collect();
        context.output.text(&lines)?;
        let dirs: Vec<_> = landed.dirs.iter().map(|dir| format!("'{dir}'")).collect();
        let done = if self.dry_run {
            "would be landed"
        } else {
            "landed"
        };
        let what = numbers(&landed.done);
        context.output.note(&printable(&format!(
            "{done} in {}: {what}",
            dirs.join(", ")
        )));
        Ok(())
    }

    pub(super) fn undo(&self, client: &mut Client, context: &Context) -> Result<(), ApiError> {
        let undone = client.call(wire::UndoLanding {
            workspace: self.workspace.clone(),
            dry_run: self.dry_run,
        })?;
        if context.output.json {
            return context.output.json(&undone);
        }
        let done = if self.dry_run {
            "would be taken back"
        } else {
            "taken back"
        };
        context
            .output
            .note(&format!("{done}: {}", numbers(&undone.done)));
        Ok(())
    }
}

fn numbers(done: &OnHost) -> String {
    let OnHost {
        added,
        modified,
        deleted,
        metadata,
    } = done;
    format!("{added} added, {modified} modified, {deleted} deleted, {metadata} with other metadata")
}
