//! Boots a kernel and shows its console: `boot KERNEL [INITRAMFS [CMDLINE [VCPUS]]]`.
//!
//! The smallest use of the library, and a way to try a kernel by hand. The exit code is 0 when the
//! guest switches itself off.

use std::error::Error;
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::process::ExitCode;

use floe_vmm::boot::Payload;
use floe_vmm::devices::serial::SharedConsole;
use floe_vmm::kvm::HostPaths;
use floe_vmm::machine::gate::Exit;
use floe_vmm::machine::host::Host;
use floe_vmm::machine::memory::{RamSize, VcpuCount};
use floe_vmm::machine::{Config, DevicesConfig, Machine, unconfined};

fn main() -> Result<ExitCode, Box<dyn Error>> {
    let mut args = std::env::args().skip(1);
    let kernel = args.next().ok_or("which kernel?")?;
    let initramfs = args.next().filter(|path| !path.is_empty());
    let cmdline = args.next().unwrap_or_else(|| "console=ttyS0".to_owned());
    let vcpus = args.next().map_or(Ok(1), |count| count.parse())?;

    let console = SharedConsole::default();
    let (mut shown, client) = UnixStream::pair()?;
    console.lock().attach(client)?;
    let host = Host::open(&HostPaths::default())?;
    let config = Config {
        ram: RamSize::from_mib(512)?,
        vcpus: VcpuCount::new(vcpus)?,
        payload: Payload {
            kernel: File::open(kernel)?,
            initramfs: initramfs.map(File::open).transpose()?,
            cmdline,
        },
        console,
        devices: DevicesConfig::default(),
    };
    let mut machine = Machine::new(&host, config)?;
    let show = std::thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(len @ 1..) = shown.read(&mut bytes) {
            if std::io::stdout().write_all(&bytes[..len]).is_err() {
                break;
            }
        }
    });
    machine.start(&unconfined())?;
    machine.resume()?;
    let exit = machine.wait(None).unwrap_or(Exit::Stopped);
    for (device, fault) in machine.faults() {
        eprintln!("{device}: {fault}");
    }
    eprintln!("{} exits", machine.exits());
    // Its console goes with it, and so does the other end of what is shown.
    drop(machine);
    show.join().map_err(|_| "the console was not shown")?;
    eprintln!("{exit}");
    Ok(match exit {
        Exit::PowerOff => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    })
}
