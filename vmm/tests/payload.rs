//! The monitor with the payload guest on this machine's KVM.
//!
//! Where there is no KVM the tests say so and pass: the same behaviour is then shown by the lab.

#[path = "../payload/host.rs"]
mod payload_host;

use std::io::{Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use floe_vmm::devices::virtio::vsock::HostSockets;
use floe_vmm::machine::gate::Exit;
use floe_vmm::machine::host::Host;
use floe_vmm::machine::{Confine, DevicesConfig, Machine, ThreadKind, VsockConfig, unconfined};
use payload_host::{file_system, kvm, refuse, request, serve};
use vm_memory::{Bytes, GuestAddress};

const LONG: Duration = Duration::from_secs(30);

fn machine(host: &Host, cmdline: &str, vcpus: u8) -> Machine {
    machine_with(host, cmdline, vcpus, DevicesConfig::default())
}

fn machine_with(host: &Host, cmdline: &str, vcpus: u8, devices: DevicesConfig) -> Machine {
    let mut machine = built(host, cmdline, vcpus, devices);
    machine.start(&unconfined()).unwrap();
    machine.resume().unwrap();
    machine
}

fn built(host: &Host, cmdline: &str, vcpus: u8, devices: DevicesConfig) -> Machine {
    payload_host::built(host, cmdline, 64, vcpus, devices)
}

/// Runs one command to the end; the way it ended and the console.
fn run(cmdline: &str, vcpus: u8) -> Option<(Exit, Vec<String>)> {
    let host = kvm()?;
    let mut machine = machine(&host, cmdline, vcpus);
    let exit = machine.wait(Some(LONG)).expect("the guest ends");
    let lines = machine.console().lock().last_lines(100);
    Some((exit, lines))
}

fn wait_for(machine: &Machine, line: &str) {
    let deadline = Instant::now() + LONG;
    while !machine
        .console()
        .lock()
        .last_lines(100)
        .iter()
        .any(|found| found == line)
    {
        assert!(Instant::now() < deadline, "no {line:?} on the console");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn a_guest_boots_prints_and_switches_itself_off() {
    let Some((exit, lines)) = run("off", 1) else {
        return;
    };
    assert!(matches!(exit, Exit::PowerOff), "{exit}");
    assert_eq!(lines, ["payload guest"]);
}

#[test]
fn resets_by_acpi_the_keyboard_controller_and_the_reset_vector_are_told_from_power_off() {
    for way in ["reset", "keyboard", "vector"] {
        let Some((exit, _)) = run(way, 2) else { return };
        assert!(matches!(exit, Exit::Reset), "{way}: {exit}");
    }
}

#[test]
fn a_triple_fault_ends_the_machine_with_its_vcpu() {
    let Some((exit, _)) = run("fault", 1) else {
        return;
    };
    assert!(matches!(exit, Exit::TripleFault { vcpu: 0 }), "{exit}");
}

#[test]
fn a_kernel_panic_is_found_on_the_console() {
    let Some(host) = kvm() else { return };
    let mut machine = machine(&host, "panic", 1);
    machine.wait(Some(LONG)).unwrap();
    let console = machine.console().lock();
    assert_eq!(
        console.panic(),
        Some("Kernel panic - not syncing: as asked")
    );
}

#[test]
fn what_is_typed_comes_back() {
    let Some(host) = kvm() else { return };
    let mut machine = machine(&host, "echo", 1);
    wait_for(&machine, "payload guest");
    for line in ["hello", "a somewhat longer line with spaces", "end"] {
        let text = format!("{line}\n");
        let mut rest = text.as_bytes();
        while !rest.is_empty() {
            rest = &rest[machine.console_input(rest)..];
        }
        wait_for(&machine, line);
    }
    assert!(matches!(machine.wait(Some(LONG)), Some(Exit::PowerOff)));
}

#[test]
fn a_paused_guest_stands_still_and_goes_on() {
    let Some(host) = kvm() else { return };
    let mut machine = machine(&host, "spin", 1);
    wait_for(&machine, "spinning");
    let count =
        |machine: &Machine| -> u32 { machine.memory().read_obj(GuestAddress(0x40_0000)).unwrap() };
    for _ in 0..50 {
        machine.pause().unwrap();
        let before = count(&machine);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(count(&machine), before, "the guest ran while paused");
        machine.resume().unwrap();
        let deadline = Instant::now() + LONG;
        while count(&machine) == before {
            assert!(Instant::now() < deadline, "the guest does not go on");
        }
    }
    machine.pause().unwrap();
    assert!(matches!(machine.stop(), Exit::Stopped));
    assert!(machine.pause().is_err());
}

#[test]
fn a_second_vcpu_starts_when_the_guest_starts_it() {
    let Some((exit, lines)) = run("smp", 2) else {
        return;
    };
    assert!(matches!(exit, Exit::PowerOff), "{exit}");
    assert_eq!(lines.last().unwrap(), "second vcpu runs");
}

#[test]
fn a_thread_that_cannot_be_confined_keeps_the_guest_from_running() {
    let Some(host) = kvm() else { return };
    let mut machine = built(&host, "off", 2, DevicesConfig::default());
    let confine: Confine = Arc::new(|kind| match kind {
        ThreadKind::Vcpu => Ok(()),
        ThreadKind::Devices => Err(std::io::ErrorKind::PermissionDenied.into()),
    });
    assert!(machine.start(&confine).is_err());
    assert!(machine.resume().is_err());
    let exit = machine.stop();
    assert!(
        matches!(
            exit,
            Exit::HostError {
                device: "confinement",
                ..
            }
        ),
        "{exit}"
    );
    assert!(machine.console().lock().last_lines(1).is_empty());
}

#[test]
fn a_machine_of_eight_vcpus_stops_although_seven_never_ran() {
    let Some(host) = kvm() else { return };
    let mut machine = machine(&host, "spin", 8);
    wait_for(&machine, "spinning");
    machine.pause().unwrap();
    machine.resume().unwrap();
    assert!(matches!(machine.stop(), Exit::Stopped));
}

#[test]
fn random_numbers_come_through_a_virtqueue() {
    let Some((exit, lines)) = run("rng", 1) else {
        return;
    };
    assert!(matches!(exit, Exit::PowerOff), "{exit}");
    assert_eq!(lines.last().unwrap(), "rng ok");
}

/// A machine with every device, the socket to its file system's server, and its vsock directory.
fn full_machine(host: &Host, cmdline: &str) -> (Machine, UnixStream, tempfile::TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let (fs, server) = file_system();
    server.set_read_timeout(Some(LONG)).unwrap();
    let devices = DevicesConfig {
        vsock: Some(VsockConfig {
            guest_cid: 3,
            host: HostSockets::bind(&dir.path().join("vsock")).unwrap(),
        }),
        fs: vec![fs],
    };
    (machine_with(host, cmdline, 1, devices), server, dir)
}

#[test]
fn a_file_system_request_reaches_its_server_and_the_reply_the_guest() {
    let Some(host) = kvm() else { return };
    let (mut machine, mut server, _dir) = full_machine(&host, "fs");
    for _ in 0..3 {
        assert_eq!(serve(&mut server).unwrap().body_len, 40);
    }
    assert!(matches!(machine.wait(Some(LONG)), Some(Exit::PowerOff)));
    let lines = machine.console().lock().last_lines(100);
    let want = |name: &str, value: u64| format!("{name}=0x{value:016x}");
    assert_eq!(lines[1], want("len", 16));
    assert_eq!(lines[2], want("error", 0xffff_ffda));
    assert_eq!(lines[9], want("unique", 3));
    assert_eq!(lines[10], "fs ok");
}

/// Where the payload guest has its request's reply: length and error of a `fuse_out_header`.
const REPLY: u64 = 0x60_0100;

#[test]
fn a_pause_waits_for_the_servers_reply_and_the_guest_finds_it_afterwards() {
    const HELD: Duration = Duration::from_millis(200);
    let Some(host) = kvm() else { return };
    let (mut machine, mut server, _dir) = full_machine(&host, "fs");
    let (asked, is_asked) = mpsc::channel();
    let server = std::thread::spawn(move || {
        let (header, body) = request(&mut server).unwrap();
        asked.send(()).unwrap();
        std::thread::sleep(HELD);
        refuse(&mut server, header, &body).unwrap();
        server
    });
    is_asked.recv_timeout(LONG).unwrap();
    assert_eq!(machine.fs_in_flight(), 1);
    let start = Instant::now();
    machine.pause().unwrap();
    assert!(start.elapsed() > HELD / 2, "it did not wait");
    assert_eq!(machine.fs_in_flight(), 0);
    let reply: [u32; 2] = machine.memory().read_obj(GuestAddress(REPLY)).unwrap();
    assert_eq!(reply, [16, 0xffff_ffda], "it was taken");
    assert!(machine.save_devices().fs[0].device.in_flight.is_empty());
    let mut server = server.join().unwrap();
    server
        .set_read_timeout(Some(Duration::from_millis(20)))
        .unwrap();
    assert!(request(&mut server).is_none(), "the guest ran on");
    server.set_read_timeout(Some(LONG)).unwrap();
    machine.resume().unwrap();
    for _ in 0..2 {
        serve(&mut server).unwrap();
    }
    assert!(matches!(machine.wait(Some(LONG)), Some(Exit::PowerOff)));
    assert_eq!(machine.console().lock().last_lines(1), ["fs ok"]);
}

#[test]
fn a_server_that_does_not_answer_delays_a_pause_and_is_counted() {
    const PATIENCE: Duration = Duration::from_millis(50);
    let Some(host) = kvm() else { return };
    let (mut machine, mut server, _dir) = full_machine(&host, "fs");
    let (header, body) = request(&mut server).unwrap();
    let start = Instant::now();
    machine.pause_within(PATIENCE).unwrap();
    assert!(start.elapsed() >= PATIENCE);
    assert!(machine.gate().is_paused());
    assert_eq!(machine.fs_in_flight(), 1);
    refuse(&mut server, header, &body).unwrap();
    std::thread::sleep(PATIENCE);
    assert_eq!(machine.fs_in_flight(), 1, "a paused device changed");
    machine.resume().unwrap();
    for _ in 0..2 {
        serve(&mut server).unwrap();
    }
    assert!(matches!(machine.wait(Some(LONG)), Some(Exit::PowerOff)));
}

#[test]
fn a_new_generation_is_in_memory_and_its_line_is_raised() {
    const PAGE: GuestAddress = GuestAddress(0xf_e000);
    const LINE: u32 = 20;
    let Some(host) = kvm() else { return };
    let machine = machine(&host, "spin", 1);
    wait_for(&machine, "spinning");
    machine.pause().unwrap();
    let generation = || -> [u8; 16] { machine.memory().read_obj(PAGE).unwrap() };
    assert_ne!(generation(), [0; 16], "every machine has one");
    assert_eq!(machine.save_devices().ioapic.pending >> LINE & 1, 0);
    let new = *b"a new generation";
    machine.set_generation(new).unwrap();
    assert_eq!(generation(), new);
    // The payload guest does not unmask the line.
    assert_eq!(machine.save_devices().ioapic.pending >> LINE & 1, 1);
}

#[test]
fn a_guest_talks_to_a_program_of_the_host() {
    let Some(host) = kvm() else { return };
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("vsock_77")).unwrap();
    let devices = DevicesConfig {
        vsock: Some(VsockConfig {
            guest_cid: 3,
            host: HostSockets::bind(&dir.path().join("vsock")).unwrap(),
        }),
        fs: Vec::new(),
    };
    let mut machine = machine_with(&host, "vsock", 1, devices);
    let (mut program, _) = listener.accept().unwrap();
    let mut hello = [0; 6];
    program.read_exact(&mut hello).unwrap();
    assert_eq!(&hello, b"hello\n");
    program.write_all(b"and hello to you\n").unwrap();
    assert!(matches!(machine.wait(Some(LONG)), Some(Exit::PowerOff)));
    let lines = machine.console().lock().last_lines(100);
    assert_eq!(lines[1..], ["and hello to you", "vsock ok"]);
}

/// What the guest writes is in `payload/devices.rs`. Every device is hit while its rings are
/// garbage, and the machine is still there in the end.
#[test]
fn garbage_in_every_register_and_ring_harms_the_device_alone() {
    let Some(host) = kvm() else { return };
    let (mut machine, mut server, _dir) = full_machine(&host, "garbage 1");
    let reader = std::thread::spawn(move || while serve(&mut server).is_some() {});
    let exit = machine.wait(Some(LONG)).expect("the guest ends");
    let lines = machine.console().lock().last_lines(100);
    assert!(matches!(exit, Exit::PowerOff), "{exit}: {lines:?}");
    assert_eq!(
        lines[1..],
        ["registers done", "packets done", "rings done", "rng ok"],
        "{:?}",
        machine.faults()
    );
    assert!(!machine.faults().is_empty(), "vsock or fs stands still");
    drop(machine);
    reader.join().unwrap();
}

#[test]
fn devices_saved_while_paused_are_the_same_after_a_restore() {
    let Some(host) = kvm() else { return };
    let (mut machine, _server, _dir) = full_machine(&host, "spin");
    wait_for(&machine, "spinning");
    machine.pause().unwrap();
    let state = machine.save_devices();
    let (second, _server2, _dir2) = full_machine(&host, "spin");
    wait_for(&second, "spinning");
    second.pause().unwrap();
    second.restore_devices(state.clone()).unwrap();
    assert_eq!(second.save_devices(), state);
    machine.stop();
}

#[test]
fn no_port_harms_the_machine() {
    let Some((exit, lines)) = run("ports", 1) else {
        return;
    };
    assert!(matches!(exit, Exit::PowerOff), "{exit} {lines:?}");
    assert_eq!(lines.last().unwrap(), "all ports done");
}
