//! A disk that is full in the middle of a snapshot: whatever it was doing, the machine goes on, nothing is left of
//! the attempt, and the next snapshot has everything.
//!
//! Needs root, for a small disk of its own, and KVM; says so and passes without.

#[expect(dead_code, reason = "there are no file systems here")]
#[path = "../payload/host.rs"]
mod payload_host;
#[expect(dead_code, reason = "no machine goes on from what is taken here")]
#[path = "../payload/snapshots.rs"]
mod snapshots;

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

use floe_vmm::machine::Machine;
use floe_vmm::machine::memory::RamSize;
use floe_vmm::snapshot::image::{Image, ImageWriter, Taken};
use floe_vmm::snapshot::pages::Run;
use floe_vmm::snapshot::{Options, Snapshotter, Wanted};
use payload_host::kvm;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use snapshots::{running, step, take, wait_for_step};
use vm_memory::{Bytes, GuestAddress};

const MIB: u32 = 64;
const PAGES: usize = (MIB as usize) << 8;
/// Room on the disk: the guest writes to 16 MiB, so for some of its images.
const DISK: u64 = 96 << 20;

/// A small file system in memory.
struct Disk {
    dir: tempfile::TempDir,
}

impl Disk {
    fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            eprintln!("not done here: only root can mount a disk");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={DISK},mode=0700");
        let options = std::ffi::CString::new(options).unwrap();
        mount("tmpfs", dir.path(), "tmpfs", MountFlags::empty(), &*options).unwrap();
        Some(Self { dir })
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn filler(&self) -> PathBuf {
        self.path().join("filler")
    }

    /// Takes all the room but so much.
    fn fill(&self, but: usize) {
        let mut filler = File::create(self.filler()).unwrap();
        let block = [1; 4096];
        let full = loop {
            if let Err(error) = filler.write_all(&block) {
                break error;
            }
        };
        assert_eq!(full.kind(), io::ErrorKind::StorageFull);
        let len = filler.metadata().unwrap().len();
        filler.set_len(len.saturating_sub(but as u64)).unwrap();
    }

    fn empty(&self) {
        fs::remove_file(self.filler()).unwrap();
    }

    /// What is on it besides the images that are to be.
    fn others(&self, images: &[&str]) -> Vec<String> {
        let entries = fs::read_dir(self.path()).unwrap();
        let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
        names
            .filter(|name| name != "filler" && !images.contains(&name.as_str()))
            .collect()
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.dir.path(), UnmountFlags::DETACH) {
            eprintln!("{}: {error}", self.dir.path().display());
        }
    }
}

fn is_full(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = next {
        if let Some(error) = error.downcast_ref::<io::Error>() {
            return error.kind() == io::ErrorKind::StorageFull;
        }
        next = error.source();
    }
    false
}

fn memory(machine: &Machine) -> Vec<u8> {
    let mut bytes = vec![0; PAGES * 4096];
    let all = machine.memory().read_slice(&mut bytes, GuestAddress(0));
    all.unwrap();
    bytes
}

/// One more, which must be whole.
fn whole(disk: &Disk, machine: &Machine, snapshotter: &mut Snapshotter, last: &Image) -> Image {
    let id = format!("{}+", last.manifest().id);
    let mut truth = Vec::new();
    let mut held = || {
        truth = memory(machine);
        Ok(())
    };
    let (image, ..) = take(snapshotter, (disk.path(), &id), MIB, Some(last), &mut held);
    let mut found = vec![1; PAGES * 4096];
    let all = Run {
        start: 0,
        len: PAGES,
    };
    image.read(all, &mut found).unwrap();
    let pages = truth.chunks(4096).zip(found.chunks(4096));
    let different = pages.filter(|(truth, found)| truth != found).count();
    assert_eq!(different, 0);
    fs::remove_dir_all(last.dir()).unwrap();
    image
}

/// Tries a snapshot over `last`; `held` is called while the guest is held.
fn attempt(
    disk: &Disk,
    snapshotter: &mut Snapshotter,
    last: &Image,
    held: &mut dyn FnMut() -> Result<(), String>,
) -> Result<(ImageWriter, Taken), Box<dyn std::error::Error>> {
    let writer = ImageWriter::new(disk.path(), "full", RamSize::from_mib(MIB)?)?;
    let wanted = Wanted {
        id: "full",
        over: Some(&last.manifest().id),
        memory: writer.memory(),
        options: Options::default(),
        cancel: &AtomicBool::new(false),
    };
    let (taken, _) = snapshotter.take(&wanted, held)?;
    Ok((writer, taken))
}

#[test]
fn a_full_disk_in_any_phase_costs_the_snapshot_and_nothing_else() {
    let (Some(host), Some(disk)) = (kvm(), Disk::new()) else {
        return;
    };
    // Some pages at a time, so that there are always such that the last copy has not.
    let machine = running(&host, MIB, "dirty 4096 2000");
    let mut snapshotter = Snapshotter::new(&machine);
    let (mut last, ..) = take(
        &mut snapshotter,
        (disk.path(), "image"),
        MIB,
        None,
        &mut || Ok(()),
    );
    let goes_on = |last: &Image| {
        wait_for_step(&machine, step(&machine) + 500);
        assert_eq!(disk.others(&[&last.manifest().id]), [""; 0]);
    };

    // While it is copied and the guest runs.
    wait_for_step(&machine, step(&machine) + 4096);
    disk.fill(64 << 10);
    let error = attempt(&disk, &mut snapshotter, &last, &mut || {
        panic!("it is held for nothing")
    });
    assert!(is_full(&*error.err().unwrap()));
    goes_on(&last);
    disk.empty();
    last = whole(&disk, &machine, &mut snapshotter, &last);

    // Behind the pause, when the files are frozen already.
    let mut tries = 0..50;
    loop {
        tries.next().expect("something is left at some pause");
        let mut frozen = || {
            disk.fill(0);
            Ok(())
        };
        let attempted = attempt(&disk, &mut snapshotter, &last, &mut frozen);
        disk.empty();
        match attempted {
            Err(error) => {
                assert!(is_full(&*error), "{error}");
                break;
            }
            // Nothing was left that the file had no room for.
            Ok(_) => snapshotter.forget_base(),
        }
        last = whole(&disk, &machine, &mut snapshotter, &last);
    }
    goes_on(&last);
    last = whole(&disk, &machine, &mut snapshotter, &last);

    // When the image is made of what was taken.
    let (writer, taken) = attempt(&disk, &mut snapshotter, &last, &mut || Ok(())).unwrap();
    disk.fill(0);
    let error = writer
        .capture(taken, Some(&last), vec![0; 8 << 10])
        .unwrap_err();
    assert!(is_full(&error), "{error}");
    snapshotter.forget_base();
    goes_on(&last);
    disk.empty();
    last = whole(&disk, &machine, &mut snapshotter, &last);

    // When it is sealed: it stays what it was, and is sealed later.
    disk.fill(0);
    let error = last.seal(None).unwrap_err();
    assert!(is_full(&error), "{error}");
    assert!(!Image::open(last.dir()).unwrap().is_sealed());
    goes_on(&last);
    disk.empty();
    last.seal(None).unwrap();
    Image::open(last.dir()).unwrap().verify().unwrap();
    drop(whole(&disk, &machine, &mut snapshotter, &last));
    let lines = machine.console().lock().last_lines(10);
    assert!(
        !lines.iter().any(|line| line.contains("broken")),
        "{lines:?}"
    );
}
