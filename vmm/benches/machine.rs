//! What a machine costs, measured with the payload guest on this host's KVM.
//!
//! `cargo bench -p floe-vmm --bench machine`, with `-- --json` behind it for one object of figures in
//! microseconds (or as named). On a page-table KVM an exit takes many times what it takes on a real
//! one; figures of two kinds of host do not compare.

#[path = "../payload/host.rs"]
mod payload_host;

use std::io::{BufRead, BufReader, Read, Write};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use floe_vmm::kvm::HostPaths;
use floe_vmm::machine::host::Host;
use floe_vmm::machine::{DevicesConfig, Machine, unconfined};
use payload_host::{file_system, serve};

const LONG: Duration = Duration::from_secs(120);
const BUILDS: usize = 50;
const PAUSES: usize = 500;

struct Bench {
    host: Host,
}

fn main() {
    // `cargo test --benches` runs this too: compiled is enough then.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let host = match Host::open(&HostPaths::default()) {
        Ok(host) => host,
        Err(error) => {
            eprintln!("not measured: {error}");
            return;
        }
    };
    let bench = Bench { host };
    let mut figures = Vec::new();
    for mib in [64, 512, 2048] {
        let built = bench.builds(mib);
        figures.push((format!("build, {mib} MiB, p50"), percentile(&built, 50)));
        figures.push((format!("build, {mib} MiB, p99"), percentile(&built, 99)));
    }
    let first = bench.first_byte();
    figures.push((
        "resume to first console byte, p50".into(),
        percentile(&first, 50),
    ));
    for (vcpus, name) in [
        (1, "pause of a busy vCPU"),
        (8, "pause of a busy vCPU, 8 vCPUs"),
    ] {
        let pauses = bench.pauses(vcpus);
        figures.push((format!("{name}, p50"), percentile(&pauses, 50)));
        figures.push((format!("{name}, p99"), percentile(&pauses, 99)));
    }
    figures.push((
        "exit to the monitor and back".into(),
        bench.guest("exits", 100_000),
    ));
    figures.push((
        "virtio round trip (rng)".into(),
        bench.guest("rng-bench", 10_000),
    ));
    figures.push(("file system round trip".into(), bench.fs("fs-bench", 5_000)));
    figures.push((
        "file system round trip, 1 MiB".into(),
        bench.fs("fs-bench-large", 500),
    ));
    figures.push(("resident, 64 MiB guest, KiB".into(), bench.resident_kib()));
    report(&figures);
}

fn report(figures: &[(String, f64)]) {
    if std::env::args().any(|arg| arg == "--json") {
        let object: serde_json::Map<String, serde_json::Value> = figures
            .iter()
            .map(|(name, value)| (name.clone(), (*value).into()))
            .collect();
        println!("{}", serde_json::Value::Object(object));
        return;
    }
    for (name, value) in figures {
        println!("{name:40} {value:12.1}");
    }
}

fn micros(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1e6
}

fn percentile(values: &[f64], percent: usize) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[(sorted.len() - 1) * percent / 100]
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

    /// Time of one of `count` steps of a guest's command.
    fn guest(&self, cmdline: &str, count: u32) -> f64 {
        self.timed(cmdline, count, DevicesConfig::default())
    }

    fn timed(&self, cmdline: &str, count: u32, devices: DevicesConfig) -> f64 {
        let mut machine = self.machine(64, cmdline, devices);
        machine.start(&unconfined()).expect("threads");
        let start = Instant::now();
        machine.resume().expect("it runs");
        machine.wait(Some(LONG)).expect("it ends");
        micros(start.elapsed()) / f64::from(count)
    }

    fn fs(&self, cmdline: &str, count: u32) -> f64 {
        let (fs, mut server) = file_system();
        let thread = std::thread::spawn(move || while serve(&mut server).is_some() {});
        let devices = DevicesConfig {
            vsock: None,
            fs: vec![fs],
        };
        let took = self.timed(cmdline, count, devices);
        thread.join().expect("the server ends");
        took
    }

    /// Resident memory of a whole monitor whose guest has touched next to nothing.
    fn resident_kib(&self) -> f64 {
        let (near, far) = UnixStream::pair().expect("a socket");
        let mut monitor = Command::new(env!("CARGO_BIN_EXE_floe-monitor"))
            .stdin(Stdio::from(OwnedFd::from(far)))
            .spawn()
            .expect("the monitor");
        let config = serde_json::json!({
            "memory_mib": 64, "vcpus": 1, "kernel": payload_host::payload(), "cmdline": "spin", "linux": false,
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
}
