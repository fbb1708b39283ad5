//! What a machine costs, measured with the payload guest on this host's KVM.
//!
//! `cargo bench -p floe-vmm --bench machine`, with `-- --json` behind it for one object of figures. On a
//! page-table KVM an exit takes many times what it takes on a real one; figures of two kinds of host do
//! not compare.

#[path = "common/figure.rs"]
mod figure;
#[path = "../payload/host.rs"]
mod payload_host;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use figure::{Figure, micros, report};
use floe_vmm::machine::host::Host;
use floe_vmm::machine::{DevicesConfig, Machine, unconfined};
use payload_host::{file_system, serve};

const LONG: Duration = Duration::from_secs(120);
const BUILDS: usize = 100;
const PAUSES: usize = 1000;
/// Runs of a guest that does one thing many times; each gives the mean time of one.
const RUNS: usize = 20;

struct Bench {
    host: Host,
}

fn main() {
    // `cargo test --benches` runs this too: compiled is enough then.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let Some(host) = payload_host::kvm() else {
        return;
    };
    let bench = Bench { host };
    let mut figures = vec![
        // What a machine is measured against: the least that starts a program, and the host's own
        // cost of a machine without devices, memory and firmware tables.
        Figure::micros("a process, started and ended", processes()),
        Figure::micros(
            "an empty machine of KVM's, made and given up",
            empty_machines(),
        ),
    ];
    for mib in [64, 512, 2048, 16384] {
        figures.push(Figure::micros(
            format!("build, {mib} MiB"),
            bench.builds(mib),
        ));
    }
    figures.push(Figure::micros(
        "resume to first console byte",
        bench.first_byte(),
    ));
    for vcpus in [1, 2, 8] {
        figures.push(Figure::micros(
            format!("pause of a busy vCPU, of {vcpus}"),
            bench.pauses(vcpus),
        ));
    }
    let exits = bench.guest("exits", 100_000);
    let a_second = exits.iter().map(|micros| 1e6 / micros).collect();
    figures.push(Figure::micros("exit to the monitor and back", exits));
    figures.push(Figure::new("exits of one vCPU", "/s", a_second));
    let steps = bench.guest("rng-bench", 10_000);
    figures.push(Figure::micros("virtio round trip (rng)", steps));
    let steps = bench.fs("fs-bench", 5_000);
    figures.push(Figure::micros("file system round trip", steps));
    let steps = bench.fs("fs-bench-large", 500);
    figures.push(Figure::micros("file system round trip, 1 MiB", steps));
    for mib in [64, 2048] {
        let resident = (0..RUNS).map(|_| resident_kib(mib)).collect();
        figures.push(Figure::new(
            format!("resident monitor, idle guest of {mib} MiB"),
            "KiB",
            resident,
        ));
    }
    report(
        &figures,
        "Of what a guest repeats, each value is the mean of one run, its start included.",
    );
}

/// Time of `act`, many times.
fn timed(mut act: impl FnMut()) -> Vec<f64> {
    let once = |_| {
        let start = Instant::now();
        act();
        micros(start.elapsed())
    };
    (0..BUILDS).map(once).collect()
}

fn processes() -> Vec<f64> {
    timed(|| {
        let status = Command::new("/bin/true").status().expect("a process");
        assert!(status.success());
    })
}

fn empty_machines() -> Vec<f64> {
    let kvm = kvm_ioctls::Kvm::new().expect("a KVM: there was one");
    timed(|| {
        let vm = kvm.create_vm().expect("a machine");
        let vcpu = vm.create_vcpu(0).expect("a vCPU");
        drop((vcpu, vm));
    })
}

impl Bench {
    fn machine(&self, mib: u32, cmdline: &str, devices: DevicesConfig) -> Machine {
        payload_host::built(&self.host, cmdline, mib, 1, devices)
    }

    fn builds(&self, mib: u32) -> Vec<f64> {
        let build = |_| {
            let start = Instant::now();
            let machine = self.machine(mib, "off", DevicesConfig::default());
            let took = micros(start.elapsed());
            drop(machine);
            took
        };
        (0..BUILDS).map(build).collect()
    }

    fn first_byte(&self) -> Vec<f64> {
        let boot = |_| {
            let mut machine = self.machine(64, "spin", DevicesConfig::default());
            let (mut near, far) = UnixStream::pair().expect("a socket");
            machine.console().lock().attach(far).expect("room");
            machine.start(&unconfined()).expect("threads");
            let start = Instant::now();
            machine.resume().expect("it runs");
            near.read_exact(&mut [0]).expect("a byte");
            let took = micros(start.elapsed());
            machine.stop();
            took
        };
        (0..BUILDS).map(boot).collect()
    }

    fn pauses(&self, vcpus: u8) -> Vec<f64> {
        let devices = DevicesConfig::default();
        let mut machine = payload_host::built(&self.host, "spin", 64, vcpus, devices);
        machine.start(&unconfined()).expect("threads");
        let pause = |_| {
            machine.resume().expect("it runs");
            std::thread::sleep(Duration::from_millis(2));
            let start = Instant::now();
            machine.pause().expect("it pauses");
            micros(start.elapsed())
        };
        (0..PAUSES).map(pause).collect()
    }

    /// Time of one of `count` steps of a guest's command, in each run.
    fn guest(&self, cmdline: &str, count: u32) -> Vec<f64> {
        (0..RUNS)
            .map(|_| self.steps(cmdline, count, DevicesConfig::default()))
            .collect()
    }

    fn steps(&self, cmdline: &str, count: u32, devices: DevicesConfig) -> f64 {
        let mut machine = self.machine(64, cmdline, devices);
        machine.start(&unconfined()).expect("threads");
        let start = Instant::now();
        machine.resume().expect("it runs");
        machine.wait(Some(LONG)).expect("it ends");
        micros(start.elapsed()) / f64::from(count)
    }

    fn fs(&self, cmdline: &str, count: u32) -> Vec<f64> {
        (0..RUNS).map(|_| self.fs_once(cmdline, count)).collect()
    }

    fn fs_once(&self, cmdline: &str, count: u32) -> f64 {
        let (fs, mut server) = file_system();
        let thread = std::thread::spawn(move || while serve(&mut server).is_some() {});
        let devices = DevicesConfig {
            vsock: None,
            fs: vec![fs],
        };
        let took = self.steps(cmdline, count, devices);
        thread.join().expect("the server ends");
        took
    }
}

/// Resident memory of a whole monitor whose guest has touched next to nothing.
fn resident_kib(mib: u32) -> f64 {
    let (near, far) = UnixStream::pair().expect("a socket");
    let mut monitor = Command::new(env!("CARGO_BIN_EXE_floe-monitor"))
        .stdin(Stdio::from(OwnedFd::from(far)))
        .spawn()
        .expect("the monitor");
    let config = serde_json::json!({
        "memory_mib": mib, "vcpus": 1, "kernel": payload_host::payload(), "cmdline": "spin", "linux": false,
    });
    writeln!(&near, "{config}").expect("it listens");
    let mut line = String::new();
    BufReader::new(&near).read_line(&mut line).expect("it runs");
    let path = format!("/proc/{}/status", monitor.id());
    let status = std::fs::read_to_string(path).expect("it is there");
    drop(near);
    monitor.wait().expect("it ends");
    let resident = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let words = resident.and_then(|rest| rest.split_whitespace().next());
    words.and_then(|kib| kib.parse().ok()).expect("a figure")
}
