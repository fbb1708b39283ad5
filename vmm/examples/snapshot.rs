//! Takes snapshots of a Linux guest and goes on from each: `snapshot KERNEL INITRAMFS DIR ROUNDS`.
//!
//! The guest's init prints `tick N` for ever, N growing by one. After each snapshot the source goes on, a machine is
//! set to the image and goes on too, and both must go on counting where they were; the next snapshot is of the
//! clone, over the image that it came from. Every page of each image must be the page at the pause. The exit code
//! is 0 if all that was so in each round.

use std::error::Error;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::os::unix::net::UnixStream;
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
use floe_vmm::snapshot::pages::Run;
use floe_vmm::snapshot::{Options, Snapshotter, Wanted};
use vm_memory::{Bytes, GuestAddress};

const MIB: u32 = 256;
const VCPUS: u8 = 2;
/// Ticks that are waited for after each restore, and how long.
const TICKS: u64 = 5;
const LONG: Duration = Duration::from_secs(120);

/// What a guest prints.
struct Ticks {
    lines: BufReader<UnixStream>,
    last: u64,
}

impl Ticks {
    fn of(console: &SharedConsole, last: u64) -> Result<Self, Box<dyn Error>> {
        let (near, far) = UnixStream::pair()?;
        near.set_read_timeout(Some(LONG))?;
        console.lock().attach(far)?;
        Ok(Self {
            lines: BufReader::new(near),
            last,
        })
    }

    /// Waits until the guest has counted on by `count`.
    fn wait(&mut self, count: u64) -> Result<(), Box<dyn Error>> {
        let goal = self.last + count;
        let give_up = Instant::now() + LONG;
        while self.last < goal {
            if Instant::now() > give_up {
                return Err("the guest does not count".into());
            }
            let mut line = String::new();
            if self.lines.read_line(&mut line)? == 0 {
                return Err("the guest's console has ended".into());
            }
            print!("{line}");
            let Some(tick) = line.trim().strip_prefix("tick ") else {
                continue;
            };
            let tick: u64 = tick.parse()?;
            // A line that was begun before the snapshot comes out in both.
            if self.last != 0 && tick != self.last + 1 && tick != self.last {
                return Err(format!("the guest said {tick} after {}", self.last).into());
            }
            self.last = tick;
        }
        Ok(())
    }
}

/// What a guest that is held has said last.
fn last_tick(machine: &Machine) -> u64 {
    let lines = machine.console().lock().last_lines(3);
    let ticks = lines
        .iter()
        .rev()
        .filter_map(|line| line.strip_prefix("tick "));
    ticks
        .filter_map(|tick| tick.trim().parse().ok())
        .next()
        .unwrap_or(0)
}

fn main() -> Result<(), Box<dyn Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [kernel, initramfs, dir, rounds] = &args[..] else {
        return Err("snapshot KERNEL INITRAMFS DIR ROUNDS".into());
    };
    let host = Host::open(&HostPaths::default())?;
    let console = SharedConsole::default();
    let mut ticks = Ticks::of(&console, 0)?;
    let config = Config {
        ram: RamSize::from_mib(MIB)?,
        vcpus: VcpuCount::new(VCPUS)?,
        payload: Payload {
            kernel: File::open(kernel)?,
            initramfs: Some(File::open(initramfs)?),
            cmdline: "console=ttyS0 panic=-1 quiet".to_owned(),
        },
        console,
        devices: DevicesConfig::default(),
    };
    let mut machine = Machine::new(&host, config)?;
    let mut snapshotter = Snapshotter::new(&machine);
    machine.start(&unconfined())?;
    machine.resume()?;
    ticks.wait(TICKS)?;
    let mut parent: Option<Image> = None;
    for round in 0..rounds.parse()? {
        let id = format!("image-{round}");
        let writer = ImageWriter::new(Path::new(dir), &id, RamSize::from_mib(MIB)?)?;
        let mut at = 0;
        let mut truth = vec![0; (MIB as usize) << 20];
        let over = parent.as_ref().map(|parent| parent.manifest().id.clone());
        let wanted = Wanted {
            id: &id,
            over: over.as_deref(),
            memory: writer.memory(),
            options: Options::default(),
            cancel: &AtomicBool::new(false),
        };
        let (taken, stats) = snapshotter.take(&wanted, &mut || {
            at = last_tick(&machine);
            machine
                .memory()
                .read_slice(&mut truth, GuestAddress(0))
                .map_err(|error| error.to_string())
        })?;
        let mut image = writer.capture(taken, parent.as_ref(), Vec::new())?;
        let mut found = vec![1; truth.len()];
        let all = Run {
            start: 0,
            len: truth.len() / 4096,
        };
        image.read(all, &mut found)?;
        let pages = truth.chunks(4096).zip(found.chunks(4096));
        let wrong: Vec<usize> = pages
            .enumerate()
            .filter(|(_, (truth, found))| truth != found)
            .map(|(page, _)| page)
            .collect();
        if !wrong.is_empty() {
            return Err(format!("pages of the image are not those at the pause: {wrong:?}").into());
        }
        drop((truth, found));
        image.seal(parent.as_ref())?;
        println!(
            "snapshot {round}: {} pages, {} of them while it was held, {} rounds, {} KiB on disk",
            image.manifest().written_pages,
            stats.residual,
            stats.rounds,
            image.own_bytes()? / 1024
        );
        ticks.wait(TICKS)?;
        machine.stop();

        let console = SharedConsole::default();
        ticks = Ticks::of(&console, at)?;
        let config = EmptyConfig {
            ram: RamSize::from_mib(MIB)?,
            vcpus: VcpuCount::new(VCPUS)?,
            console,
            devices: DevicesConfig::default(),
        };
        let image = Image::open(image.dir())?;
        image.verify()?;
        machine = Machine::empty(&host, config)?;
        machine.start(&unconfined())?;
        machine.restore(&image, &host)?;
        snapshotter = Snapshotter::of_restored(&machine, &id);
        machine.resume()?;
        ticks.wait(TICKS)?;
        parent = Some(image);
    }
    println!("every clone went on where it was");
    Ok(())
}
