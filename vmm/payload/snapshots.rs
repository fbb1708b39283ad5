//! What tests of snapshots share: machines with a guest that counts its steps (`dirty PAGES REST`), and
//! how a snapshot of one becomes an image.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use floe_vmm::devices::serial::SharedConsole;
use floe_vmm::machine::host::Host;
use floe_vmm::machine::memory::{RamSize, VcpuCount};
use floe_vmm::machine::{DevicesConfig, EmptyConfig, Machine, unconfined};
use floe_vmm::snapshot::image::{Image, ImageWriter};
use floe_vmm::snapshot::{Options, Snapshotter, Stats, Wanted};
use vm_memory::{Bytes, GuestAddress};

use super::payload_host::built;

/// Where the guest counts its steps.
const COUNT: GuestAddress = GuestAddress(0x40_0000);
/// How long a step may take to come.
const LONG: Duration = Duration::from_secs(30);

/// A machine whose guest has begun.
pub fn running(host: &Host, mib: u32, cmdline: &str) -> Machine {
    let mut machine = built(host, cmdline, mib, 1, DevicesConfig::default());
    machine.start(&unconfined()).expect("threads");
    machine.resume().expect("it runs");
    wait_for_step(&machine, 1);
    machine
}

/// A machine that waits for what it is to go on from.
pub fn empty(host: &Host, mib: u32) -> Machine {
    let config = EmptyConfig {
        ram: RamSize::from_mib(mib).expect("within the limits"),
        vcpus: VcpuCount::new(1).expect("within the limits"),
        console: SharedConsole::default(),
        devices: DevicesConfig::default(),
    };
    let mut machine = Machine::empty(host, config).expect("a machine");
    machine.start(&unconfined()).expect("threads");
    machine
}

/// The step that the guest is at.
pub fn step(machine: &Machine) -> u64 {
    machine.memory().read_obj(COUNT).expect("memory")
}

/// Waits until it has come so far.
pub fn wait_for_step(machine: &Machine, wanted: u64) {
    let deadline = Instant::now() + LONG;
    while step(machine) < wanted {
        assert!(
            Instant::now() < deadline,
            "the guest does not come to step {wanted}"
        );
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Takes a snapshot into the directory `id`: the image, and what it cost.
pub fn take(
    snapshotter: &mut Snapshotter,
    (images, id): (&Path, &str),
    mib: u32,
    parent: Option<&Image>,
    held: &mut dyn FnMut() -> Result<(), String>,
) -> (Image, Stats) {
    let ram = RamSize::from_mib(mib).expect("within the limits");
    let writer = ImageWriter::new(images, id, ram).expect("room");
    let wanted = Wanted {
        id,
        over: parent.map(|parent| parent.manifest().id.as_str()),
        memory: writer.memory(),
        options: Options::default(),
        cancel: &AtomicBool::new(false),
    };
    let (taken, stats) = snapshotter.take(&wanted, held).expect("a snapshot");
    let image = writer.capture(taken, parent, Vec::new()).expect("room");
    (image, stats)
}
