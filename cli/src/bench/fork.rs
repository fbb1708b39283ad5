//! How long forks take, and forks that are mounted.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use floe_fs::ForkSource;
use floe_fs::id::WorkspaceName;

use super::error::{BenchError, Step};
use super::fill::{plain_tree, tree};
use super::goal::Goal;
use super::lab::Lab;
use super::peers::overlay::{Kind, Overlay, Place};
use super::report::{Group, Layout, Section};
use super::rig::{Mounted, Rig, WORKSPACE, workspace_name};
use super::stats::{Times, grouped};

const ABOUT: &str = "\
Time to make workspaces on a snapshot of a workspace of many files, and to make and mount them. A
mount counts as done when a file in it has answered a first stat.";

const FILES: (u64, u64) = (10_000, 1_000);
const MANY: usize = 100;
/// Samples of one fork, of many, and of many that are mounted.
const ONE: (u64, u64) = (500, 50);
const SAMPLES_OF_MANY: (u64, u64) = (30, 5);
const SAMPLES_OF_MOUNTS: (u64, u64) = (10, 2);
/// A file of the tree.
const FIRST: &str = "d0000/f0000000";

/// Runs the bench.
pub(super) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    lab.section(Section::new("fork", ABOUT), |section| {
        let files = lab.pick(FILES.0, FILES.1);
        let rig = Rig::new(lab, "fork", |store| tree(lab, store, files))?;
        rig.settle()?;
        let forks = Forks::new(&rig)?;
        let group = fork(lab, &forks)?;
        let mounted = fork_and_mount(lab, &forks)?;
        goals(section, &group, &mounted);
        section.groups.extend([group, mounted]);
        drop(forks);
        drop(rig);
        peers(lab, section, files)
    })
}

/// What is forked, and the forks' names and mount points.
struct Forks<'a> {
    rig: &'a Rig,
    source: ForkSource,
    names: Vec<WorkspaceName>,
    dirs: Vec<PathBuf>,
}

impl<'a> Forks<'a> {
    fn new(rig: &'a Rig) -> Result<Self, BenchError> {
        let names: Result<Vec<_>, _> = (0..MANY)
            .map(|number| workspace_name(&format!("fork-{number}")))
            .collect();
        let dirs: Result<Vec<_>, _> = (0..MANY)
            .map(|number| rig.room.dir(&format!("fork-{number}")))
            .collect();
        Ok(Self {
            rig,
            source: ForkSource::Snapshot(rig.snapshot()?.id),
            names: names?,
            dirs: dirs.step("make mount points")?,
        })
    }

    fn make(&self, source: &ForkSource, count: usize) -> Result<(), BenchError> {
        let made = self.rig.store.fork(source, &self.names[..count]);
        made.step("fork").map(drop)
    }

    /// Mounts a fork and waits for a first answer.
    fn mount(&self, number: usize) -> Result<Mounted, BenchError> {
        let dir = &self.dirs[number];
        let mounted = Mounted::live(&self.rig.store, self.names[number].as_str(), dir)?;
        std::fs::symlink_metadata(dir.join(FIRST)).step("stat a file of a fork")?;
        Ok(mounted)
    }

    fn delete(&self, count: usize) -> Result<(), BenchError> {
        for name in &self.names[..count] {
            let deleted = self.rig.store.delete_workspace(name.as_str());
            deleted.step("delete a fork")?;
        }
        Ok(())
    }
}

fn fork(lab: &Lab<'_>, forks: &Forks<'_>) -> Result<Group, BenchError> {
    lab.say("forks");
    let live = ForkSource::Workspace(WORKSPACE.to_owned());
    let cases = [
        ("1 of a snapshot", &forks.source, 1, ONE),
        ("1 of a live workspace (snapshot included)", &live, 1, ONE),
        (
            "100 of a snapshot, in one call",
            &forks.source,
            MANY,
            SAMPLES_OF_MANY,
        ),
    ];
    let mut group = Group::new("fork", Layout::Percentiles);
    for (case, source, count, (full, quick)) in cases {
        let mut times = Times::default();
        for _ in 0..lab.pick(full, quick) {
            lab.check()?;
            times.time(|| forks.make(source, count))?;
            forks.delete(count)?;
        }
        group.add(case, None, &times);
    }
    Ok(group)
}

fn fork_and_mount(lab: &Lab<'_>, forks: &Forks<'_>) -> Result<Group, BenchError> {
    lab.say("forks with mounts");
    let mut group = Group::new("fork, mount, first stat", Layout::Percentiles);
    for (count, (full, quick)) in [(1, ONE), (MANY, SAMPLES_OF_MOUNTS)] {
        let mut times = Times::default();
        for _ in 0..lab.pick(full, quick) {
            lab.check()?;
            let started = Instant::now();
            forks.make(&forks.source, count)?;
            let mounted: Result<Vec<Mounted>, _> =
                (0..count).map(|number| forks.mount(number)).collect();
            times.record(started.elapsed());
            drop(mounted?);
            forks.delete(count)?;
        }
        group.add(count.to_string(), None, &times);
    }
    Ok(group)
}

fn goals(section: &mut Section, fork: &Group, mounted: &Group) {
    let p50 = |group: &Group, case: &'static str| {
        let found = group.summary(case);
        found.map(|summary| ("p50", summary.p50_ns))
    };
    let many = p50(fork, "100 of a snapshot, in one call");
    section.goals.extend([
        Goal::time(
            "fork, mount, first stat < 2 ms",
            Duration::from_millis(2),
            p50(mounted, "1"),
        ),
        Goal::time("100 forks < 100 ms", Duration::from_millis(100), many),
    ]);
}

/// Overlays on an ordinary directory with the same files, mounted and asked once.
fn peers(lab: &Lab<'_>, section: &mut Section, files: u64) -> Result<(), BenchError> {
    let title = format!("overlay on {} files, mount, first stat", grouped(files));
    let mut group = Group::new(title, Layout::Percentiles);
    let room = lab.room("overlays")?;
    let lower = room.dir("lower").step("make a directory")?;
    plain_tree(lab, &lower, files)?;
    for kind in [Kind::Kernel, Kind::Fuse] {
        if lab.attempt(section, kind.name(), || kind.need())?.is_none() {
            continue;
        }
        for count in [1, MANY] {
            let case = format!("{count}, {}", kind.name());
            let samples = match (kind, count) {
                (Kind::Kernel, 1) => lab.pick(ONE.0, ONE.1),
                (Kind::Fuse, 1) => lab.pick(50, 5),
                _ => lab.pick(3, 1),
            };
            let times = lab.attempt(section, &case, || {
                let mut times = Times::default();
                for sample in 0..samples {
                    lab.check()?;
                    let places: Result<Vec<Place>, _> = (0..count)
                        .map(|number| {
                            let name = format!("{kind:?}-{count}-{sample}-{number}");
                            Place::new(&room, &name, &lower)
                        })
                        .collect();
                    let places = places?;
                    let overlays: Result<Vec<Overlay>, BenchError> = times.time(|| {
                        places
                            .iter()
                            .map(|place| {
                                let overlay = place.mount(kind)?;
                                std::fs::symlink_metadata(place.dir().join(FIRST))
                                    .step("stat a file of an overlay")?;
                                Ok(overlay)
                            })
                            .collect()
                    });
                    drop(overlays?);
                }
                Ok(times)
            })?;
            if let Some(times) = times {
                group.add(case, None, &times);
            }
        }
    }
    section.groups.push(group);
    Ok(())
}
