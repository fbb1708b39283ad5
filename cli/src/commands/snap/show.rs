//! `floe snap show`.

use clap::Args;

use crate::commands::{Context, facts};
use crate::error::ApiError;
use crate::output::{printable, size};
use crate::time;
use crate::wire::records::SnapshotImage;
use crate::wire::space::Size;
use crate::wire::{ShowSnapshot, Sizes};

/// Show one snapshot, with what it takes and what deleting it would free
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
        let mut client = context.client()?;
        let shown = client.call(ShowSnapshot {
            snapshot: self.snapshot.clone(),
        })?;
        let sizes = client.call(Sizes {
            targets: vec![shown.id.clone()],
        })?;
        // None of a snapshot that was deleted in between.
        let sizes = sizes.into_iter().find_map(|size| match size {
            Size::Snapshot(size) => Some(size),
            Size::Workspace(_) => None,
        });
        if context.output.json {
            return match &sizes {
                Some(sizes) => context.output.json(sizes),
                None => context.output.json(&shown),
            };
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
            ("image", shown.image.as_ref().map_or_else(none, image)),
            ("layer", shown.layer.to_string()),
        ];
        if let Some(sizes) = &sizes {
            let seen = format!(
                "{} seen, {} of its own, {} shared",
                size(sizes.apparent),
                size(sizes.exclusive),
                size(sizes.shared)
            );
            lines.push(("size", seen));
            let frees = size(sizes.frees);
            lines.push(("deleting it", format!("frees {frees} of contents")));
            let held = sizes.held_by.iter().map(|by| ("held by", printable(by)));
            lines.extend(held);
        }
        if let Some(reason) = shown.automatic {
            lines.push(("automatic", format!("before a {reason}")));
        }
        for (key, value) in &shown.labels {
            lines.push(("label", printable(&format!("{key}={value}"))));
        }
        context.output.text(&facts(&lines))
    }
}

/// An image in a few words.
fn image(image: &SnapshotImage) -> String {
    let mut text = image.state.clone();
    if image.state != "failed" {
        text = format!("{text}, {} of its own", size(image.bytes));
    }
    if let Some(parent) = &image.parent {
        text = format!("{text}, over that of {parent}");
    }
    text
}
