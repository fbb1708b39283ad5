//! What snapshots of a running machine and clones of it cost, with the payload guest on this host's KVM.
//!
//! `cargo bench -p floe-vmm --bench snapshot`, with `-- --json` behind it for one object of figures. A pause counts
//! from the first wish to hold the guest until it was let go, so it is more than what the guest is without. Beside it,
//! in the same run: fork(2) of a process with as much memory in use, which is what a dump by copy-on-write of a
//! process pauses it for at least.

#[path = "common/figure.rs"]
mod figure;
#[path = "../payload/host.rs"]
#[expect(dead_code, reason = "there are no file systems here")]
mod payload_host;
#[path = "../payload/snapshots.rs"]
mod snapshots;

use std::path::Path;
use std::time::{Duration, Instant};

use figure::{Figure, micros, report};
use floe_vmm::machine::Machine;
use floe_vmm::machine::host::Host;
use floe_vmm::snapshot::image::Image;
use floe_vmm::snapshot::{Snapshotter, Stats};
use snapshots::{empty, running, step, take};

/// Snapshots of one guest.
const SNAPSHOTS: usize = 100;
/// Clones, one after the other.
const CLONES: usize = 200;
/// The longest chain.
const DEPTH: usize = 100;

fn main() {
    // `cargo test --benches` runs this too: compiled is enough then.
    if !std::env::args().any(|arg| arg == "--bench") {
        return;
    }
    let Some(host) = payload_host::kvm() else {
        return;
    };
    let scratch = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).expect("room");
    let bench = Bench {
        host,
        dir: scratch.path(),
    };
    let mut figures = Vec::new();
    // 1 MiB that is written to over and over, with rests.
    for mib in [128, 512, 1024, 2048] {
        bench.snapshots(
            &format!("{mib} MiB RAM"),
            mib,
            "dirty 256 200",
            &mut figures,
        );
    }
    for (rate, rest) in [
        ("slowly", 100_000),
        ("fast", 1_000),
        ("as fast as it can", 0),
    ] {
        let name = format!("512 MiB RAM, 16 MiB written {rate}");
        bench.snapshots(&name, 512, &format!("dirty 4096 {rest}"), &mut figures);
    }
    for mib in [1, 4, 16, 64] {
        let name = format!("512 MiB RAM, {mib} MiB written as fast as it can");
        bench.snapshots(&name, 512, &format!("dirty {} 0", mib * 256), &mut figures);
    }
    for mib in [128, 512, 2048] {
        figures.push(Figure::micros(
            format!("fork(2) of a process, {mib} MiB in use"),
            forks(mib),
        ));
    }
    bench.clones(&mut figures);
    bench.chain(&mut figures);
    report(
        &figures,
        "captured: machines can start from it; sealed: durable, with its sums.",
    );
}

struct Bench<'a> {
    host: Host,
    dir: &'a Path,
}

impl Bench<'_> {
    /// Takes a snapshot into the directory `id`; how long until it was captured.
    fn take(
        &self,
        snapshotter: &mut Snapshotter,
        id: &str,
        mib: u32,
        parent: Option<&Image>,
    ) -> (Image, Stats, Duration) {
        take(snapshotter, (self.dir, id), mib, parent, &mut || Ok(()))
    }

    /// A first snapshot, and many over it.
    fn snapshots(&self, name: &str, mib: u32, cmdline: &str, figures: &mut Vec<Figure>) {
        let machine = running(&self.host, mib, cmdline);
        let mut snapshotter = Snapshotter::new(&machine);
        let (mut first, stats, captured) = self.take(&mut snapshotter, "first", mib, None);
        let start = Instant::now();
        first.seal(None).expect("room");
        figures.extend([
            Figure::micros(format!("{name}: first, pause"), vec![micros(stats.pause)]),
            Figure::micros(format!("{name}: first, captured"), vec![micros(captured)]),
            Figure::micros(
                format!("{name}: first, sealed after that"),
                vec![micros(start.elapsed())],
            ),
        ]);
        let (mut pauses, mut residuals, mut times, mut seals, mut sizes) =
            (Vec::new(), Vec::new(), Vec::new(), Vec::new(), Vec::new());
        let mut parent = first;
        for number in 0..SNAPSHOTS {
            std::thread::sleep(Duration::from_millis(5));
            let id = format!("next-{number}");
            let (mut image, stats, captured) = self.take(&mut snapshotter, &id, mib, Some(&parent));
            pauses.push(micros(stats.pause));
            residuals.push(stats.residual as f64 * 4.0);
            times.push(micros(captured));
            let start = Instant::now();
            image.seal(Some(&parent)).expect("room");
            seals.push(micros(start.elapsed()));
            sizes.push(image.own_bytes().expect("its size") as f64 / 1024.0);
            std::fs::remove_dir_all(parent.dir()).expect("it was there");
            parent = image;
        }
        std::fs::remove_dir_all(parent.dir()).expect("it was there");
        figures.extend([
            Figure::micros(format!("{name}: pause"), pauses),
            Figure::new(format!("{name}: copied in the pause"), "KiB", residuals),
            Figure::micros(format!("{name}: captured"), times),
            Figure::micros(format!("{name}: sealed after that"), seals),
            Figure::new(format!("{name}: on disk"), "KiB", sizes),
        ]);
        drop(machine);
    }

    /// From the wish to start from an image to the guest's next step, in a machine that was built before.
    fn clone_once(&self, dir: &Path, mib: u32) -> (Machine, f64) {
        let mut machine = empty(&self.host, mib);
        let start = Instant::now();
        let image = Image::open(dir).expect("an image");
        machine.restore(&image, &self.host).expect("it goes on");
        let at = step(&machine);
        machine.resume().expect("it runs");
        while step(&machine) == at {
            std::hint::spin_loop();
        }
        let took = micros(start.elapsed());
        machine.pause().expect("it pauses");
        (machine, took)
    }

    fn clones(&self, figures: &mut Vec<Figure>) {
        const MIB: u32 = 512;
        let machine = running(&self.host, MIB, "dirty 256 200");
        let mut snapshotter = Snapshotter::new(&machine);
        let (mut image, ..) = self.take(&mut snapshotter, "cloned", MIB, None);
        image.seal(None).expect("room");
        drop(machine);
        let dir = self.dir.join("cloned");
        let once = |_| self.clone_once(&dir, MIB).1;
        figures.push(Figure::micros(
            "clone to its first step, one at a time",
            (0..CLONES).map(once).collect(),
        ));
        for count in [100, 1000] {
            let before = private_kib();
            let (kept, times): (Vec<Machine>, Vec<f64>) =
                (0..count).map(|_| self.clone_once(&dir, MIB)).unzip();
            let each = (private_kib() - before) / f64::from(count);
            figures.extend([
                Figure::micros(format!("clone to its first step, {count} kept"), times),
                Figure::new(
                    format!("private memory of a clone, {count} kept"),
                    "KiB",
                    vec![each],
                ),
            ]);
            drop(kept);
        }
    }

    /// Starting from images of a chain, by depth.
    fn chain(&self, figures: &mut Vec<Figure>) {
        const MIB: u32 = 512;
        let machine = running(&self.host, MIB, "dirty 4096 1000");
        let mut snapshotter = Snapshotter::new(&machine);
        let mut parent: Option<Image> = None;
        for depth in 1..=DEPTH {
            std::thread::sleep(Duration::from_millis(5));
            let id = format!("depth-{depth}");
            let (mut image, ..) = self.take(&mut snapshotter, &id, MIB, parent.as_ref());
            image.seal(parent.as_ref()).expect("room");
            if [1, 10, 50, DEPTH].contains(&depth) {
                let dir = image.dir().to_owned();
                // It would take a processor from what is measured.
                machine.pause().expect("it pauses");
                let times: Vec<f64> = (0..100).map(|_| self.clone_once(&dir, MIB).1).collect();
                machine.resume().expect("it runs");
                figures.extend([
                    Figure::micros(format!("clone to its first step, chain of {depth}"), times),
                    Figure::new(
                        format!("mappings of an image, chain of {depth}"),
                        "",
                        vec![image.manifest().extents.len() as f64],
                    ),
                ]);
            }
            parent = Some(image);
        }
    }
}

/// Memory of this process that is nobody else's.
fn private_kib() -> f64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("an account");
    let kib = |name: &str| -> f64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        let words = line.and_then(|rest| rest.split_whitespace().next());
        words.and_then(|kib| kib.parse().ok()).unwrap_or(0.0)
    };
    kib("Private_Dirty:") + kib("Private_Clean:")
}

/// Times of fork(2) with so much memory in use, by Python: this process has other memory as well.
fn forks(mib: u32) -> Vec<f64> {
    let program = "\
import mmap, os, sys, time
size = int(sys.argv[1]) << 20
memory = mmap.mmap(-1, size, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
memory.madvise(mmap.MADV_NOHUGEPAGE)
for at in range(0, size, 4096):
    memory[at] = 1
for _ in range(20):
    start = time.perf_counter_ns()
    child = os.fork()
    if child == 0:
        os._exit(0)
    print((time.perf_counter_ns() - start) / 1000)
    os.waitpid(child, 0)
";
    let output = std::process::Command::new("python3")
        .args(["-c", program, &mib.to_string()])
        .output();
    let Ok(output) = output else {
        eprintln!("not measured: there is no python3 to fork");
        return vec![f64::NAN];
    };
    let text = String::from_utf8_lossy(&output.stdout);
    text.lines().filter_map(|line| line.parse().ok()).collect()
}
