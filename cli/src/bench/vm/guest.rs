//! A guest of Floe's own that does nothing but write to pages in turn, and count: its machines, their snapshots, and
//! machines that go on from those.
//!
//! It is part of the program (`vmm/payload/`), and runs on any KVM, also one that boots no Linux.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use floe_vmm::boot::Payload;
use floe_vmm::devices::serial::SharedConsole;
use floe_vmm::kvm::HostPaths;
use floe_vmm::machine::host::Host;
use floe_vmm::machine::memory::{RamSize, VcpuCount};
use floe_vmm::machine::{Config, DevicesConfig, EmptyConfig, Machine, unconfined};
use floe_vmm::snapshot::image::{Image, ImageWriter};
use floe_vmm::snapshot::{Options, Snapshotter, Stats, Wanted, WorkingSet};
use rustix::fs::Advice;
use vm_memory::{Bytes, GuestAddress};

use crate::bench::error::{BenchError, Step};
use crate::bench::lab::Lab;

/// The guest as an ELF file.
const PAYLOAD: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/payload.elf"));
/// Where it counts its steps.
const COUNT: GuestAddress = GuestAddress(0x40_0000);
/// How long a step may take to come.
const LONG: Duration = Duration::from_secs(30);

/// What the guest does.
#[derive(Clone, Copy, Debug)]
pub(super) struct Work {
    /// Memory of its machine.
    pub(super) mib: u32,
    /// It writes to so many pages in turn, over and over,
    pub(super) pages: u32,
    /// and rests for so many turns of a loop after each.
    pub(super) rest: u32,
}

/// What its machines are made with.
pub(super) struct Guests<'a> {
    host: Host,
    kernel: File,
    dir: &'a Path,
}

/// An image that was captured.
pub(super) struct Taken {
    pub(super) image: Image,
    pub(super) stats: Stats,
    /// Since it was asked for.
    pub(super) captured: Duration,
}

impl<'a> Guests<'a> {
    /// Images go into `dir`.
    pub(super) fn new(dir: &'a Path) -> Result<Self, BenchError> {
        let host = Host::open(&HostPaths::default()).step("use KVM")?;
        let path = dir.join("guest.elf");
        let written = File::create(&path).and_then(|mut file| file.write_all(PAYLOAD));
        written.step("write the guest's program")?;
        let kernel = File::open(&path).step("open the guest's program")?;
        Ok(Self { host, kernel, dir })
    }

    /// A machine whose guest has begun.
    pub(super) fn running(&self, lab: &Lab<'_>, work: Work) -> Result<Machine, BenchError> {
        let config = Config {
            ram: ram(work.mib)?,
            vcpus: VcpuCount::new(1).step("count processors")?,
            payload: Payload {
                kernel: self.kernel.try_clone().step("open the guest's program")?,
                initramfs: None,
                cmdline: format!("dirty {} {}", work.pages, work.rest),
            },
            console: SharedConsole::default(),
            devices: DevicesConfig::default(),
        };
        let mut machine = Machine::new(&self.host, config).step("build a machine")?;
        machine
            .start(&unconfined())
            .step("start a machine's threads")?;
        machine.resume().step("start a machine")?;
        let give_up = Instant::now() + LONG;
        while step(&machine)? == 0 {
            lab.check()?;
            if Instant::now() > give_up {
                let what = "the guest does not begin".to_owned();
                return Err(BenchError::Wrong { what });
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(machine)
    }

    /// Takes a snapshot into the directory `id`.
    pub(super) fn take(
        &self,
        snapshotter: &mut Snapshotter,
        id: &str,
        mib: u32,
        parent: Option<&Image>,
    ) -> Result<Taken, BenchError> {
        let ram = ram(mib)?;
        let start = Instant::now();
        let writer = ImageWriter::new(self.dir, id, ram).step("make an image")?;
        let wanted = Wanted {
            id,
            over: parent.map(|parent| parent.manifest().id.as_str()),
            memory: writer.memory(),
            options: Options::default(),
            cancel: &AtomicBool::new(false),
        };
        let taken = snapshotter.take(&wanted, &mut || Ok(()));
        let (taken, stats) = taken.step("take a snapshot of a machine")?;
        let image = writer.capture(taken, parent, Vec::new());
        Ok(Taken {
            image: image.step("make an image")?,
            stats,
            captured: start.elapsed(),
        })
    }

    /// A machine that waits for an image.
    fn empty(&self, mib: u32) -> Result<Machine, BenchError> {
        let config = EmptyConfig {
            ram: ram(mib)?,
            vcpus: VcpuCount::new(1).step("count processors")?,
            console: SharedConsole::default(),
            devices: DevicesConfig::default(),
        };
        let mut machine = Machine::empty(&self.host, config).step("build a machine")?;
        let started = machine.start(&unconfined());
        started.step("start a machine's threads")?;
        Ok(machine)
    }

    /// From the wish to start from an image that is not in the page cache until the guest has come so many steps
    /// further, with what it wants of it read meanwhile, or not. Also what it touched.
    pub(super) fn begin_from_disk(
        &self,
        image: &Path,
        mib: u32,
        steps: u64,
        hint: Option<&WorkingSet>,
    ) -> Result<(Duration, Option<WorkingSet>), BenchError> {
        let mut machine = self.empty(mib)?;
        let image = Image::open(image).step("open an image")?;
        for file in image.files() {
            let forgotten = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
            forgotten.step("have an image's pages forgotten")?;
        }
        let start = Instant::now();
        let restored = machine.restore(&image, &self.host);
        restored.step("start from an image")?;
        let snapshotter = Snapshotter::of_restored(&machine, &image.manifest().id);
        let goal = step(&machine)? + steps;
        machine.resume().step("start from an image")?;
        let took = std::thread::scope(|scope| {
            if let Some(hint) = hint {
                let snapshotter = &snapshotter;
                scope.spawn(move || snapshotter.populate(hint, &|| true));
            }
            while step(&machine)? < goal {
                if start.elapsed() > LONG {
                    return Err(stuck());
                }
                std::thread::sleep(Duration::from_micros(50));
            }
            Ok(start.elapsed())
        })?;
        let touched = snapshotter
            .working_set()
            .step("look at a machine's pages")?;
        Ok((took, touched))
    }

    /// From the wish to start from an image to the guest's next step, in a machine that was built before; it is
    /// held afterwards.
    pub(super) fn clone_of(
        &self,
        image: &Path,
        mib: u32,
    ) -> Result<(Machine, Duration), BenchError> {
        let mut machine = self.empty(mib)?;
        let start = Instant::now();
        let image = Image::open(image).step("open an image")?;
        machine
            .restore(&image, &self.host)
            .step("start from an image")?;
        let at = step(&machine)?;
        machine.resume().step("start from an image")?;
        while step(&machine)? == at {
            if start.elapsed() > LONG {
                return Err(stuck());
            }
            std::hint::spin_loop();
        }
        let took = start.elapsed();
        machine.pause().step("hold a machine")?;
        Ok((machine, took))
    }
}

fn stuck() -> BenchError {
    let what = "a machine that was started from an image does not go on".to_owned();
    BenchError::Wrong { what }
}

fn ram(mib: u32) -> Result<RamSize, BenchError> {
    RamSize::from_mib(mib).step("count memory")
}

fn step(machine: &Machine) -> Result<u64, BenchError> {
    let count = machine.memory().read_obj(COUNT);
    count.step("read a guest's memory")
}
