//! What giving space back and looking after a store costs, and what those notice who work meanwhile.

use std::fs::{self, File, OpenOptions};
use std::io::Write as _;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use floe_fs::attr::FileKind;
use floe_fs::id::Ino;
use floe_fs::{
    CollectReport, DeleteSelection, NewContents, SnapshotFilter, SnapshotOptions, Store,
};

use super::error::{BenchError, Step};
use super::fill::new_file;
use super::goal::Goal;
use super::lab::Lab;
use super::report::{Group, Layout, Section};
use super::rig::{Mounted, WORKSPACE, new_store, workspace_name};
use super::stats::{Times, grouped};

const ABOUT: &str = "\
A store with many objects: how long `floe du`, `floe check`, `floe check --data` and `floe dedup` take,
and `floe gc` after everything was deleted, both as far as the background has left something to do. And what those notice who work in another
workspace: the time of an append, a write, a new file and a removed one on a mount, with nothing else
going on, while the contents of all those objects are hashed in the background, and while they
are removed.";

const OBJECTS: ([u64; 3], [u64; 1]) = ([10_000, 100_000, 1_000_000], [1_000]);
/// Bytes of a file: just too many for the catalog.
const FILE: usize = 9 << 10;
const FILES_PER_DIR: u64 = 1_000;
/// Snapshots in the store whose list is read.
const SNAPSHOTS: (u64, u64) = (100_000, 100);
const PAGE: usize = 100;
/// How long each phase of work lasts at most.
const PHASE: (Duration, Duration) = (Duration::from_secs(20), Duration::from_secs(1));
/// The workspace that somebody works in.
const BUSY: &str = "busy";
const RATIO: f64 = 2.0;

/// Runs the bench.
pub(super) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    lab.section(Section::new("space", ABOUT), |section| {
        let sizes: &[u64] = if lab.quick { &OBJECTS.1 } else { &OBJECTS.0 };
        let mut costs = Group::new("objects in the store", Layout::Medians);
        let mut ratios = Vec::new();
        for &objects in sizes {
            // Its block, its inode, its rows.
            let needed = objects * (16 << 10);
            let what = format!("{} objects", grouped(objects));
            if let Err(reason) = lab.has_room_for(needed / 2) {
                section.skip(what, reason);
                continue;
            }
            let measured = measure(lab, objects, &mut costs)?;
            let mut group = Group::new(
                format!("work on a mount, {} objects beside", grouped(objects)),
                Layout::Percentiles,
            );
            for (case, times) in &measured {
                group.add(*case, None, times);
            }
            let p99 = |case| group.summary(case).map(|summary| summary.p99_ns);
            for case in [HASHING, FREEING] {
                if let (Some(idle), Some(busy)) = (p99(IDLE), p99(case)) {
                    ratios.push((format!("{case}, {what}"), idle, busy));
                }
            }
            section.groups.push(group);
        }
        section.groups.push(costs);
        section.groups.push(lists(lab)?);
        section.goals.push(Goal::ratio(
            "p99 of work while hashing or freeing, against idle, <= 2x",
            RATIO,
            ratios,
        ));
        Ok(())
    })
}

const IDLE: &str = "nothing else going on";
const HASHING: &str = "while hashing";
const FREEING: &str = "while freeing";

type Cases = Vec<(&'static str, Times)>;

fn measure(lab: &Lab<'_>, objects: u64, costs: &mut Group) -> Result<Cases, BenchError> {
    let room = lab.room("space")?;
    let store = new_store(&room)?;
    store.set("hash-rate", Some("off")).step("stop hashing")?;
    let busy = workspace_name(BUSY)?;
    store.create_workspace(&busy).step("make a workspace")?;
    fill(lab, &store, objects)?;
    let frozen = SnapshotOptions::default();
    store.snapshot(WORKSPACE, &frozen).step("take a snapshot")?;
    store.sync().step("sync the store")?;
    let dir = room.dir("mnt").step("make a mount point")?;
    let mounted = Mounted::live(&store, BUSY, &dir)?;
    let mut cases = Cases::new();
    let mut phase = |case, goes_on: &dyn Fn() -> Result<bool, BenchError>| {
        lab.say(&format!("{case}, {} objects", grouped(objects)));
        let times = work(lab, mounted.dir(), goes_on)?;
        cases.push((case, times));
        Ok::<_, BenchError>(())
    };
    phase(IDLE, &|| Ok(true))?;
    look(lab, &store, objects, costs)?;

    store.set("hash-rate", None).step("begin to hash")?;
    // It begins with a freeze.
    store.snapshot(BUSY, &frozen).step("take a snapshot")?;
    phase(HASHING, &|| {
        let info = store.info().step("look at the store")?;
        Ok(info.hashed < info.objects)
    })?;
    let once = |act: &mut dyn FnMut() -> Result<(), BenchError>| {
        let mut times = Times::default();
        times.time(act)?;
        Ok::<_, BenchError>(times)
    };
    lab.say(&format!("hashing the rest of {} objects", grouped(objects)));
    let hashed = once(&mut || {
        let mut go_on = |_: &_| ControlFlow::Continue(());
        store.hash_now(&mut go_on).step("hash").map(drop)
    })?;
    costs.add("floe dedup, of what is left", Some(objects), &hashed);

    // Half of it in the background, the rest by hand.
    store
        .delete_workspace(WORKSPACE)
        .step("delete a workspace")?;
    let selection = DeleteSelection::Matching {
        filter: SnapshotFilter {
            workspace: Some(WORKSPACE.to_owned()),
            ..SnapshotFilter::default()
        },
        keep_last: 0,
    };
    let deleted = store.delete_snapshots(&selection, false);
    deleted.step("delete a snapshot")?;
    phase(FREEING, &|| {
        Ok(store.info().step("look at the store")?.objects > objects / 2)
    })?;
    lab.say(&format!("freeing the rest of {} objects", grouped(objects)));
    let mut report = CollectReport::default();
    let freed = once(&mut || {
        let mut go_on = |_: &_| ControlFlow::Continue(());
        report = store.collect(&mut go_on).step("free")?;
        Ok(())
    })?;
    if report.objects > 0 {
        let case = format!("floe gc, {} of them", grouped(report.objects));
        costs.add(case, Some(objects), &freed);
    }
    Ok(cases)
}

/// Pages of a long list of snapshots.
fn lists(lab: &Lab<'_>) -> Result<Group, BenchError> {
    let count = lab.pick(SNAPSHOTS.0, SNAPSHOTS.1);
    let room = lab.room("list")?;
    let store = new_store(&room)?;
    let busy = workspace_name(BUSY)?;
    store.create_workspace(&busy).step("make a workspace")?;
    lab.say(&format!("taking {} snapshots", grouped(count)));
    let mut middle = None;
    for number in 0..count {
        if number % 1_000 == 0 {
            lab.check()?;
        }
        let label = ("part".to_owned(), (number % 1_000).to_string());
        let options = SnapshotOptions {
            labels: [label].into(),
            ..SnapshotOptions::default()
        };
        let taken = store.snapshot(BUSY, &options).step("take a snapshot")?;
        if number == count / 2 {
            middle = Some(taken.cursor);
        }
    }
    let page = SnapshotFilter {
        limit: Some(PAGE),
        ..SnapshotFilter::default()
    };
    let of_workspace = SnapshotFilter {
        workspace: Some(BUSY.to_owned()),
        ..page.clone()
    };
    let from_the_middle = SnapshotFilter {
        after: middle,
        ..of_workspace.clone()
    };
    let labelled = SnapshotFilter {
        labels: [("part".to_owned(), "7".to_owned())].into(),
        ..page.clone()
    };
    let cases = [
        ("the newest", page),
        ("of one workspace", of_workspace),
        ("of one workspace, from the middle", from_the_middle),
        ("with a label that one in a thousand has", labelled),
    ];
    let title = format!("a page of {PAGE} of {} snapshots", grouped(count));
    let mut group = Group::new(title, Layout::Percentiles);
    for (case, filter) in cases {
        lab.check()?;
        let mut times = Times::default();
        for _ in 0..lab.pick(100, 10) {
            times.time(|| store.snapshots(&filter)).step("list")?;
        }
        group.add(case, None, &times);
    }
    Ok(group)
}

/// What only looks at the store.
fn look(
    lab: &Lab<'_>,
    store: &Arc<Store>,
    objects: u64,
    costs: &mut Group,
) -> Result<(), BenchError> {
    let mut go_on = |_: u64, _: u64| ControlFlow::Continue(());
    lab.say("du");
    let mut times = Times::default();
    let usage = times
        .time(|| store.usage(&mut go_on))
        .step("look at sizes")?;
    if usage.objects < objects {
        return Err(BenchError::Wrong {
            what: format!("{} objects instead of {objects}", usage.objects),
        });
    }
    costs.add("floe du", Some(objects), &times);
    lab.say("check");
    let mut times = Times::default();
    let report = times.time(|| store.check()).step("check")?;
    if !report.is_clean() {
        return Err(BenchError::Wrong {
            what: "the check finds something".into(),
        });
    }
    costs.add("floe check", Some(objects), &times);
    lab.say("check --data");
    let mut times = Times::default();
    let mut go_on = |_: &_| ControlFlow::Continue(());
    let report = times.time(|| store.check_data(&mut go_on)).step("check")?;
    if !report.is_clean() {
        return Err(BenchError::Wrong {
            what: "the check of contents finds something".into(),
        });
    }
    costs.add("floe check --data", Some(objects), &times);
    Ok(())
}

/// Makes a workspace with so many files, each an object of its own with contents of its own.
fn fill(lab: &Lab<'_>, store: &Store, objects: u64) -> Result<(), BenchError> {
    lab.say(&format!("making {} objects", grouped(objects)));
    let name = workspace_name(WORKSPACE)?;
    let mut builder = store.build_workspace(&name).step("begin a workspace")?;
    let mut dir = Ino::ROOT;
    let mut bytes = vec![b'.'; FILE];
    let adding = "add a file";
    for number in 0..objects {
        if number % FILES_PER_DIR == 0 {
            lab.check()?;
            let name = format!("d{:04}", number / FILES_PER_DIR);
            let file = new_file(FileKind::Directory);
            let added = builder.add(Ino::ROOT, name.as_bytes(), &file, NewContents::Hole(0));
            dir = added.step(adding)?.0;
        }
        bytes[..20].copy_from_slice(format!("{number:020}").as_bytes());
        let (file, name) = (new_file(FileKind::File), format!("f{number:07}"));
        let added = builder.add(dir, name.as_bytes(), &file, NewContents::Bytes(&bytes));
        added.step(adding)?;
    }
    builder.finish().step("finish the workspace").map(drop)
}

/// Does small things again and again, as long as something goes on, or the time is up.
fn work(
    lab: &Lab<'_>,
    root: &Path,
    goes_on: &dyn Fn() -> Result<bool, BenchError>,
) -> Result<Times, BenchError> {
    let block = vec![b'b'; 64 << 10];
    let path = |name: &str| root.join(name);
    fs::write(path("block"), &block).step("write a file")?;
    let large = OpenOptions::new().write(true).open(path("block"));
    let large: File = large.step("open a file")?;
    let mut times = Times::default();
    let until = Instant::now() + lab.pick(PHASE.0, PHASE.1);
    let mut number = 0_u64;
    let mut looked = Instant::now();
    while Instant::now() < until {
        // It takes its time to look itself.
        if looked.elapsed() > Duration::from_millis(500) {
            lab.check()?;
            if !goes_on()? {
                break;
            }
            looked = Instant::now();
        }
        let file = path(&format!("f{}", number % 64));
        let done = match number / 64 % 4 {
            0 => times.time(|| fs::write(&file, b"new")),
            1 => times.time(|| {
                let mut file = OpenOptions::new().append(true).open(&file)?;
                file.write_all(&[b'a'; 100])
            }),
            2 => times.time(|| large.write_all_at(&block[..4096], number % 16 * 4096)),
            _ => times.time(|| fs::remove_file(&file)),
        };
        done.step("work on the mount")?;
        number += 1;
        // As a program does that computes something in between.
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(times)
}
