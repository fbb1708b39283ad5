//! Sandboxes and templates, as they travel and as `--json` prints them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// Where a sandbox is in its life. Written to the catalog before it is acted on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum SandboxState {
    /// Its workspace and its processes are being made.
    Creating,
    /// It runs.
    Running,
    /// Its processes are being frozen.
    Pausing,
    /// Its processes are frozen and can go on.
    Paused,
    /// A snapshot of it is being taken.
    Snapshotting,
    /// Its processes are being ended.
    Stopping,
    /// It has no processes. Its workspace is there, and it can be started again.
    Stopped,
    /// It could not be started.
    Failed,
}

impl SandboxState {
    /// All of them.
    pub const ALL: [Self; 8] = [
        Self::Creating,
        Self::Running,
        Self::Pausing,
        Self::Paused,
        Self::Snapshotting,
        Self::Stopping,
        Self::Stopped,
        Self::Failed,
    ];

    /// The word for it, as in the catalog and in `--json`.
    #[must_use]
    pub fn word(self) -> &'static str {
        match self {
            Self::Creating => "creating",
            Self::Running => "running",
            Self::Pausing => "pausing",
            Self::Paused => "paused",
            Self::Snapshotting => "snapshotting",
            Self::Stopping => "stopping",
            Self::Stopped => "stopped",
            Self::Failed => "failed",
        }
    }

    /// The state of that word.
    #[must_use]
    pub fn parse(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|state| state.word() == word)
    }
}

/// What happens when the time of a sandbox is over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum OnTimeout {
    /// It is removed.
    #[default]
    Kill,
    /// It is paused.
    Pause,
}

/// How much a sandbox may use.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// Thousandths of a processor.
    #[serde(default)]
    pub cpu_millis: Option<u64>,
    /// Bytes of memory.
    #[serde(default)]
    pub memory_bytes: Option<u64>,
    /// Processes and threads at once.
    #[serde(default)]
    pub pids: Option<u64>,
    /// Bytes its workspace may hold.
    #[serde(default)]
    pub disk_bytes: Option<u64>,
}

/// What a virtual machine is made of, besides its root.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct VmSpec {
    /// Memory in MiB; absent: 512.
    #[serde(default)]
    pub memory_mib: Option<u32>,
    /// vCPUs; absent: 2.
    #[serde(default)]
    pub vcpus: Option<u8>,
    /// The workspace at /workspace; absent: a directory of the root.
    #[serde(default)]
    pub workspace: Option<String>,
    /// The kernel's file on the host; absent: the one that was installed.
    #[serde(default)]
    pub kernel: Option<String>,
    /// The directory of its modules on the host; absent: it needs none.
    #[serde(default)]
    pub modules: Option<String>,
}

/// A sandbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[schema(as = FloeSandbox)]
pub struct Sandbox {
    /// Its id, for ever.
    pub id: String,
    /// `process` or `vm`.
    pub kind: String,
    /// Where it is in its life.
    pub state: SandboxState,
    /// Why it is stopped or failed.
    pub reason: Option<String>,
    /// What it was asked to start from: a template's name or a snapshot's id or name.
    pub template: String,
    /// The snapshot that it started from.
    pub snapshot: Option<String>,
    /// The workspace that is its root.
    pub workspace: String,
    /// What its maker says of it.
    pub metadata: BTreeMap<String, String>,
    /// When it was made.
    pub created_at: String,
    /// When its processes were last started.
    pub started_at: Option<String>,
    /// When its time is over.
    pub ends_at: Option<String>,
    /// What happens then.
    pub on_timeout: OnTimeout,
    /// Whether a request to it resumes it when it is paused.
    pub auto_resume: bool,
    /// The session key it belongs to.
    pub session: Option<String>,
    /// How often it was started on a snapshot.
    pub generation: u64,
    /// How much it may use.
    pub limits: Limits,
    /// Those of its limits that this host cannot enforce.
    pub unenforced: Vec<String>,
    /// Whether it shares the host's network.
    pub network: bool,
    /// What its snapshots bring back.
    pub fidelity: String,
    /// The place right behind it in a list.
    #[serde(default)]
    pub cursor: String,
}

/// How a sandbox came to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Attached {
    /// It ran already.
    Running,
    /// It was paused, or stopped with its workspace, and goes on.
    Resumed,
    /// It was made anew from the last snapshot of its session.
    Restored,
    /// It was made.
    Created,
}

/// A sandbox that runs now, and how that came about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct AttachedSandbox {
    /// The sandbox.
    #[serde(flatten)]
    pub sandbox: Sandbox,
    /// How it came to run.
    pub attached: Attached,
}

/// One of several forks: a sandbox, or why there is none.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ForkedSandbox {
    /// It runs.
    Sandbox(Box<Sandbox>),
    /// It could not be made.
    Error(crate::error::ApiError),
}

/// The kernel that virtual machines boot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kernel {
    /// Its version as `uname -r` shows it, if its file says so.
    pub version: Option<String>,
    /// The package with its version, or the files that were given.
    pub origin: String,
    /// When it was installed, RFC 3339.
    pub installed_at: String,
    /// BLAKE3 of its file, in hexadecimal digits.
    pub kernel_blake3: String,
    /// Bytes of its file.
    pub kernel_bytes: u64,
    /// Bytes of its initial file system.
    pub initramfs_bytes: u64,
    /// Its modules, in the order in which they are loaded.
    pub modules: Vec<String>,
}

/// The kernel that is installed, if one is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInstalled {
    /// It.
    pub installed: Option<Kernel>,
}

/// A piece of what a virtual machine's console said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Console {
    /// The text; bytes that are none are replaced.
    pub text: String,
    /// Where to read on, in bytes.
    pub next: u64,
}

/// What a sandbox uses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxUsage {
    /// When this was measured.
    pub at: String,
    /// Processor time used since it was started, in microseconds.
    pub cpu_us: Option<u64>,
    /// Bytes of memory in use, file cache included.
    pub memory_bytes: Option<u64>,
    /// Of them, file cache.
    pub cache_bytes: Option<u64>,
    /// Processes and threads.
    pub pids: Option<u64>,
    /// Bytes in its workspace.
    pub disk_bytes: u64,
}

/// A line of a sandbox's log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SandboxLogLine {
    /// When.
    pub at: String,
    /// `info`, `warn` or `error`.
    pub level: String,
    /// What happened.
    pub message: String,
}

/// A template: a snapshot from which sandboxes start, under a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Template {
    /// Its name, with `:tag` unless that is `default`.
    pub name: String,
    /// The snapshot.
    pub snapshot: String,
    /// When the name was last given to a snapshot.
    pub updated_at: String,
}

/// What building a template did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltTemplate {
    /// The template.
    #[serde(flatten)]
    pub template: Template,
    /// Its steps.
    pub steps: Vec<BuiltStep>,
}

/// A step of a template.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BuiltStep {
    /// The command.
    pub run: String,
    /// The snapshot of what it left.
    pub snapshot: String,
    /// Whether that was there already, with nothing before it changed.
    pub skipped: bool,
}
