//! Machines that go on from an image: alone, beside many others, and from the end of a chain.

use std::time::Duration;

use floe_vmm::machine::Machine;
use floe_vmm::snapshot::Snapshotter;
use floe_vmm::snapshot::image::Image;

use super::guest::{Guests, Work};
use crate::bench::error::{BenchError, Step};
use crate::bench::goal::Goal;
use crate::bench::lab::Lab;
use crate::bench::report::{Group, Layout, Section};
use crate::bench::stats::{Times, grouped};

/// Memory of each, in MiB.
const MIB: u32 = 512;
/// Clones, one after the other.
const CLONES: (u32, u32) = (200, 5);
/// Clones that are kept, all of them.
const KEPT: (&[usize], &[usize]) = (&[100, 1000], &[10]);
/// Clones of an image that is not in memory, of each kind.
const FROM_DISK: (u32, u32) = (30, 2);
/// Depths that are measured.
const DEPTHS: (&[u64], &[u64]) = (&[1, 10, 50, 100], &[1, 5]);
/// Clones of each depth.
const AT_DEPTH: (u32, u32) = (100, 5);

/// One image, and many machines from it.
pub(super) fn run(
    lab: &Lab<'_>,
    section: &mut Section,
    guests: &Guests<'_>,
) -> Result<(), BenchError> {
    lab.say("machines from one image");
    let work = Work {
        mib: MIB,
        pages: 256,
        rest: 200,
    };
    let machine = guests.running(lab, work)?;
    let mut image = guests
        .take(&mut Snapshotter::new(&machine), "cloned", MIB, None)?
        .image;
    image.seal(None).step("make an image durable")?;
    drop(machine);
    let mut group = Group::new(
        format!("clone to its next step, {MIB} MiB of memory"),
        Layout::Percentiles,
    );
    let mut times = Times::default();
    for _ in 0..lab.pick(CLONES.0, CLONES.1) {
        lab.check()?;
        times.record(guests.clone_of(image.dir(), MIB)?.1);
    }
    group.add("one at a time", None, &times);
    for &count in lab.pick(KEPT.0, KEPT.1) {
        let mut times = Times::default();
        let before = private_bytes()?;
        let mut kept: Vec<Machine> = Vec::with_capacity(count);
        for _ in 0..count {
            lab.check()?;
            let (machine, took) = guests.clone_of(image.dir(), MIB)?;
            times.record(took);
            kept.push(machine);
        }
        let each = private_bytes()?.saturating_sub(before) / count as u64;
        let what = format!("private memory of a clone, {} kept", grouped(count as u64));
        section.amount(what, "bytes", vec![each]);
        group.add(format!("{} kept", grouped(count as u64)), None, &times);
    }
    let alone = group.summary("one at a time");
    section.goals.push(Goal::time(
        "clone to its next step, p50 < 0.5 ms",
        Duration::from_micros(500),
        alone.map(|summary| ("one at a time", summary.p50_ns)),
    ));
    section.groups.push(group);
    Ok(())
}

/// Machines from an image that is on the disk only: with what the first of them wanted, and without.
pub(super) fn from_disk(
    lab: &Lab<'_>,
    section: &mut Section,
    guests: &Guests<'_>,
) -> Result<(), BenchError> {
    lab.say("machines from an image on the disk");
    let work = Work {
        mib: MIB,
        pages: 4096,
        rest: 0,
    };
    let machine = guests.running(lab, work)?;
    // All pages have something in them by then.
    std::thread::sleep(Duration::from_millis(200));
    let mut image = guests
        .take(&mut Snapshotter::new(&machine), "disk", MIB, None)?
        .image;
    image.seal(None).step("make an image durable")?;
    drop(machine);
    let mut set = None;
    let [mut without, mut with] = [Times::default(), Times::default()];
    for _ in 0..lab.pick(FROM_DISK.0, FROM_DISK.1) {
        lab.check()?;
        let (took, touched) = guests.begin_from_disk(image.dir(), MIB, 4096, None)?;
        without.record(took);
        set = set.or(touched);
        let (took, _) = guests.begin_from_disk(image.dir(), MIB, 4096, set.as_ref())?;
        with.record(took);
    }
    let mut group = Group::new(
        "clone from the disk, until it has written to 16 MiB",
        Layout::Percentiles,
    );
    group.add("as it asks for pages", None, &without);
    group.add("with its working set", None, &with);
    section.group(group);
    Ok(())
}

/// Images each over the last, and machines from some.
pub(super) fn chain(
    lab: &Lab<'_>,
    section: &mut Section,
    guests: &Guests<'_>,
) -> Result<(), BenchError> {
    lab.say("machines from a chain of images");
    let work = Work {
        mib: MIB,
        pages: 4096,
        rest: 1000,
    };
    let machine = guests.running(lab, work)?;
    let mut snapshotter = Snapshotter::new(&machine);
    let mut group = Group::new(
        "clone to its next step, by depth of its chain",
        Layout::Percentiles,
    );
    let depths = lab.pick(DEPTHS.0, DEPTHS.1);
    let mut parent: Option<Image> = None;
    for depth in 1..=depths.last().copied().unwrap_or(0) {
        lab.check()?;
        std::thread::sleep(Duration::from_millis(5));
        let id = format!("depth-{depth}");
        let mut image = guests
            .take(&mut snapshotter, &id, MIB, parent.as_ref())?
            .image;
        image.seal(parent.as_ref()).step("make an image durable")?;
        if depths.contains(&depth) {
            // It would take a processor from what is measured.
            machine.pause().step("hold a machine")?;
            let mut times = Times::default();
            for _ in 0..lab.pick(AT_DEPTH.0, AT_DEPTH.1) {
                lab.check()?;
                times.record(guests.clone_of(image.dir(), MIB)?.1);
            }
            machine.resume().step("let a machine go on")?;
            group.add(format!("{depth} deep"), Some(depth), &times);
            let mappings = vec![image.manifest().extents.len() as u64];
            section.amount(format!("mappings of an image, {depth} deep"), "", mappings);
        }
        parent = Some(image);
    }
    let p50 = |depth: u64| {
        let summary = group.summary(&format!("{depth} deep"))?;
        Some(summary.p50_ns)
    };
    let pairs = match (p50(10), p50(100)) {
        (Some(ten), Some(hundred)) => vec![("100 deep to 10 deep", ten, hundred)],
        _ => Vec::new(),
    };
    let goal = "the last of a chain of 100 starts like the tenth, p50 at most 1.5x";
    section.goals.push(Goal::ratio(goal, 1.5, pairs));
    section.groups.push(group);
    Ok(())
}

/// Memory of this process that is nobody else's.
fn private_bytes() -> Result<u64, BenchError> {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").step("look at memory")?;
    let kib = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let words = line.and_then(|rest| rest.split_whitespace().next());
        words.and_then(|kib| kib.parse().ok()).unwrap_or(0)
    };
    Ok((kib("Private_Dirty:") + kib("Private_Clean:")) << 10)
}
