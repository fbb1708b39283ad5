//! A sandbox that is a virtual machine: started, held, ended.
//!
//! Order of a start: a directory for its sockets, a server for each of its file systems, control groups, the
//! monitor in them, the machine runs, the agent in it answers. Whatever fails, all before it is undone.
//! Invariants: the monitor has no way to the store but its file systems' sockets; it ends when the daemon
//! does, as its control socket closes then; what the machine wrote is in the store when its write has
//! returned, however it ends.

mod agent;
mod error;
#[cfg(test)]
mod frames;
pub(in crate::daemon) mod kernel;
mod memory;
mod monitor;
mod saved;

use std::fs;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use floe_fs::dispatch::wire::{Caching, ServerOptions};
use floe_fs::id::SnapshotId;
use floe_guest::vm::{ROOT_TAG, WORKSPACE_TAG};
use floe_vmm::monitor::{Confinement, ConsoleConfig, FsSpec, MonitorConfig, VsockSpec};
use parking_lot::Mutex;
use tracing::{debug, warn};

use super::log::BYTES_MAX;
use super::process::{Cgroup, GroupUsage, Host, Slot, end_groups};
use crate::agent::Agent;
use crate::daemon::mounts::{Lent, Mounts, Subject};
use crate::store_dir::make_private_dir;
use crate::wire::sandbox::{Limits, VmSpec};
pub(crate) use error::VmError;
pub(super) use memory::{GoesOn, MemoryError, WithMemory};
use monitor::Monitor;
pub(super) use monitor::Pool;

/// Memory of a machine whose maker says nothing, in MiB.
pub(super) const MEMORY_MIB: u32 = 512;
/// vCPUs of one.
pub(super) const VCPUS: u8 = 2;
/// Memory that a monitor may use besides that of its machine.
const MONITOR_MEMORY: u64 = 256 << 20;
/// How long a machine has to switch itself off.
const OFF_WAIT: Duration = Duration::from_secs(5);
/// The address of every machine; each has a host of its own to talk to.
const GUEST_CID: u32 = 3;
/// Names in a machine's directory.
const CONSOLE_SOCKET: &str = "console";
const VSOCK: &str = "vsock";

/// What to start.
pub(super) struct VmStart<'a> {
    pub(super) id: &'a str,
    pub(super) mounts: &'a Arc<Mounts>,
    /// Its root.
    pub(super) root: &'a Subject,
    /// What is at /workspace, if that is a workspace of its own.
    pub(super) workspace: Option<&'a Subject>,
    pub(super) spec: &'a VmSpec,
    /// Where the store is, with the kernel in it.
    pub(super) store: &'a Path,
    /// The image that it goes on from; none: it boots.
    pub(super) goes_on: Option<&'a GoesOn>,
    pub(super) limits: &'a Limits,
    /// Whose the monitor's ids are.
    pub(super) slot: &'a Slot,
    /// Monitors that wait.
    pub(super) pool: &'a Pool,
    /// Where machines have their directories.
    pub(super) dir: &'a Path,
    /// Where the console goes.
    pub(super) console: &'a Path,
    /// Where the monitor complains.
    pub(super) log: &'a Path,
    /// Whether the daemon is ending, and nobody waits for the machine any more.
    pub(super) is_ending: &'a AtomicBool,
}

/// A machine that runs.
pub(super) struct Vm {
    monitor: Monitor,
    pub(super) cgroup: Cgroup,
    pub(super) agent: Agent,
    // Given back when the monitor has ended. By the tag of the file system.
    lent: Vec<(String, Lent)>,
    dir: PathBuf,
    memory_mib: u32,
    vcpus: u8,
    /// The directory of the image that it was started from.
    image: Option<PathBuf>,
    /// The snapshot whose image the next may be made over: the last, or the one that it goes on from.
    base: Mutex<Option<SnapshotId>>,
}

impl Vm {
    /// Starts a machine and waits for its agent.
    ///
    /// # Errors
    /// [`VmError`]; nothing is left then.
    pub(super) fn start(host: &Host, start: &VmStart<'_>) -> Result<Self, VmError> {
        let dir = start.dir.join(start.id);
        remove_dir(&dir);
        make_private_dir(&dir).map_err(VmError::file(&dir))?;
        let limits = monitor_limits(start);
        let cgroup = match host.cgroups.make(start.id, &limits) {
            Ok(cgroup) => cgroup,
            Err(error) => {
                remove_dir(&dir);
                return Err(error.into());
            }
        };
        let mut lent = Vec::new();
        let size = Size::of(start);
        match started(host, start, size, &dir, &cgroup, &mut lent) {
            Ok((monitor, agent)) => Ok(Self {
                monitor,
                cgroup,
                agent,
                lent,
                dir,
                memory_mib: size.memory_mib,
                vcpus: size.vcpus,
                image: start.goes_on.map(|goes_on| goes_on.dir.clone()),
                base: Mutex::new(start.goes_on.map(|goes_on| goes_on.id.clone())),
            }),
            Err(error) => {
                end_groups(&cgroup);
                drop(lent);
                remove_dir(&dir);
                Err(error)
            }
        }
    }

    /// How much memory the machine has, in bytes.
    pub(super) fn memory_bytes(&self) -> u64 {
        u64::from(self.memory_mib) << 20
    }

    /// Holds the machine: none of its vCPUs runs.
    pub(super) fn pause(&self) -> Result<(), VmError> {
        self.monitor.pause()
    }

    /// Lets it run on.
    pub(super) fn resume(&self) -> Result<(), VmError> {
        self.monitor.resume()
    }

    /// What it uses. How many processes there are in it, the host cannot see.
    pub(super) fn usage(&self) -> GroupUsage {
        GroupUsage {
            pids: None,
            ..self.cgroup.usage()
        }
    }

    /// Why it ended, and whether that is a failure.
    pub(super) fn ended_because(&self) -> (String, bool) {
        // The agent's connection may end a moment before its machine does.
        match self.monitor.wait_ended(OFF_WAIT) {
            Some(ended) => (ended.told(), ended.is_failure()),
            None => ("its agent ended".to_owned(), true),
        }
    }

    /// Ends the machine: asks it to switch itself off, and then does not ask any more.
    pub(super) fn end(self) {
        let Self {
            monitor,
            cgroup,
            agent,
            lent,
            dir,
            ..
        } = self;
        // The agent takes the end of its connection for that, if the machine is not held.
        agent.close();
        drop(agent);
        if !monitor.is_paused() && monitor.wait_ended(OFF_WAIT).is_none() {
            debug!("a virtual machine did not switch itself off");
        }
        monitor.end();
        end_groups(&cgroup);
        drop(lent);
        remove_dir(&dir);
    }
}

/// How large a machine is.
#[derive(Clone, Copy)]
struct Size {
    memory_mib: u32,
    vcpus: u8,
}

impl Size {
    /// As asked for, or as it was.
    fn of(start: &VmStart<'_>) -> Self {
        match start.goes_on {
            Some(was) => Self {
                memory_mib: was.memory_mib,
                vcpus: was.vcpus,
            },
            None => Self {
                memory_mib: start.spec.memory_mib.unwrap_or(MEMORY_MIB),
                vcpus: start.spec.vcpus.unwrap_or(VCPUS),
            },
        }
    }
}

fn started(
    host: &Host,
    start: &VmStart<'_>,
    size: Size,
    dir: &Path,
    cgroup: &Cgroup,
    lent: &mut Vec<(String, Lent)>,
) -> Result<(Monitor, Agent), VmError> {
    let base = start.slot.base();
    let memory_mib = size.memory_mib;
    let goes_on = start.goes_on;
    let boots = match goes_on {
        Some(_) => None,
        None => Some(kernel::prepare(start.store, start.spec, dir)?),
    };
    let cmdline = match goes_on {
        Some(_) => String::new(),
        None => kernel::command_line(start.id, start.workspace.is_some()),
    };
    let mut file_systems = vec![(ROOT_TAG, start.root)];
    file_systems.extend(start.workspace.map(|subject| (WORKSPACE_TAG, subject)));
    let listening: Vec<(FsSpec, UnixListener, &Subject)> = file_systems
        .into_iter()
        .map(|(tag, subject)| {
            let server = dir.join(format!("{tag}.fs"));
            let listener = UnixListener::bind(&server).map_err(VmError::file(&server))?;
            let tag = tag.to_owned();
            Ok((FsSpec { tag, server }, listener, subject))
        })
        .collect::<Result<_, VmError>>()?;
    let config = MonitorConfig {
        memory_mib,
        vcpus: size.vcpus,
        kernel: boots.as_ref().map(|boots| boots.kernel.clone()),
        image: goes_on.map(|goes_on| goes_on.dir.clone()),
        initramfs: boots.map(|boots| boots.initramfs),
        cmdline,
        console: ConsoleConfig {
            log: Some(start.console.to_owned()),
            log_limit_bytes: BYTES_MAX,
            socket: Some(dir.join(CONSOLE_SOCKET)),
        },
        vsock: Some(VsockSpec {
            guest_cid: GUEST_CID,
            socket: VSOCK.into(),
        }),
        fs: listening.iter().map(|(spec, ..)| spec.clone()).collect(),
        confinement: Some(Confinement {
            root: dir.to_owned(),
            uid: Some(base),
            gid: Some(base),
        }),
        linux: true,
    };
    let monitor = Monitor::start(host, start.pool, cgroup, start.log, &config)?;
    for (spec, listener, subject) in listening {
        let socket = monitor.connection(&listener)?;
        let state = goes_on.and_then(|goes_on| goes_on.server(&spec.tag));
        let one = start
            .mounts
            .lend(subject, socket, options(memory_mib), state)
            .map_err(VmError::Workspace)?;
        lent.push((spec.tag, one));
        // Nobody else is to come.
        fs::remove_file(&spec.server).map_err(VmError::file(&spec.server))?;
    }
    monitor.wait_until_running()?;
    let agent = agent::connect(host, &monitor, &dir.join(VSOCK), start)?;
    Ok((monitor, agent))
}

/// The machine is the only one that writes as long as it has the workspace.
fn options(memory_mib: u32) -> ServerOptions {
    ServerOptions {
        caching: Caching::OnlyWriter,
        nodes_max: usize::try_from(memory_mib).unwrap_or(usize::MAX) * 1024,
        ..ServerOptions::default()
    }
}

/// What the monitor may use. Its machine's memory is part of that, its processes are not the host's.
fn monitor_limits(start: &VmStart<'_>) -> Limits {
    let memory = u64::from(start.spec.memory_mib.unwrap_or(MEMORY_MIB)) << 20;
    // Files that are only in memory count as that of whoever writes them, here the image of a snapshot.
    let image = if is_in_memory(start.store) { memory } else { 0 };
    Limits {
        memory_bytes: Some(memory + image + MONITOR_MEMORY),
        cpu_millis: start.limits.cpu_millis,
        pids: Some(64),
        disk_bytes: None,
    }
}

/// Whether a directory is on tmpfs (`TMPFS_MAGIC`, `include/uapi/linux/magic.h`).
fn is_in_memory(dir: &Path) -> bool {
    match rustix::fs::statfs(dir) {
        Ok(stat) => stat.f_type == 0x0102_1994,
        Err(error) => {
            warn!(dir = %dir.display(), %error, "it is not known what file system the store is on");
            false
        }
    }
}

fn remove_dir(dir: &Path) {
    match fs::remove_dir_all(dir) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            warn!(dir = %dir.display(), %error, "the directory of a virtual machine stays");
        }
        _ => {}
    }
}
