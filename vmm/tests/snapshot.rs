//! Snapshots and clones of the payload guest, on this machine's KVM.
//!
//! Where there is no KVM the tests say so and pass: the same behaviour is then shown by the lab.

#[expect(dead_code, reason = "there are no file systems here")]
#[path = "../payload/host.rs"]
mod payload_host;
#[path = "../payload/snapshots.rs"]
mod snapshots;

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use floe_vmm::machine::Machine;
use floe_vmm::machine::host::Host;
use floe_vmm::machine::memory::RamSize;
use floe_vmm::snapshot::image::{Image, ImageWriter, OpenError};
use floe_vmm::snapshot::pages::Run;
use floe_vmm::snapshot::{
    Options, RestoreImageError, SnapshotError, Snapshotter, Stats, Wanted, WorkingSet,
};
use payload_host::kvm;
use snapshots::{empty, running, step, take, wait_for_step};
use vm_memory::{Bytes, GuestAddress};

const MIB: u32 = 64;
const PAGES: usize = (MIB as usize) << 8;

fn restored(host: &Host, image: &Image) -> Machine {
    let mut machine = empty(host, MIB);
    machine.restore(image, host).unwrap();
    machine
}

fn memory(machine: &Machine) -> Vec<u8> {
    let mut bytes = vec![0; PAGES * 4096];
    machine
        .memory()
        .read_slice(&mut bytes, GuestAddress(0))
        .unwrap();
    bytes
}

fn contents(image: &Image) -> Vec<u8> {
    let mut bytes = vec![1; PAGES * 4096];
    image
        .read(
            Run {
                start: 0,
                len: PAGES,
            },
            &mut bytes,
        )
        .unwrap();
    bytes
}

/// Which pages differ.
fn different(left: &[u8], right: &[u8]) -> Vec<usize> {
    let pages = left.chunks(4096).zip(right.chunks(4096));
    let pages = pages.enumerate().filter(|(_, (left, right))| left != right);
    pages.map(|(page, _)| page).collect()
}

/// Takes a snapshot; the image, what memory was while the guest was held, and what it cost.
fn snapshot(
    machine: &Machine,
    snapshotter: &mut Snapshotter,
    images: &Path,
    id: &str,
    parent: Option<&Image>,
) -> (Image, Vec<u8>, Stats) {
    let mut truth = Vec::new();
    let mut held = || {
        truth = memory(machine);
        Ok(())
    };
    let (image, stats) = take(snapshotter, (images, id), MIB, parent, &mut held);
    (image, truth, stats)
}

fn assert_unbroken(machine: &Machine) {
    let lines = machine.console().lock().last_lines(10);
    assert!(
        !lines.iter().any(|line| line.contains("broken")),
        "{lines:?}"
    );
}

fn counts() -> usize {
    let long = std::env::var_os("FLOE_TEST_LONG").is_some_and(|value| value == "1");
    if long { 1000 } else { 100 }
}

#[test]
fn every_page_of_an_image_is_the_page_at_the_pause() {
    let Some(host) = kvm() else { return };
    let dir = tempfile::tempdir().unwrap();
    let machine = running(&host, MIB, "dirty 4096 0");
    let mut snapshotter = Snapshotter::new(&machine);
    let mut last: Option<Image> = None;
    let mut pause = [0u64; 3];
    for run in 0..counts() {
        std::thread::sleep(Duration::from_micros(run as u64 * 7919 % 3000));
        // Now and then one without a parent.
        let parent = last.as_ref().filter(|_| run % 10 != 9);
        let id = format!("image-{run}");
        let (mut image, truth, stats) =
            snapshot(&machine, &mut snapshotter, dir.path(), &id, parent);
        assert_eq!(
            different(&contents(&image), &truth),
            [0; 0],
            "run {run}, {stats:?}"
        );
        if run % 7 == 0 {
            image.seal(last.as_ref()).unwrap();
            let again = Image::open(&dir.path().join(&id)).unwrap();
            again.verify().unwrap();
            assert_eq!(
                different(&contents(&again), &truth),
                [0; 0],
                "run {run}, opened again"
            );
        }
        // Whose files are used longer than it is there.
        if let Some(last) = last.replace(image) {
            std::fs::remove_dir_all(last.dir()).unwrap();
        }
        pause = [
            pause[0] + 1,
            pause[1] + stats.residual as u64,
            pause[2] + stats.rounds as u64,
        ];
    }
    assert_unbroken(&machine);
    eprintln!(
        "{} snapshots, {} residual pages, {} rounds",
        pause[0], pause[1], pause[2]
    );
}

#[test]
fn a_guest_that_writes_faster_than_it_is_copied_is_slowed_down_and_not_held_for_it() {
    const LARGE: u32 = 256;
    let Some(host) = kvm() else { return };
    let dir = tempfile::tempdir().unwrap();
    // 200 MiB in no order.
    let machine = running(&host, LARGE, "dirty 51200 0");
    wait_for_step(&machine, 500_000);
    let mut snapshotter = Snapshotter::new(&machine);
    let mut truth = vec![0; (LARGE as usize) << 20];
    for id in ["first", "second"] {
        let mut held = || {
            let read = machine.memory().read_slice(&mut truth, GuestAddress(0));
            read.map_err(|error| error.to_string())
        };
        let (image, stats) = take(&mut snapshotter, (dir.path(), id), LARGE, None, &mut held);
        eprintln!("{stats:?}");
        assert!(stats.residual <= 64 << 8, "{stats:?}");
        let mut bytes = vec![1; truth.len()];
        let all = Run {
            start: 0,
            len: truth.len() / 4096,
        };
        image.read(all, &mut bytes).unwrap();
        assert_eq!(different(&bytes, &truth), [0; 0]);
        wait_for_step(&machine, step(&machine) + 100_000);
    }
    assert_unbroken(&machine);
}

#[test]
fn clones_go_on_at_the_next_step_and_see_nothing_of_each_other() {
    let Some(host) = kvm() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut source = running(&host, MIB, "dirty 2000 50");
    let mut snapshotter = Snapshotter::new(&source);
    let (image, truth, _) = snapshot(&source, &mut snapshotter, dir.path(), "image", None);
    let at = u64::from_le_bytes(truth[0x40_0000..0x40_0008].try_into().unwrap());
    let clones: Vec<Machine> = (0..3).map(|_| restored(&host, &image)).collect();
    for clone in &clones {
        // But for its generation, which is its own.
        let page = usize::try_from(floe_vmm::machine::layout::GENERATION_PAGE).unwrap() / 4096;
        assert_eq!(different(&memory(clone), &truth), [page]);
        assert_eq!(step(clone), at);
        clone.resume().unwrap();
    }
    for (number, clone) in clones.iter().enumerate() {
        wait_for_step(clone, at + 1000 * (number as u64 + 1));
    }
    source.pause().unwrap();
    let before = memory(&source);
    for clone in &clones {
        wait_for_step(clone, step(clone) + 5000);
        clone.pause().unwrap();
        assert_unbroken(clone);
    }
    assert_eq!(different(&memory(&source), &before), [0; 0]);
    assert_eq!(different(&contents(&image), &truth), [0; 0]);
    source.resume().unwrap();
    wait_for_step(&source, step(&source) + 1000);
    assert_unbroken(&source);
    source.stop();
}

#[test]
fn what_a_machine_touched_is_there_for_the_next_before_it_runs() {
    let Some(host) = kvm() else { return };
    let dir = tempfile::tempdir().unwrap();
    let source = running(&host, MIB, "dirty 2000 20");
    let mut snapshotter = Snapshotter::new(&source);
    let (image, truth, _) = snapshot(&source, &mut snapshotter, dir.path(), "image", None);
    assert!(snapshotter.working_set().unwrap().is_none());
    let first = restored(&host, &image);
    let touched = Snapshotter::of_restored(&first, "image");
    let before = touched.working_set().unwrap().unwrap();
    first.resume().unwrap();
    wait_for_step(&first, step(&first) + 4000);
    first.pause().unwrap();
    let set = touched.working_set().unwrap().unwrap();
    let count = |set: &WorkingSet| set.pages().count();
    assert!(count(&set) >= 2000 && count(&set) > count(&before));
    assert!(set.pages().contains(0x400), "where it counts");

    let next = restored(&host, &image);
    let touched = Snapshotter::of_restored(&next, "image");
    touched.populate(&set, &|| false).unwrap();
    assert!(count(&touched.working_set().unwrap().unwrap()) < 2000);
    touched.populate(&set, &|| true).unwrap();
    let after = touched.working_set().unwrap().unwrap();
    let mut pages = set.pages().runs().flat_map(|run| run.start..run.end());
    assert!(pages.all(|page| after.pages().contains(page)));
    // To read is all that was done.
    let page = usize::try_from(floe_vmm::machine::layout::GENERATION_PAGE).unwrap() / 4096;
    assert_eq!(different(&memory(&next), &truth), [page]);
    next.resume().unwrap();
    wait_for_step(&next, step(&next) + 4000);
    assert_unbroken(&next);
}

#[test]
fn a_chain_of_clones_and_snapshots_goes_on_without_a_break() {
    let Some(host) = kvm() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut machine = running(&host, MIB, "dirty 1000 20");
    let mut snapshotter = Snapshotter::new(&machine);
    let mut parent: Option<Image> = None;
    for depth in 0..20 {
        let id = format!("image-{depth}");
        let (mut image, truth, _) =
            snapshot(&machine, &mut snapshotter, dir.path(), &id, parent.as_ref());
        image.seal(parent.as_ref()).unwrap();
        let image = Image::open(&dir.path().join(&id)).unwrap();
        assert_eq!(
            different(&contents(&image), &truth),
            [0; 0],
            "depth {depth}"
        );
        let manifest = image.manifest();
        if depth > 0 {
            assert!(
                manifest.written_pages < 2000,
                "{} pages",
                manifest.written_pages
            );
        }
        let at = step(&machine);
        machine.stop();
        machine = restored(&host, &image);
        snapshotter = Snapshotter::of_restored(&machine, &id);
        machine.resume().unwrap();
        wait_for_step(&machine, at);
        parent = Some(image);
    }
    assert_unbroken(&machine);
}

#[test]
fn a_snapshot_that_fails_or_is_cancelled_leaves_the_machine_and_the_next_as_if_it_had_not_been() {
    let Some(host) = kvm() else { return };
    let dir = tempfile::tempdir().unwrap();
    let machine = running(&host, MIB, "dirty 1000 20");
    let mut snapshotter = Snapshotter::new(&machine);
    let (first, ..) = snapshot(&machine, &mut snapshotter, dir.path(), "first", None);
    let ram = RamSize::from_mib(MIB).unwrap();
    for (number, cancel) in [false, true].into_iter().enumerate() {
        let id = format!("failed-{number}");
        let writer = ImageWriter::new(dir.path(), &id, ram).unwrap();
        let mut held = || Err("no room".to_owned());
        let wanted = Wanted {
            id: &id,
            over: Some("first"),
            memory: writer.memory(),
            options: Options::default(),
            cancel: &AtomicBool::new(cancel),
        };
        let failed = snapshotter.take(&wanted, &mut held);
        match failed.unwrap_err() {
            SnapshotError::Files { what } => {
                assert_eq!((what.as_str(), cancel), ("no room", false))
            }
            error => assert!(
                matches!(error, SnapshotError::Cancelled) && cancel,
                "{error}"
            ),
        }
        drop(writer);
        assert!(!dir.path().join(&id).exists());
        wait_for_step(&machine, step(&machine) + 100);
    }
    assert_eq!(snapshotter.base(), Some("first"));
    let (second, truth, _) = snapshot(
        &machine,
        &mut snapshotter,
        dir.path(),
        "second",
        Some(&first),
    );
    assert_eq!(different(&contents(&second), &truth), [0; 0]);
    assert_unbroken(&machine);
}

#[test]
fn what_cannot_go_on_here_is_refused_with_what_differs() {
    let Some(host) = kvm() else { return };
    let dir = tempfile::tempdir().unwrap();
    let machine = running(&host, MIB, "dirty 100 20");
    let mut snapshotter = Snapshotter::new(&machine);
    let (mut image, ..) = snapshot(&machine, &mut snapshotter, dir.path(), "image", None);
    image.seal(None).unwrap();
    let path = dir.path().join("image");
    let mut other = empty(&host, MIB * 2);
    let error = other.restore(&image, &host).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the image is of a machine with 64 MiB of memory, this one has 128"
    );
    assert!(other.resume().is_err(), "there is nothing in it");
    let mut twice = restored(&host, &image);
    assert!(matches!(
        twice.restore(&image, &host),
        Err(RestoreImageError::NotEmpty)
    ));
    // Every byte of the file that is not memory counts.
    let file = path.join("image");
    let good = std::fs::read(&file).unwrap();
    for at in (0..good.len()).step_by(97).chain([good.len() - 1]) {
        let mut bad = good.clone();
        bad[at] ^= 1;
        std::fs::write(&file, &bad).unwrap();
        assert!(Image::open(&path).is_err(), "byte {at} of {}", good.len());
    }
    std::fs::write(&file, &good[..good.len() - 1]).unwrap();
    let error = Image::open(&path).unwrap_err().to_string();
    assert!(
        error.ends_with("is damaged: its file is too short"),
        "{error}"
    );
    std::fs::write(&file, &good).unwrap();
    // Memory is not read at a start: damage is what a check finds, but for a file that is too short.
    let image = Image::open(&path).unwrap();
    let memory = std::fs::OpenOptions::new()
        .write(true)
        .open(path.join("memory"))
        .unwrap();
    std::os::unix::fs::FileExt::write_all_at(&memory, b"x", 0x40_0003).unwrap();
    let error = image.verify().unwrap_err().to_string();
    assert_eq!(error, "the image is damaged: MiB 4 of memory is damaged");
    memory.set_len(4096).unwrap();
    let error = Image::open(&path).unwrap_err().to_string();
    assert!(error.ends_with("memory is too short"), "{error}");
    assert!(matches!(
        Image::open(&dir.path().join("none")),
        Err(OpenError::Absent { .. })
    ));
}
