//! The monitor as a process: its control socket, its console, and that it is confined.

#[path = "../payload/host.rs"]
#[expect(dead_code, reason = "a monitor builds its machine itself")]
mod payload_host;

use std::fs::File;
use std::io::{BufRead, BufReader, IoSlice, Read, Seek, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, Command as Process, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use floe_vmm::kvm::{HostPaths, KvmStatus, probe};
use floe_vmm::machine::host::Host;
use floe_vmm::machine::memory::RamSize;
use floe_vmm::monitor::{
    Command, Confinement, ConsoleConfig, Event, FsSpec, How, MonitorConfig, VsockSpec,
};
use floe_vmm::snapshot::WorkingSet;
use floe_vmm::snapshot::image::{ImageWriter, Taken};
use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};

const LONG: Duration = Duration::from_secs(30);
/// `nobody`.
const NOBODY: u32 = 65534;

struct Monitor {
    process: Child,
    control: BufReader<UnixStream>,
    dir: tempfile::TempDir,
}

impl Monitor {
    /// A monitor with the payload guest's `cmdline`; `None` without KVM or root.
    fn start(cmdline: &str, change: impl FnOnce(&mut MonitorConfig, &Path)) -> Option<Self> {
        if let Err(error) = Host::open(&HostPaths::default()) {
            eprintln!("skipped: {error}");
            return None;
        }
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: only root can become somebody else");
            return None;
        }
        let dir = tempfile::tempdir().unwrap();
        let mut config = MonitorConfig {
            memory_mib: 64,
            vcpus: 1,
            kernel: Some(payload_host::payload()),
            image: None,
            initramfs: None,
            cmdline: cmdline.to_owned(),
            console: ConsoleConfig {
                log: Some(dir.path().join("log")),
                socket: Some(dir.path().join("console")),
                ..ConsoleConfig::default()
            },
            vsock: None,
            fs: Vec::new(),
            confinement: Some(Confinement {
                root: dir.path().to_owned(),
                uid: Some(NOBODY),
                gid: Some(NOBODY),
            }),
            linux: false,
        };
        change(&mut config, dir.path());
        let (near, far) = UnixStream::pair().unwrap();
        near.set_read_timeout(Some(LONG)).unwrap();
        let process = Process::new(env!("CARGO_BIN_EXE_floe-monitor"))
            .stdin(Stdio::from(OwnedFd::from(far)))
            .spawn()
            .unwrap();
        let mut monitor = Self {
            process,
            control: BufReader::new(near),
            dir,
        };
        monitor.say(&serde_json::to_string(&config).unwrap());
        Some(monitor)
    }

    fn say(&mut self, line: &str) {
        writeln!(self.control.get_mut(), "{line}").unwrap();
    }

    fn command(&mut self, command: Command) {
        self.say(&serde_json::to_string(&command).unwrap());
    }

    /// A command with its files, as the daemon sends it.
    fn command_with(&mut self, command: &Command, files: &[&File]) {
        let line = serde_json::to_string(command).unwrap() + "\n";
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(2))];
        let mut ancillary = SendAncillaryBuffer::new(&mut space);
        let files: Vec<_> = files.iter().map(|file| file.as_fd()).collect();
        assert!(ancillary.push(SendAncillaryMessage::ScmRights(&files)));
        let parts = [IoSlice::new(line.as_bytes())];
        let socket = self.control.get_ref();
        let sent = sendmsg(socket, &parts, &mut ancillary, SendFlags::empty()).unwrap();
        assert_eq!(sent, line.len());
    }

    /// Has a snapshot taken up to where the guest is held.
    fn hold(&mut self, writer: &ImageWriter, taken: &File, over: Option<&str>) {
        let id = "image".to_owned();
        let command = Command::Snapshot {
            id: id.clone(),
            over: over.map(str::to_owned),
        };
        self.command_with(&command, &[writer.memory(), taken]);
        assert_eq!(self.event(), Event::Held { id });
    }

    fn event(&mut self) -> Event {
        let mut line = String::new();
        self.control.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| {
            let status = self.process.try_wait();
            panic!("{line:?}: {error}; {status:?}")
        })
    }

    fn running(&mut self) {
        let event = self.event();
        assert_eq!(event, Event::Running, "{event:?}");
    }

    fn attach(&self) -> UnixStream {
        let client = UnixStream::connect(self.dir.path().join("console")).unwrap();
        client.set_read_timeout(Some(LONG)).unwrap();
        client
    }

    fn status(&self, name: &str) -> String {
        let path = format!("/proc/{}/status", self.process.id());
        let text = std::fs::read_to_string(path).unwrap();
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.unwrap().trim().to_owned()
    }
}

impl Drop for Monitor {
    fn drop(&mut self) {
        if self.process.try_wait().is_ok_and(|status| status.is_none()) {
            self.process.kill().unwrap();
        }
        self.process.wait().unwrap();
    }
}

fn read_until(client: &mut UnixStream, end: &str) -> String {
    let mut text = Vec::new();
    while !text.ends_with(end.as_bytes()) {
        let mut byte = [0];
        client.read_exact(&mut byte).unwrap();
        text.push(byte[0]);
    }
    String::from_utf8(text).unwrap()
}

#[test]
fn a_machine_that_ends_is_reported_and_its_console_is_in_the_log() {
    let Some(mut monitor) = Monitor::start("panic", |_, _| {}) else {
        return;
    };
    monitor.running();
    let Event::Ended {
        how, panic, lines, ..
    } = monitor.event()
    else {
        panic!("no report");
    };
    assert_eq!(how, How::PowerOff);
    let panicked = "Kernel panic - not syncing: as asked";
    assert_eq!(panic.as_deref(), Some(panicked));
    assert_eq!(lines, ["payload guest", panicked]);
    assert!(monitor.process.wait().unwrap().success());
    let log = std::fs::read_to_string(monitor.dir.path().join("log")).unwrap();
    assert_eq!(log, format!("payload guest\n{panicked}\n"));
}

#[test]
fn a_reset_and_a_broken_guest_are_told_apart() {
    for (cmdline, expected) in [("reset", How::Reset), ("fault", How::GuestFault)] {
        let Some(mut monitor) = Monitor::start(cmdline, |_, _| {}) else {
            return;
        };
        monitor.running();
        let event = monitor.event();
        assert!(
            matches!(event, Event::Ended { how, .. } if how == expected),
            "{event:?}"
        );
        assert_eq!(
            monitor.process.wait().unwrap().success(),
            expected == How::Reset
        );
    }
}

#[test]
fn a_client_types_on_the_console_and_sees_what_was_printed_before() {
    let Some(mut monitor) = Monitor::start("echo", |_, _| {}) else {
        return;
    };
    monitor.running();
    let mut client = monitor.attach();
    read_until(&mut client, "payload guest\n");
    let mut other = monitor.attach();
    client.write_all(b"hello\n").unwrap();
    assert_eq!(read_until(&mut client, "\n"), "hello\n");
    assert!(read_until(&mut other, "hello\n").starts_with("payload"));
    drop(client);
    // More than the port's queue holds.
    let long = format!("{}\n", "x".repeat(200));
    other.write_all(long.as_bytes()).unwrap();
    assert_eq!(read_until(&mut other, "\n"), long);
    other.write_all(b"end\n").unwrap();
    assert!(matches!(monitor.event(), Event::Ended { .. }));
}

#[test]
fn pause_resume_status_and_stop_work_and_nonsense_is_refused() {
    let Some(mut monitor) = Monitor::start("spin", |_, _| {}) else {
        return;
    };
    monitor.running();
    for command in [Command::Pause, Command::Pause, Command::Resume] {
        let paused = command == Command::Pause;
        monitor.command(command.clone());
        assert_eq!(monitor.event(), Event::Done { command });
        monitor.command(Command::Status);
        let event = monitor.event();
        assert!(
            matches!(event, Event::Status { paused: found, .. } if found == paused),
            "{event:?}"
        );
    }
    monitor.say("{\"command\":\"format\"}");
    let event = monitor.event();
    assert!(
        matches!(event, Event::Refused { command: None, .. }),
        "{event:?}"
    );
    monitor.command(Command::Stop);
    let event = monitor.event();
    assert!(
        matches!(
            event,
            Event::Ended {
                how: How::Stopped,
                ..
            }
        ),
        "{event:?}"
    );
    assert!(monitor.process.wait().unwrap().success());
}

#[test]
fn a_monitor_whose_daemon_is_gone_ends() {
    let Some(mut monitor) = Monitor::start("spin", |_, _| {}) else {
        return;
    };
    monitor.running();
    monitor
        .control
        .get_ref()
        .shutdown(std::net::Shutdown::Both)
        .unwrap();
    let deadline = Instant::now() + LONG;
    while monitor.process.try_wait().unwrap().is_none() {
        assert!(Instant::now() < deadline, "it runs on");
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn a_running_monitor_has_no_privileges_and_sees_its_own_directory_only() {
    let Some(mut monitor) = Monitor::start("spin", |_, _| {}) else {
        return;
    };
    monitor.running();
    assert_eq!(monitor.status("Uid:"), ["65534"; 4].join("\t"));
    assert_eq!(monitor.status("Gid:"), ["65534"; 4].join("\t"));
    assert_eq!(monitor.status("Groups:"), "");
    for set in ["CapInh:", "CapPrm:", "CapEff:", "CapBnd:", "CapAmb:"] {
        assert_eq!(monitor.status(set), "0".repeat(16), "{set}");
    }
    assert_eq!(monitor.status("NoNewPrivs:"), "1");
    let proc = format!("/proc/{}", monitor.process.id());
    for namespace in ["mnt", "net", "ipc", "uts", "cgroup"] {
        let of = |proc: &str| std::fs::read_link(format!("{proc}/ns/{namespace}")).unwrap();
        assert_ne!(of(&proc), of("/proc/self"), "{namespace}");
    }
    let mounts = std::fs::read_to_string(format!("{proc}/mountinfo")).unwrap();
    assert_eq!(mounts.lines().count(), 1, "{mounts}");
    assert!(mounts.contains(" / ro,nosuid,nodev,noexec"), "{mounts}");
    let mut threads = Vec::new();
    for task in std::fs::read_dir(format!("{proc}/task")).unwrap() {
        let task = task.unwrap().path();
        let status = std::fs::read_to_string(task.join("status")).unwrap();
        assert!(status.contains("Seccomp:\t2\n"), "{status}");
        let name = std::fs::read_to_string(task.join("comm")).unwrap();
        threads.push(name.trim().to_owned());
    }
    // One more may be the kernel's, see `Jail::enter`.
    threads.retain(|name| !name.starts_with("kvm-"));
    threads.sort();
    assert_eq!(threads, ["devices", "floe-monitor", "snapshots", "vcpu0"]);
}

#[test]
fn a_confined_machine_reaches_sockets_in_its_directory() {
    let mut listener = None;
    let started = Monitor::start("vsock", |config, dir| {
        config.vsock = Some(VsockSpec {
            guest_cid: 3,
            socket: "vsock".into(),
        });
        let path = dir.join("vsock_77");
        listener = Some(UnixListener::bind(&path).unwrap());
        std::os::unix::fs::chown(&path, Some(NOBODY), Some(NOBODY)).unwrap();
        std::os::unix::fs::chown(dir, Some(NOBODY), Some(NOBODY)).unwrap();
    });
    let Some(mut monitor) = started else { return };
    monitor.running();
    let (mut program, _) = listener.unwrap().accept().unwrap();
    program.write_all(b"welcome\n").unwrap();
    let Event::Ended { lines, .. } = monitor.event() else {
        panic!("no report");
    };
    assert_eq!(lines, ["payload guest", "welcome", "vsock ok"]);
}

/// Serves the file system of the next monitor that connects, until it is gone; how many requests.
fn serve_at(path: &Path) -> JoinHandle<usize> {
    let listener = UnixListener::bind(path).unwrap();
    std::thread::spawn(move || {
        let (mut server, _) = listener.accept().unwrap();
        std::iter::from_fn(|| payload_host::serve(&mut server)).count()
    })
}

#[test]
fn every_device_works_under_the_filters_and_garbage_stays_inside() {
    let cases = [
        ("rng", "rng ok", 0),
        ("fs", "fs ok", 3),
        ("garbage", "rng ok", 1),
    ];
    for (cmdline, last, least) in cases {
        let mut server = None;
        let started = Monitor::start(cmdline, |config, dir| {
            config.vsock = Some(VsockSpec {
                guest_cid: 3,
                socket: "vsock".into(),
            });
            let path = dir.join("fs");
            server = Some(serve_at(&path));
            config.fs = vec![FsSpec {
                tag: "workspace".to_owned(),
                server: path,
            }];
        });
        let Some(mut monitor) = started else { return };
        monitor.running();
        let event = monitor.event();
        let Event::Ended { how, lines, .. } = event else {
            panic!("{event:?}");
        };
        assert_eq!(how, How::PowerOff, "{lines:?}");
        assert_eq!(lines.last().unwrap(), last);
        let served = server.unwrap().join().unwrap();
        assert!(served >= least, "{cmdline}: {served} requests");
    }
}

#[test]
fn a_kvm_that_boots_no_linux_says_so_before_anything_is_tried() {
    if !matches!(probe(&HostPaths::default()), KvmStatus::PageTable) {
        eprintln!("skipped: this KVM boots Linux");
        return;
    }
    let Some(mut monitor) = Monitor::start("off", |config, _| config.linux = true) else {
        return;
    };
    let Event::Failed {
        message,
        causes,
        hint,
    } = monitor.event()
    else {
        panic!("it runs");
    };
    assert_eq!(message, "this host cannot run the machine");
    assert!(causes[0].contains("kvm_pvm"), "{causes:?}");
    assert!(hint.unwrap().contains("vmx or svm"));
}

#[test]
fn what_cannot_be_built_is_explained() {
    let failure = |change: fn(&mut MonitorConfig, &Path)| {
        let mut monitor = Monitor::start("off", change)?;
        let Event::Failed { message, hint, .. } = monitor.event() else {
            panic!("it runs");
        };
        assert!(!monitor.process.wait().unwrap().success());
        Some((message, hint))
    };
    let Some((message, _)) = failure(|config, _| config.memory_mib = 1) else {
        return;
    };
    assert!(message.contains("32 to 65536 MiB"), "{message}");
    let (message, _) = failure(|config, _| config.kernel = Some("/nonexistent".into())).unwrap();
    assert_eq!(message, "cannot use the kernel /nonexistent");
    let (message, hint) = failure(|config, _| config.kernel = Some("/bin/sh".into())).unwrap();
    assert_eq!(message, "the machine cannot be built");
    assert!(hint.is_some());
    let (message, _) = failure(|config, _| {
        config.confinement.as_mut().unwrap().uid = None;
    })
    .unwrap();
    assert_eq!(message, "the monitor cannot be confined");
    let nothing_to_run = "a machine boots a kernel or goes on from an image";
    let (message, _) = failure(|config, _| config.kernel = None).unwrap();
    assert_eq!(message, nothing_to_run);
    let (message, _) = failure(|config, _| config.image = Some("/none".into())).unwrap();
    assert_eq!(message, nothing_to_run);
    let (message, _) = failure(|config, _| {
        config.kernel = None;
        config.image = Some("/none".into());
    })
    .unwrap();
    assert_eq!(message, "the image cannot be used");
}

#[test]
fn a_confined_monitor_takes_snapshots_and_another_goes_on_from_them() {
    let Some(mut monitor) = Monitor::start("dirty 500 50", |_, _| {}) else {
        return;
    };
    monitor.running();
    let mut client = monitor.attach();
    read_until(&mut client, "dirtying\n");
    let images = tempfile::tempdir().unwrap();
    let ram = RamSize::from_mib(64).unwrap();

    // The daemon could not freeze the files: there is no snapshot, and the guest goes on.
    let writer = ImageWriter::new(images.path(), "image", ram).unwrap();
    let mut taken = tempfile::tempfile().unwrap();
    monitor.hold(&writer, &taken, None);
    for refused in [Command::Pause, Command::Resume] {
        monitor.command(refused.clone());
        let event = monitor.event();
        assert!(
            matches!(&event, Event::Refused { command: Some(command), .. } if *command == refused),
            "{event:?}"
        );
    }
    monitor.command(Command::Frozen { ok: false });
    let event = monitor.event();
    let Event::NotTaken { causes, .. } = &event else {
        panic!("{event:?}");
    };
    assert!(causes[0].contains("could not be frozen"), "{causes:?}");
    drop(writer);

    let writer = ImageWriter::new(images.path(), "image", ram).unwrap();
    monitor.hold(&writer, &taken, None);
    monitor.command(Command::Frozen { ok: true });
    let event = monitor.event();
    assert!(matches!(event, Event::Taken { .. }), "{event:?}");
    let mut bytes = Vec::new();
    taken.rewind().unwrap();
    taken.read_to_end(&mut bytes).unwrap();
    let decoded = Taken::decode(&bytes).unwrap();
    let mut image = writer.capture(decoded, None, b"extra".to_vec()).unwrap();
    image.seal(None).unwrap();
    monitor.command(Command::Status);
    let event = monitor.event();
    assert!(
        matches!(event, Event::Status { paused: false, .. }),
        "{event:?}"
    );

    // Without its files there is none; the monitor lives.
    monitor.command(Command::Snapshot {
        id: "other".to_owned(),
        over: None,
    });
    let event = monitor.event();
    assert!(matches!(event, Event::NotTaken { .. }), "{event:?}");

    let go_on = |config: &mut MonitorConfig, _: &Path| {
        config.kernel = None;
        config.cmdline = String::new();
        config.image = Some(images.path().join("image"));
    };
    // What a booted machine touched is all its own.
    let touched = tempfile::tempfile().unwrap();
    monitor.command_with(&Command::Touched, &[&touched]);
    let event = monitor.event();
    assert!(
        matches!(
            &event,
            Event::Refused {
                command: Some(Command::Touched),
                ..
            }
        ),
        "{event:?}"
    );
    let mut clones: Vec<Monitor> = (0..2).map(|_| Monitor::start("", go_on).unwrap()).collect();
    // What the first has touched, the third finds there; and one that is no such thing, the fourth ignores.
    clones[0].running();
    std::thread::sleep(Duration::from_millis(20));
    clones[0].command_with(&Command::Touched, &[&touched]);
    let command = Command::Touched;
    assert_eq!(clones[0].event(), Event::Done { command });
    let mut set = Vec::new();
    { &touched }.rewind().unwrap();
    { &touched }.read_to_end(&mut set).unwrap();
    let decoded = WorkingSet::decode(&set, 64 << 8).unwrap();
    assert!(decoded.pages().contains(0x400), "where it counts");
    clones[1].running();
    let hint = images.path().join("image").join(WorkingSet::FILE);
    for set in [set, b"floe-wrk, or is it".to_vec()] {
        std::fs::write(&hint, set).unwrap();
        let mut clone = Monitor::start("", go_on).unwrap();
        clone.running();
        clones.push(clone);
    }
    for clone in &mut clones {
        std::thread::sleep(Duration::from_millis(20));
        // A clone of a clone, over the image that it came from.
        let again = tempfile::tempdir().unwrap();
        let writer = ImageWriter::new(again.path(), "image", ram).unwrap();
        let mut taken = tempfile::tempfile().unwrap();
        clone.hold(&writer, &taken, Some("image"));
        clone.command(Command::Frozen { ok: true });
        let event = clone.event();
        assert!(matches!(event, Event::Taken { .. }), "{event:?}");
        let mut bytes = Vec::new();
        taken.read_to_end(&mut bytes).unwrap();
        let decoded = Taken::decode(&bytes).unwrap();
        assert!(
            decoded.pages.count() < 1000,
            "{} pages",
            decoded.pages.count()
        );
        writer.capture(decoded, Some(&image), Vec::new()).unwrap();
        let log = std::fs::read_to_string(clone.dir.path().join("log")).unwrap();
        assert!(!log.contains("broken"), "{log}");
        clone.command(Command::Stop);
        let event = clone.event();
        assert!(
            matches!(
                event,
                Event::Ended {
                    how: How::Stopped,
                    ..
                }
            ),
            "{event:?}"
        );
    }
    // What a monitor says that was taken over is not believed.
    for at in (0..bytes.len().min(3000)).step_by(7) {
        let mut bad = bytes.clone();
        bad[at] ^= 0x55;
        if let Ok(taken) = Taken::decode(&bad) {
            assert_eq!(taken.pages.total() as u64, u64::from(taken.ram_mib) << 8);
        }
    }
    assert!(Taken::decode(&bytes[..bytes.len() / 2]).is_err());
    assert!(Taken::decode(&[]).is_err());
}
