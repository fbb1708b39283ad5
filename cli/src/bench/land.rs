//! How long landings take, by the number of files that were changed.

use std::sync::Arc;
use std::time::Duration;

use floe_fs::dispatch::{Dispatch, Write};
use floe_fs::id::{Ino, SnapshotId};
use floe_fs::{ForkSource, LandOptions, SnapshotOptions, Store};

use super::error::{BenchError, Step};
use super::fill::tree;
use super::goal::Goal;
use super::lab::Lab;
use super::report::{Group, Layout, Section};
use super::rig::{WORKSPACE, new_store, workspace_name};
use super::stats::{Times, grouped};

const ABOUT: &str = "\
Time to land what a fork changed on the workspace that it was forked from, by the number of files
that were changed, of a hundred bytes each. Each landing is undone by a rollback before the next.";

const FILES: (u64, u64) = (10_000, 1_000);
const CHANGED: ([u64; 4], [u64; 2]) = ([10, 100, 1_000, 10_000], [10, 100]);
const SAMPLES: (u64, u64) = (20, 2);
const FORK: &str = "fork";

/// Runs the bench.
pub(super) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    lab.section(Section::new("land", ABOUT), |section| {
        let files = lab.pick(FILES.0, FILES.1);
        let changed: &[u64] = if lab.quick { &CHANGED.1 } else { &CHANGED.0 };
        let title = format!("files changed, of {}", grouped(files));
        let mut group = Group::new(title, Layout::Medians);
        for &changed in changed {
            group.add("floe land", Some(changed), &measure(lab, files, changed)?);
        }
        let most = *changed.last().unwrap_or(&0);
        let last = group.series.last().map(|series| series.summary.p50_ns);
        section.goals.push(Goal::time(
            format!("{} files < 2 s", grouped(most)),
            Duration::from_secs(2),
            last.map(|ns| ("p50", ns)),
        ));
        section.groups.push(group);
        Ok(())
    })
}

fn measure(lab: &Lab<'_>, files: u64, changed: u64) -> Result<Times, BenchError> {
    let room = lab.room("land")?;
    let store = new_store(&room)?;
    tree(lab, &store, files)?;
    let source = ForkSource::Workspace(WORKSPACE.to_owned());
    let forked = store.fork(&source, &[workspace_name(FORK)?]);
    forked.step("fork")?;
    change(lab, &store, changed)?;
    store.sync().step("sync the store")?;
    lab.say(&format!("landing {} files", grouped(changed)));
    let mut times = Times::default();
    for _ in 0..lab.pick(SAMPLES.0, SAMPLES.1) {
        lab.check()?;
        let landed = times.time(|| store.land(FORK, None, &LandOptions::default()));
        let report = landed.step("land")?;
        let kept: Option<SnapshotId> = report.kept;
        let count = report.entries.len() as u64;
        let Some(kept) = kept.filter(|_| count == changed) else {
            return Err(BenchError::Wrong {
                what: format!("{count} files landed instead of {changed}"),
            });
        };
        let undone = store.rollback(WORKSPACE, kept.as_str());
        undone.step("undo a landing")?;
    }
    Ok(times)
}

/// Writes to the first files of the fork.
fn change(lab: &Lab<'_>, store: &Arc<Store>, changed: u64) -> Result<(), BenchError> {
    let view = store.open_live(FORK).step("open the fork")?;
    let mut dir = Ino::ROOT;
    for number in 0..changed {
        if number % 1_000 == 0 {
            lab.check()?;
            let name = format!("d{:04}", number / 1_000);
            let found = view.lookup(Ino::ROOT, name.as_bytes()).step("look up")?;
            dir = found.map_or(Ino::ROOT, |entry| entry.ino);
        }
        let name = format!("f{number:07}");
        let found = view.lookup(dir, name.as_bytes()).step("look up")?;
        let missing = || BenchError::Wrong {
            what: format!("there is no {name}"),
        };
        let write = Write {
            offset: 0,
            data: b"changed",
            append: false,
            kill_set_id: false,
        };
        let ino = found.ok_or_else(missing)?.ino;
        view.write(ino, write).step("write to a file")?;
    }
    store.close_view(&view);
    let kept = store.snapshot(FORK, &SnapshotOptions::default());
    kept.step("take a snapshot").map(drop)
}
