//! `floe ws show`.

use clap::Args;

use crate::commands::{Context, facts};
use crate::error::ApiError;
use crate::output::{printable, size};
use crate::time;
use crate::wire::ShowWorkspace;
use crate::wire::records::Workspace;

/// Show one workspace
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// Name
    name: String,
}

impl Show {
    /// Carries it out.
    ///
    /// # Errors
    /// When there is no workspace of that name.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let shown = context.client()?.call(ShowWorkspace {
            name: self.name.clone(),
        })?;
        if context.output.json {
            return context.output.json(&shown);
        }
        let none = || "-".to_owned();
        let quota = quota_lines(&shown);
        let mut lines = vec![
            ("name", shown.name),
            (
                "created",
                format!("{} ({})", shown.created_at, time::ago(&shown.created_at)),
            ),
            ("forked from", shown.forked_from.unwrap_or_else(none)),
            ("stands on", shown.parent.unwrap_or_else(none)),
            ("layer", shown.layer.to_string()),
            ("snapshots", shown.snapshot_count.to_string()),
        ];
        lines.extend(quota);
        if shown.mounts.is_empty() {
            lines.push(("mounted on", none()));
        }
        lines.extend(
            shown
                .mounts
                .iter()
                .map(|dir| ("mounted on", printable(&dir.to_string()))),
        );
        if let Some(base) = shown.base {
            for dir in &base.dirs {
                let (dir, at) = (&dir.dir, &dir.at);
                lines.push(("made from", printable(&format!("{dir} at {at}"))));
            }
            for pattern in &base.exclude {
                lines.push(("without", printable(pattern)));
            }
            let state = match base.state.as_str() {
                "adopted" => "adopted: the store has everything",
                "adopting" => "being adopted",
                _ => "in place: contents are read from there",
            };
            lines.push(("base", state.to_owned()));
            let changed = base.changed.iter();
            lines.extend(changed.map(|path| ("changed", printable(&path.to_string()))));
            if base.more_changed {
                lines.push(("changed", "and more".to_owned()));
            }
        }
        context.output.text(&facts(&lines))
    }
}

/// What a workspace holds, and how much it may.
pub(super) fn quota_lines(shown: &Workspace) -> [(&'static str, String); 2] {
    let limit = |limit: Option<u64>, text: fn(u64) -> String| match limit {
        Some(limit) => format!(" of {}", text(limit)),
        None => String::new(),
    };
    let bytes = limit(shown.quota_bytes, size);
    let inodes = limit(shown.quota_inodes, |inodes| inodes.to_string());
    [
        (
            "size",
            format!("{}{bytes} ({} bytes)", size(shown.bytes), shown.bytes),
        ),
        ("inodes", format!("{}{inodes}", shown.inodes)),
    ]
}
