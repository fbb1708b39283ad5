//! `floe du`.

use clap::Args;

use super::{Context, facts};
use crate::error::ApiError;
use crate::output::{counted, printable, size, table};
use crate::progress::ImportBar;
use crate::wire::space::{Size, SnapshotSize, StoreUsage, WorkspaceSize};
use crate::wire::{Sizes, Usage};

/// Show what takes how much of the disk, and what deleting it would free
///
/// Without an argument: the whole store, which adds up to what du(1) says of its directory. A workspace is
/// counted with its snapshots. APPARENT is what its files take as seen in it, EXCLUSIVE what nothing else
/// shows and deleting it frees, SHARED what others show as well. Contents of small files are in the
/// catalog, about a kilobyte for each file that was changed comes on top there. On a disk that
/// shares extents (XFS, btrfs) what is shared below the objects counts for each of them, as du(1)
/// has it.
///
/// To see what deleting several snapshots together would free: `floe snap delete --dry-run`.
#[derive(Args, Debug)]
#[command(after_long_help = "\
Examples:
  floe du
  floe du web
  floe du --why web/green
  floe du $(floe snap list --ws web --quiet)

Under --json: without an argument an object with workspaces, exclusive, shared, waiting (for its removal),
catalog, reserve, landings, other and total; else an array of workspaces and of snapshots (as of
`floe snap show`), each with apparent, exclusive and shared, snapshots also with held_by (workspaces
by name, snapshots by id) and kept_by. Bytes all.")]
pub(crate) struct Du {
    /// Workspaces, or snapshots (id or its first 4 or more digits, name, or WORKSPACE/NAME)
    #[arg(value_name = "WS|SNAP")]
    targets: Vec<String>,
    /// Say all of what holds a snapshot's contents, a line each
    #[arg(long, requires = "targets")]
    why: bool,
}

impl Du {
    /// Carries it out.
    ///
    /// # Errors
    /// When a workspace or snapshot is not found.
    pub(crate) fn run(&self, context: &Context) -> Result<(), ApiError> {
        let mut bar = ImportBar::new("looking", !context.output.json && !context.output.quiet);
        let mut client = context.client()?;
        if self.targets.is_empty() {
            let usage = client.call_with_progress(Usage {}, &mut |told| bar.update(told));
            drop(bar);
            let usage = usage?;
            if context.output.json {
                return context.output.json(&usage);
            }
            return context.output.text(&store_text(&usage));
        }
        let request = Sizes {
            targets: self.targets.clone(),
        };
        let sizes = client.call_with_progress(request, &mut |told| bar.update(told));
        drop(bar);
        let sizes = sizes?;
        if context.output.json {
            return context.output.json(&sizes);
        }
        if self.why {
            let why: String = sizes.iter().map(why).collect();
            return context.output.text(&why);
        }
        let rows: Vec<Vec<String>> = sizes.iter().map(row).collect();
        let head = [
            "WHAT",
            "WORKSPACE",
            "APPARENT",
            "EXCLUSIVE",
            "SHARED",
            "HELD BY",
        ];
        context.output.text(&table(&head, &rows))
    }
}

fn row(one: &Size) -> Vec<String> {
    let sizes = |apparent, exclusive, shared| [size(apparent), size(exclusive), size(shared)];
    match one {
        Size::Workspace(one) => {
            let what = ["workspace".to_owned(), printable(&one.name)];
            let sizes = sizes(one.apparent, one.exclusive, one.shared);
            let held = ["-".to_owned()];
            what.into_iter().chain(sizes).chain(held).collect()
        }
        Size::Snapshot(one) => {
            let what = [one.snapshot.id.clone(), printable(&one.snapshot.workspace)];
            let sizes = sizes(one.apparent, one.exclusive, one.shared);
            what.into_iter().chain(sizes).chain([held(one)]).collect()
        }
    }
}

fn held(one: &SnapshotSize) -> String {
    let holders = one.held_by.len() + one.kept_by.len();
    match one.held_by.iter().chain(&one.kept_by).next() {
        None => "-".to_owned(),
        Some(first) if holders == 1 => printable(first),
        Some(first) => format!("{} and {}", printable(first), counted(holders - 1, "other")),
    }
}

fn why(one: &Size) -> String {
    let mut lines = Vec::new();
    match one {
        Size::Workspace(one) => {
            lines.push(format!(
                "workspace {}: {} of its own, {} shared with others",
                printable(&one.name),
                size(one.exclusive),
                size(one.shared)
            ));
        }
        Size::Snapshot(one) => {
            lines.push(format!(
                "{}: deleting it frees {} of {}",
                one.snapshot.id,
                size(one.exclusive),
                size(one.apparent)
            ));
            let of = |by: &String| format!("  {} stands on it", printable(by));
            lines.extend(one.held_by.iter().map(of));
            lines.extend(one.kept_by.iter().map(|by| match by.as_str() {
                "use" => "  it is in use: mounted, compared or landed".to_owned(),
                "landing" => "  later landings begin from it".to_owned(),
                other => format!("  {}", printable(other)),
            }));
        }
    }
    lines.iter().map(|line| format!("{line}\n")).collect()
}

fn store_text(usage: &StoreUsage) -> String {
    let row = |one: &WorkspaceSize| {
        let deleted = if one.deleted { " (deleted)" } else { "" };
        vec![
            format!("{}{deleted}", printable(&one.name)),
            one.snapshot_count.to_string(),
            size(one.apparent),
            size(one.exclusive),
            size(one.shared),
        ]
    };
    let rows: Vec<Vec<String>> = usage.workspaces.iter().map(row).collect();
    let head = ["WORKSPACE", "SNAPSHOTS", "APPARENT", "EXCLUSIVE", "SHARED"];
    let parts = [
        ("exclusive", usage.exclusive),
        ("shared", usage.shared),
        ("to be freed", usage.waiting),
        ("catalog", usage.catalog),
        ("reserve", usage.reserve),
        ("landings", usage.landings),
        ("memory images", usage.images),
        ("other", usage.other),
        ("total", usage.total),
    ];
    let parts = parts.map(|(what, bytes)| (what, size(bytes)));
    if rows.is_empty() {
        return facts(&parts);
    }
    format!("{}\n{}", table(&head, &rows), facts(&parts))
}
