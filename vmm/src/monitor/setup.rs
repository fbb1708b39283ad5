//! From a configuration to a machine that is about to run, with everything opened that the monitor
//! will not be able to open later.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Component, Path, PathBuf};

use super::config::{Confinement, FsSpec, MonitorConfig, VsockSpec};
use crate::boot::Payload;
use crate::confine::jail::{Jail, JailError};
use crate::devices::serial::{Console, LOG_LIMIT_MIN, SharedConsole};
use crate::devices::virtio::fs::{FsTag, TagError};
use crate::devices::virtio::vsock::HostSockets;
use crate::kvm::HostPaths;
use crate::machine::gate::Exit;
use crate::machine::host::{Host, HostError};
use crate::machine::memory::{LimitError, RamSize, VcpuCount};
use crate::machine::{
    BuildError, Config, Confine, ControlError, DevicesConfig, EmptyConfig, FsConfig, Machine,
    VsockConfig,
};
use crate::snapshot::image::{Image, OpenError};
use crate::snapshot::{RestoreImageError, Snapshotter};

/// Why there is no machine.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The configuration is no such object.
    #[error("the configuration is malformed")]
    Config(#[from] serde_json::Error),
    /// Memory or vCPUs are out of range.
    #[error(transparent)]
    Limit(#[from] LimitError),
    /// A file system's tag is none.
    #[error(transparent)]
    Tag(#[from] TagError),
    /// The host has no KVM that would do.
    #[error("this host cannot run the machine")]
    Host(#[from] HostError),
    /// A file or socket cannot be used.
    #[error("cannot use the {what} {path}", path = path.display())]
    Open {
        /// What it is for.
        what: &'static str,
        /// Its path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The socket of a confined machine lies outside its directory.
    #[error("{path} is no name in the machine's directory", path = path.display())]
    OutsideRoot {
        /// The socket.
        path: PathBuf,
    },
    /// Neither a kernel nor an image, or both.
    #[error("a machine boots a kernel or goes on from an image")]
    NothingToRun,
    /// The image is none.
    #[error("the image cannot be used")]
    Image(#[from] OpenError),
    /// The image cannot go on here.
    #[error("the machine cannot go on from the image")]
    Restore(#[from] RestoreImageError),
    /// The machine cannot be built.
    #[error("the machine cannot be built")]
    Build(#[from] BuildError),
    /// The monitor cannot be confined.
    #[error("the monitor cannot be confined")]
    Jail(#[from] JailError),
    /// A filter cannot be installed.
    #[error("the monitor cannot be confined")]
    Filter(#[from] crate::confine::filters::FilterError),
    /// The machine does not start.
    #[error("the machine does not start")]
    Start(#[from] ControlError),
    /// The machine ended before its guest ran.
    #[error("the machine ended before its guest ran: {exit}")]
    EndedEarly {
        /// Why.
        exit: Exit,
    },
    /// The control or console socket fails.
    #[error("the monitor's own sockets fail")]
    Sockets(#[source] io::Error),
}

impl SetupError {
    /// What the user can do about it.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Host(error) => Some(error.hint()),
            Self::Build(error) => error.hint(),
            _ => None,
        }
    }
}

/// A machine that has not started, and what belongs to its monitor.
pub(super) struct Ready {
    pub(super) machine: Machine,
    // What it goes on from, and the host that it has to fit.
    goes_on: Option<(Image, Host)>,
    // The bytes of the image's working set. Not looked at yet: a guest may have made them.
    pub(super) hint: Option<Vec<u8>>,
    pub(super) console: Option<UnixListener>,
}

impl Ready {
    /// What takes its snapshots.
    pub(super) fn snapshotter(&self) -> Snapshotter {
        match &self.goes_on {
            None => Snapshotter::new(&self.machine),
            Some((image, _)) => Snapshotter::of_restored(&self.machine, &image.manifest().id),
        }
    }

    /// Sets the machine to the image that it goes on from, if there is one. What the image says of the
    /// machine came from a monitor that its guest may have taken over, so this is done by a process that is
    /// confined; everything that it takes is open.
    pub(super) fn restore(&mut self) -> Result<(), SetupError> {
        match self.goes_on.take() {
            None => Ok(()),
            Some((image, host)) => Ok(self.machine.restore(&image, &host)?),
        }
    }

    /// Starts the machine's threads, each confined by `confine`.
    pub(super) fn start(&mut self, confine: &Confine) -> Result<(), SetupError> {
        match self.machine.start(confine) {
            Err(ControlError::Ended) => Err(SetupError::EndedEarly {
                exit: self.machine.stop(),
            }),
            result => Ok(result?),
        }
    }
}

pub(super) fn build(config: &MonitorConfig) -> Result<Ready, SetupError> {
    let ram = RamSize::from_mib(config.memory_mib)?;
    let vcpus = VcpuCount::new(config.vcpus)?;
    let host = Host::open(&HostPaths::default())?;
    if config.linux {
        host.require_linux()?;
    }
    let console = match &config.console.socket {
        None => None,
        Some(path) => Some(UnixListener::bind(path).map_err(open("console socket", path))?),
    };
    let (machine, goes_on) = match (&config.kernel, &config.image) {
        (Some(kernel), None) => {
            let config = Config {
                ram,
                vcpus,
                payload: payload(config, kernel)?,
                console: shared_console(config)?,
                devices: devices(config)?,
            };
            (Machine::new(&host, config)?, None)
        }
        (None, Some(image)) => {
            let image = Image::open(image)?;
            let config = EmptyConfig {
                ram,
                vcpus,
                console: shared_console(config)?,
                devices: devices(config)?,
            };
            (Machine::empty(&host, config)?, Some((image, host)))
        }
        _ => return Err(SetupError::NothingToRun),
    };
    let hint = goes_on.as_ref().map(|(image, _)| image.working_set());
    let hint = hint.transpose().unwrap_or_else(|error| {
        tracing::warn!(%error, "the image's working set cannot be read");
        None
    });
    Ok(Ready {
        machine,
        goes_on,
        hint: hint.flatten(),
        console,
    })
}

/// The jail that a configuration asks for.
pub(super) fn jail(config: &MonitorConfig, confinement: &Confinement) -> Jail {
    Jail {
        root: confinement.root.clone(),
        ids: confinement.uid.zip(confinement.gid),
        // The log may be rewritten from the start just when it is full; a memory file is as long as RAM.
        file_size_max: config
            .console
            .log_limit_bytes
            .max(LOG_LIMIT_MIN)
            .max(u64::from(config.memory_mib) << 20),
    }
}

fn open(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> SetupError {
    move |source| SetupError::Open {
        what,
        path: path.to_owned(),
        source,
    }
}

fn payload(config: &MonitorConfig, kernel: &Path) -> Result<Payload, SetupError> {
    let initramfs = match &config.initramfs {
        None => None,
        Some(path) => Some(File::open(path).map_err(open("initramfs", path))?),
    };
    Ok(Payload {
        kernel: File::open(kernel).map_err(open("kernel", kernel))?,
        initramfs,
        cmdline: config.cmdline.clone(),
    })
}

fn shared_console(config: &MonitorConfig) -> Result<SharedConsole, SetupError> {
    let Some(path) = &config.console.log else {
        return Ok(SharedConsole::default());
    };
    let console = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .and_then(|file| Console::with_log(file, config.console.log_limit_bytes))
        .map_err(open("console log", path))?;
    Ok(SharedConsole::new(console))
}

fn devices(config: &MonitorConfig) -> Result<DevicesConfig, SetupError> {
    let vsock = config.vsock.as_ref();
    let vsock = vsock.map(|spec| vsock_config(spec, config.confinement.as_ref()));
    Ok(DevicesConfig {
        vsock: vsock.transpose()?,
        fs: config.fs.iter().map(fs_config).collect::<Result<_, _>>()?,
    })
}

fn fs_config(spec: &FsSpec) -> Result<FsConfig, SetupError> {
    Ok(FsConfig {
        tag: FsTag::new(&spec.tag)?,
        server: UnixStream::connect(&spec.server)
            .map_err(open("file system server", &spec.server))?,
    })
}

/// The machine's socket is made where the host sees it; where guests' connections lead is named as
/// the monitor sees it when they come: from its new root, if it has one.
fn vsock_config(
    spec: &VsockSpec,
    confinement: Option<&Confinement>,
) -> Result<VsockConfig, SetupError> {
    let (outside, inside) = match confinement {
        None => (spec.socket.clone(), spec.socket.clone()),
        Some(confinement) => {
            let mut parts = spec.socket.components();
            let plain = |part| matches!(part, Component::Normal(_));
            if spec.socket.as_os_str().is_empty() || !parts.all(plain) {
                return Err(SetupError::OutsideRoot {
                    path: spec.socket.clone(),
                });
            }
            let inside = Path::new("/").join(&spec.socket);
            (confinement.root.join(&spec.socket), inside)
        }
    };
    let host = HostSockets::bind(&outside).map_err(open("vsock socket", &outside))?;
    Ok(VsockConfig {
        guest_cid: spec.guest_cid,
        host: HostSockets {
            path: inside,
            ..host
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_confined_machines_socket_cannot_leave_its_directory() {
        let dir = tempfile::tempdir().unwrap();
        let confinement = Confinement {
            root: dir.path().to_owned(),
            uid: None,
            gid: None,
        };
        let config = |socket: &str| {
            let spec = VsockSpec {
                guest_cid: 3,
                socket: socket.into(),
            };
            vsock_config(&spec, Some(&confinement))
        };
        for socket in ["", "/vsock", "../vsock", "a/../../b"] {
            assert!(matches!(
                config(socket),
                Err(SetupError::OutsideRoot { .. })
            ));
        }
        let good = config("vsock").unwrap();
        assert_eq!(good.host.path, Path::new("/vsock"));
        assert!(dir.path().join("vsock").exists());
    }
}
