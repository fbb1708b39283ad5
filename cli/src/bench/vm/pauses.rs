//! Pauses, by memory, by how fast the guest writes, and by how much.

use std::time::{Duration, Instant};

use floe_vmm::machine::Machine;
use floe_vmm::snapshot::Snapshotter;

use super::guest::{Guests, Work};
use crate::bench::error::{BenchError, Step};
use crate::bench::goal::Goal;
use crate::bench::lab::Lab;
use crate::bench::report::{Group, Layout, Section};
use crate::bench::stats::Times;

/// Snapshots of one guest, each over the last.
const SNAPSHOTS: (u32, u32) = (100, 5);
/// Memory, in MiB.
const RAM: [u32; 4] = [128, 512, 1024, 2048];
/// How long the guest runs between two.
const BETWEEN: Duration = Duration::from_millis(5);
/// Pages of a MiB.
const MIB: u32 = 256;

struct Case {
    name: String,
    work: Work,
}

/// Measures all of it.
pub(super) fn run(
    lab: &Lab<'_>,
    section: &mut Section,
    guests: &Guests<'_>,
) -> Result<(), BenchError> {
    let by_ram = RAM[..lab.pick(RAM.len(), 2)].iter().map(|&mib| Case {
        name: format!("{mib} MiB"),
        work: Work {
            mib,
            pages: MIB,
            rest: 200,
        },
    });
    let by_rate = [("slowly", 100_000), ("fast", 1_000), ("without rest", 0)];
    let by_rate = by_rate.into_iter().map(|(name, rest)| Case {
        name: name.to_owned(),
        work: Work {
            mib: 512,
            pages: 16 * MIB,
            rest,
        },
    });
    let by_size = [1, 4, 16, 64].into_iter().map(|mib| Case {
        name: format!("{mib} MiB"),
        work: Work {
            mib: 512,
            pages: mib * MIB,
            rest: 0,
        },
    });
    let ram = group(
        lab,
        section,
        guests,
        "1 MiB written over and over, by memory",
        by_ram,
    )?;
    let limit = Duration::from_millis(1);
    let pauses = RAM.iter().filter_map(|mib| {
        let case = format!("{mib} MiB, pause");
        let p50 = ram.summary(&case)?.p50_ns;
        Some((case, p50))
    });
    let missing = RAM.iter().map(|mib| format!("{mib} MiB, pause"));
    let missing = missing.filter(|case| ram.summary(case).is_none());
    let goal = "pause p50 < 1 ms with at most 4 MiB left at it, 128 MiB to 2 GiB of memory";
    let goal = Goal::time(goal, limit, pauses.collect::<Vec<_>>()).without(missing);
    section.goals.push(goal);
    let rate = "16 MiB of 512 written over and over, by rate";
    let rate = group(lab, section, guests, rate, by_rate)?;
    let size = "so much of 512 MiB written over and over without rest";
    let size = group(lab, section, guests, size, by_size)?;
    section.groups.extend([ram, rate, size]);
    Ok(())
}

fn group(
    lab: &Lab<'_>,
    section: &mut Section,
    guests: &Guests<'_>,
    title: &str,
    cases: impl Iterator<Item = Case>,
) -> Result<Group, BenchError> {
    let mut group = Group::new(title, Layout::Percentiles);
    for case in cases {
        lab.say(&format!("snapshots of machines: {title}: {}", case.name));
        let machine = guests.running(lab, case.work)?;
        measure(lab, section, guests, (title, &case), &machine, &mut group)?;
    }
    Ok(group)
}

/// A first snapshot, and many over it.
fn measure(
    lab: &Lab<'_>,
    section: &mut Section,
    guests: &Guests<'_>,
    (title, case): (&str, &Case),
    machine: &Machine,
    group: &mut Group,
) -> Result<(), BenchError> {
    let mut snapshotter = Snapshotter::new(machine);
    let mib = case.work.mib;
    let [mut pause, mut captured, mut sealed, mut first] =
        std::array::from_fn(|_| Times::default());
    let (mut residual, mut on_disk) = (Vec::new(), Vec::new());
    let taken = guests.take(&mut snapshotter, "first", mib, None)?;
    first.record(taken.captured);
    let mut last = taken.image;
    last.seal(None).step("make an image durable")?;
    for number in 0..lab.pick(SNAPSHOTS.0, SNAPSHOTS.1) {
        lab.check()?;
        std::thread::sleep(BETWEEN);
        let id = format!("next-{number}");
        let mut taken = guests.take(&mut snapshotter, &id, mib, Some(&last))?;
        pause.record(taken.stats.pause);
        captured.record(taken.captured);
        residual.push(taken.stats.residual as u64 * 4096);
        let start = Instant::now();
        let done = taken.image.seal(Some(&last));
        done.step("make an image durable")?;
        sealed.record(start.elapsed());
        on_disk.push(taken.image.own_bytes().step("look at an image")?);
        let before = std::mem::replace(&mut last, taken.image);
        std::fs::remove_dir_all(before.dir()).step("remove an image")?;
    }
    std::fs::remove_dir_all(last.dir()).step("remove an image")?;
    let name = &case.name;
    for (what, times) in [
        ("pause", &pause),
        ("captured", &captured),
        ("sealed", &sealed),
        ("captured, the first of it", &first),
    ] {
        group.add(format!("{name}, {what}"), None, times);
    }
    section.amount(
        format!("{title}: {name}: copied in the pause"),
        "bytes",
        residual,
    );
    section.amount(format!("{title}: {name}: an image's own"), "bytes", on_disk);
    Ok(())
}
