//! How long a snapshot takes, by the size of the workspace and by what its programs do.

mod outside;

use std::cell::Cell;
use std::path::Path;
use std::time::{Duration, Instant};

use super::error::{BenchError, Step};
use super::fill::{large_file, tree, verify_count, visit};
use super::goal::Goal;
use super::lab::Lab;
use super::load::{Writers, default_writers};
use super::report::{Group, Layout, Section};
use super::rig::{Rig, frozen};
use super::stats::{Times, grouped};
use crate::output::size;

const ABOUT: &str = "\
Time of one snapshot of a mounted workspace, taken at the engine's call unless said otherwise.
Before each sample one file's mode is changed, so that there is something to freeze. Sizes take
turns, so that noise of the machine hits all alike.";

/// Samples of each case, and in one turn.
const SAMPLES: (u64, u64) = (2_000, 300);
const TURN: u64 = 100;
/// A case is given up early after this long; its row says how many samples it has.
const BUDGET: Duration = Duration::from_secs(15);
/// What writers in the background get to do between two snapshots.
const PAUSE: Duration = Duration::from_millis(1);
/// Files of workspaces with many, and bytes of the one file of the others.
const FILES: ([u64; 3], [u64; 3]) = ([10, 10_000, 1_000_000], [10, 1_000, 10_000]);
const BYTES: ([u64; 3], [u64; 3]) = ([1 << 10, 1 << 30, 10 << 30], [1 << 10, 64 << 20, 256 << 20]);
/// The file whose mode is changed.
const TOUCHED: &str = "touched";

/// A workspace of some size.
struct Size {
    name: String,
    files: u64,
    rig: Rig,
}

/// Runs the bench.
pub(super) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    lab.section(Section::new("snapshot", ABOUT), |section| {
        let sizes = make_sizes(lab, section)?;
        by_size(lab, section, &sizes)?;
        let middle = lab.pick(FILES.0, FILES.1)[1];
        if let Some(size) = sizes.iter().find(|size| size.files == middle) {
            outside::open_files(lab, section, &size.rig)?;
        }
        drop(sizes);
        outside::clients(lab, section, middle)?;
        outside::peers(lab, section, middle)
    })
}

fn files_name(files: u64) -> String {
    format!("{} files", grouped(files))
}

fn bytes_name(bytes: u64) -> String {
    format!("1 file of {}", size(bytes))
}

/// The sizes that are promised: those of a full run on a disk that has the room.
fn promised() -> impl Iterator<Item = String> {
    let files = FILES.0.into_iter().map(files_name);
    files.chain(BYTES.0.into_iter().map(bytes_name))
}

fn make_sizes(lab: &Lab<'_>, section: &mut Section) -> Result<Vec<Size>, BenchError> {
    let mut sizes = Vec::new();
    for files in lab.pick(FILES.0, FILES.1) {
        let rig = Rig::new(lab, "files", |store| tree(lab, store, files))?;
        let snapshot = rig.snapshot()?;
        verify_count(&*frozen(&rig.store, &snapshot.id)?, files)?;
        sizes.push(Size {
            name: files_name(files),
            files,
            rig,
        });
    }
    for bytes in lab.pick(BYTES.0, BYTES.1) {
        let name = bytes_name(bytes);
        if let Err(reason) = lab.has_room_for(bytes) {
            section.skip(name, reason);
            continue;
        }
        lab.say(&format!("writing {name}"));
        let rig = Rig::new(lab, "bytes", |store| tree(lab, store, 0))?;
        large_file(lab, &rig.path("large"), bytes)?;
        sizes.push(Size {
            name,
            files: 1,
            rig,
        });
    }
    for size in &sizes {
        std::fs::write(size.rig.path(TOUCHED), "touched").step("write a file")?;
        size.rig.settle()?;
    }
    Ok(sizes)
}

fn by_size(lab: &Lab<'_>, section: &mut Section, sizes: &[Size]) -> Result<(), BenchError> {
    let writers = default_writers();
    lab.say("snapshots, idle");
    let fresh = in_turns(lab, sizes, &|size, times| idle(lab, &size.rig, times))?;
    let idle_group = group("idle, just mounted", sizes, &fresh);
    let many = |size: &&Size| size.files > 1;
    for size in sizes.iter().filter(many) {
        lab.say(&format!("visiting {}", size.name));
        visit(lab, size.rig.mounted.dir())?;
    }
    lab.say("snapshots, every file visited");
    let visited = in_turns(lab, sizes, &|size, times| idle(lab, &size.rig, times))?;
    let visited_group = group("idle, every file visited", sizes, &visited);
    lab.say("snapshots under write load");
    let (done, during) = (Cell::new(0), Cell::new(Duration::ZERO));
    let loaded = in_turns(lab, sizes, &|size, times| {
        let started = Instant::now();
        done.set(done.get() + under_load(lab, &size.rig, writers, times)?);
        during.set(during.get() + started.elapsed());
        Ok(())
    })?;
    let pace = done.get() * 1_000 / u64::try_from(during.get().as_millis()).unwrap_or(1).max(1);
    section.notes.push(format!(
        "the {writers} threads appended to or made {} files a second meanwhile",
        grouped(pace)
    ));
    let loaded_title = format!("{writers} threads writing, every file visited");
    let loaded_group = group(loaded_title, sizes, &loaded);

    for (title, all) in [("idle", &visited), ("writing", &loaded)] {
        for at in [0, 2] {
            if let (Some(size), Some(times)) = (sizes.get(at), all.get(at)) {
                section.picture(format!("{title}, {}", size.name), times);
            }
        }
    }
    goals(section, sizes, &[&idle_group, &visited_group], "idle");
    goals(section, sizes, &[&loaded_group], "while programs write");
    section
        .groups
        .extend([idle_group, visited_group, loaded_group]);
    Ok(())
}

/// Samples every size, a turn each, again and again.
fn in_turns(
    lab: &Lab<'_>,
    sizes: &[Size],
    turn: &dyn Fn(&Size, &mut Times) -> Result<(), BenchError>,
) -> Result<Vec<Times>, BenchError> {
    let mut all: Vec<(Times, Duration)> = vec![Default::default(); sizes.len()];
    for _ in 0..lab.pick(SAMPLES.0, SAMPLES.1) / TURN {
        for (size, (times, spent)) in sizes.iter().zip(&mut all) {
            if *spent < BUDGET {
                let started = Instant::now();
                turn(size, times)?;
                *spent += started.elapsed();
            }
        }
    }
    Ok(all.into_iter().map(|(times, _)| times).collect())
}

fn idle(lab: &Lab<'_>, rig: &Rig, times: &mut Times) -> Result<(), BenchError> {
    for number in 0..TURN {
        lab.check()?;
        change_mode(&rig.path(TOUCHED), number)?;
        times.time(|| rig.snapshot())?;
    }
    Ok(())
}

fn under_load(
    lab: &Lab<'_>,
    rig: &Rig,
    writers: usize,
    times: &mut Times,
) -> Result<u64, BenchError> {
    let writers = Writers::start(rig.mounted.dir(), writers);
    while writers.done() == 0 {
        lab.check()?;
        std::thread::sleep(PAUSE);
    }
    for _ in 0..TURN {
        lab.check()?;
        times.time(|| rig.snapshot())?;
        std::thread::sleep(PAUSE);
    }
    writers.stop()
}

/// A change that opens nothing for writing, so that nothing has to be written back.
fn change_mode(path: &Path, number: u64) -> Result<(), BenchError> {
    use std::os::unix::fs::PermissionsExt;
    let mode = if number.is_multiple_of(2) {
        0o600
    } else {
        0o644
    };
    let mode = std::fs::Permissions::from_mode(mode);
    std::fs::set_permissions(path, mode).step("change a file's mode")
}

fn group(title: impl Into<String>, sizes: &[Size], times: &[Times]) -> Group {
    let mut group = Group::new(title, Layout::Percentiles);
    for (size, times) in sizes.iter().zip(times) {
        group.add(&size.name, None, times);
    }
    group
}

fn goals(section: &mut Section, sizes: &[Size], groups: &[&Group], when: &str) {
    let series = || {
        groups.iter().flat_map(|group| {
            let title = &group.title;
            let of_group = group.series.iter();
            of_group.map(move |series| (format!("{title}: {}", series.case), &series.summary))
        })
    };
    let p50 = series().map(|(case, summary)| (case, summary.p50_ns));
    let p99 = series().map(|(case, summary)| (case, summary.p99_ns));
    let promise = |what: &str| format!("snapshot {what}, {when}, at every size");
    let measured = |name: &String| groups.iter().all(|group| group.summary(name).is_some());
    let missing = || promised().filter(|name| !measured(name));
    section.goals.extend([
        Goal::time(promise("p50 < 100 us"), Duration::from_micros(100), p50).without(missing()),
        Goal::time(promise("p99 < 1 ms"), Duration::from_millis(1), p99).without(missing()),
    ]);
    let flat = |many: bool| {
        let mut names = sizes.iter().filter(move |size| (size.files > 1) == many);
        let first = names.next();
        let last = names.next_back();
        groups.iter().filter_map(move |group| {
            let (first, last) = (first?, last?);
            let base = group.summary(&first.name)?.p50_ns;
            let other = group.summary(&last.name)?.p50_ns;
            Some((&*group.title, base, other))
        })
    };
    let names = |many: bool| {
        let mut all = sizes.iter().filter(|size| (size.files > 1) == many);
        let first = all.next().map_or("?", |size| &size.name);
        format!(
            "{} vs {first}",
            all.next_back().map_or("?", |size| &size.name)
        )
    };
    for many in [true, false] {
        let promise = format!("snapshot p50 flat, {when}: {} within 1.5x", names(many));
        let (smallest, largest) = if many {
            (files_name(FILES.0[0]), files_name(FILES.0[2]))
        } else {
            (bytes_name(BYTES.0[0]), bytes_name(BYTES.0[2]))
        };
        let missing = [smallest, largest];
        let missing = missing.into_iter().filter(|name| !measured(name));
        let goal = Goal::ratio(promise, 1.5, flat(many)).without(missing);
        section.goals.push(goal);
    }
}
