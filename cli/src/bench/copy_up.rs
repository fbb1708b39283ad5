//! How long one byte into a large frozen file takes.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;
use std::time::{Duration, Instant};

use super::error::{BenchError, Step};
use super::fill::{Noise, large_file, tree};
use super::goal::Goal;
use super::lab::Lab;
use super::peers::overlay::{Kind, Place};
use super::report::{Group, Layout, Section};
use super::rig::Rig;
use super::stats::Times;
use crate::output::size;

const ABOUT: &str = "\
Time to write one byte at a random place of a file that a snapshot has just frozen, through the
mount. A snapshot is taken before each sample; the file has been written with real bytes.";

const SIZES: ([u64; 2], [u64; 2]) = ([1 << 30, 10 << 30], [64 << 20, 256 << 20]);
/// Samples of each size, and in one turn.
const SAMPLES: (u64, u64) = (2_000, 200);
const TURN: u64 = 100;

/// A mounted workspace with one large file.
struct Large {
    name: String,
    bytes: u64,
    rig: Rig,
    write: Times,
    whole: Times,
}

/// Runs the bench.
pub(super) fn run(lab: &Lab<'_>) -> Result<Section, BenchError> {
    lab.section(Section::new("copy-up", ABOUT), |section| {
        let mut files = Vec::new();
        for bytes in lab.pick(SIZES.0, SIZES.1) {
            let name = size(bytes);
            if let Err(reason) = lab.has_room_for(bytes) {
                section.skip(format!("a file of {name}"), reason);
                continue;
            }
            lab.say(&format!("writing a file of {name}"));
            let rig = Rig::new(lab, "large", |store| tree(lab, store, 0))?;
            large_file(lab, &rig.path("large"), bytes)?;
            rig.settle()?;
            files.push(Large {
                name,
                bytes,
                rig,
                write: Times::default(),
                whole: Times::default(),
            });
        }
        lab.say("copying up");
        let mut noise = Noise::new(0);
        for _ in 0..lab.pick(SAMPLES.0, SAMPLES.1) / TURN {
            for file in &mut files {
                file.turn(lab, &mut noise)?;
            }
        }
        let mut write = Group::new("write(2) of one byte", Layout::Percentiles);
        let mut whole = Group::new("open, write, close", Layout::Percentiles);
        for file in &files {
            write.add(&file.name, None, &file.write);
            whole.add(&file.name, None, &file.whole);
        }
        let worst = whole
            .series
            .iter()
            .map(|s| (s.case.as_str(), s.summary.p50_ns));
        let limit = Duration::from_millis(1);
        let what = "1 byte into a frozen file (open, write, close) p50 < 1 ms";
        let promised = SIZES.0.into_iter().map(size);
        let missing = promised.filter(|name| whole.summary(name).is_none());
        let goal = Goal::time(what, limit, worst).without(missing);
        section.goals.push(goal);
        drop(files);
        peers(lab, section, &mut whole)?;
        section.groups.extend([write, whole]);
        Ok(())
    })
}

impl Large {
    fn turn(&mut self, lab: &Lab<'_>, noise: &mut Noise) -> Result<(), BenchError> {
        let path = self.rig.path("large");
        for _ in 0..TURN {
            lab.check()?;
            self.rig.snapshot()?;
            let at = noise.number() % self.bytes;
            let started = Instant::now();
            let file = OpenOptions::new().write(true).open(&path);
            let file = file.step("open the large file")?;
            self.write
                .time(|| file.write_all_at(b"x", at))
                .step("write one byte")?;
            drop(file);
            self.whole.record(started.elapsed());
        }
        Ok(())
    }
}

/// The same on the kernel's overlayfs, which copies the whole file; the smaller file only.
fn peers(lab: &Lab<'_>, section: &mut Section, group: &mut Group) -> Result<(), BenchError> {
    let bytes = lab.pick(SIZES.0, SIZES.1)[0];
    let case = format!("{}, {}", size(bytes), Kind::Kernel.name());
    if let Err(reason) = lab.has_room_for(2 * bytes) {
        section.skip(case, reason);
        return Ok(());
    }
    let times = lab.attempt(section, &case, || {
        Kind::Kernel.need()?;
        let room = lab.room("overlay")?;
        let lower = room.dir("lower").step("make a directory")?;
        large_file(lab, &lower.join("large"), bytes)?;
        let mut times = Times::default();
        for number in 0..lab.pick(3, 1) {
            lab.check()?;
            let place = Place::new(&room, &number.to_string(), &lower)?;
            let overlay = place.mount(Kind::Kernel)?;
            times
                .time(|| {
                    let file = OpenOptions::new()
                        .write(true)
                        .open(place.dir().join("large"))?;
                    file.write_all_at(b"x", 0)
                })
                .step("write one byte")?;
            drop(overlay);
        }
        Ok(times)
    })?;
    if let Some(times) = times {
        group.add(case, None, &times);
    }
    Ok(())
}
