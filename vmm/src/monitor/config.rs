//! What a monitor is told: one JSON object, the first line on its control socket.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

/// A machine and how its monitor is confined. All paths are the host's, as seen before confinement.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MonitorConfig {
    /// RAM in MiB.
    pub memory_mib: u32,
    /// Number of vCPUs.
    pub vcpus: u8,
    /// The kernel's file, of a machine that boots.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kernel: Option<PathBuf>,
    /// The initial file system, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub initramfs: Option<PathBuf>,
    /// The kernel's command line.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub cmdline: String,
    /// The directory of the image that the machine goes on from, instead of a kernel.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<PathBuf>,
    /// The serial console.
    #[serde(default)]
    pub console: ConsoleConfig,
    /// The vsock device, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub vsock: Option<VsockSpec>,
    /// File systems.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub fs: Vec<FsSpec>,
    /// How the monitor is confined; `None` only for trying things out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Confinement>,
    /// Whether the machine boots Linux. A KVM that cannot is refused then.
    #[serde(default = "yes")]
    pub linux: bool,
}

fn yes() -> bool {
    true
}

/// Where the console leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConsoleConfig {
    /// A log file, emptied at the start.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<PathBuf>,
    /// Most bytes of the log.
    #[serde(default = "log_limit")]
    pub log_limit_bytes: u64,
    /// A socket that clients attach to: they get what the guest prints and type what they send.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub socket: Option<PathBuf>,
}

impl Default for ConsoleConfig {
    fn default() -> Self {
        Self {
            log: None,
            log_limit_bytes: log_limit(),
            socket: None,
        }
    }
}

fn log_limit() -> u64 {
    1 << 20
}

/// The vsock device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VsockSpec {
    /// The guest's address, 3 or more.
    pub guest_cid: u32,
    /// Name of the machine's socket. With confinement it is in the machine's directory; sockets that
    /// the guest may connect to have this name with `_PORT` appended.
    pub socket: PathBuf,
}

/// A file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FsSpec {
    /// The tag that the guest mounts.
    pub tag: String,
    /// The socket of its server.
    pub server: PathBuf,
}

/// Confinement of the monitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Confinement {
    /// The machine's directory, which becomes the monitor's root.
    pub root: PathBuf,
    /// User to become, when started as root.
    #[serde(default)]
    pub uid: Option<u32>,
    /// Group to become, when started as root.
    #[serde(default)]
    pub gid: Option<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_least_that_must_be_said_is_enough_and_more_is_refused() {
        let text = r#"{"memory_mib":64,"vcpus":1,"kernel":"/k","cmdline":""}"#;
        let config: MonitorConfig = serde_json::from_str(text).unwrap();
        assert!(config.linux);
        assert_eq!(config.console.log_limit_bytes, 1 << 20);
        assert_eq!(
            serde_json::from_str::<MonitorConfig>(&serde_json::to_string(&config).unwrap())
                .unwrap(),
            config
        );
        let text = r#"{"memory_mib":64,"vcpus":1,"kernel":"/k","cmdline":"","disk":1}"#;
        assert!(serde_json::from_str::<MonitorConfig>(text).is_err());
    }
}
