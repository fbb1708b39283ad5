//! What the API asks of the daemon. The daemon is the one that serves; tests put another in its place.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::BoxFuture;

use crate::agent::Agent;
use crate::error::ApiError;
use crate::wire::records::Snapshot;
use crate::wire::sandbox::{
    AttachedSandbox, ForkedSandbox, Sandbox, SandboxLogLine, SandboxUsage, Template,
};
use crate::wire::{CreateSandbox, ForkSandbox, ListSandboxes, SnapshotSandbox};

/// What came of it.
pub(super) type Answer<T> = Result<T, ApiError>;

/// How large the machine is on which sandboxes run: what one without limits of its own may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Host {
    /// Processors.
    pub(super) cpus: u64,
    /// Bytes of memory.
    pub(super) memory_bytes: u64,
    /// Bytes of the file system that the store is on.
    pub(super) disk_bytes: u64,
    /// Seconds that a sandbox has whose request names none.
    pub(super) timeout_s: u64,
}

/// The daemon, as the API sees it. Its methods block, but for [`Backend::agent`]: not for a thread of the
/// runtime.
pub(super) trait Backend: Send + Sync + 'static {
    /// Makes a sandbox, or finds the one that an idempotency key or session has already.
    fn create(&self, request: &CreateSandbox) -> Answer<AttachedSandbox>;
    /// A sandbox.
    fn sandbox(&self, id: &str) -> Answer<Sandbox>;
    /// The token that guards its files and processes, if any does.
    fn access_token(&self, id: &str) -> Answer<Option<String>>;
    /// The sandbox whose token has this SHA-256.
    fn with_token(&self, digest: &[u8; 32]) -> Answer<Option<String>>;
    /// The tokens of all sandboxes that have one, with their ids.
    fn access_tokens(&self) -> Answer<Vec<(String, String)>>;
    /// What every command finds in its environment.
    fn environment(&self, id: &str) -> Answer<BTreeMap<String, String>>;
    /// Sandboxes, as asked for.
    fn sandboxes(&self, request: &ListSandboxes) -> Answer<Vec<Sandbox>>;
    /// Runs it, whatever state it is in.
    fn resume(&self, id: &str, timeout: Option<Duration>, cold: bool) -> Answer<AttachedSandbox>;
    /// Freezes it; whether it was already.
    fn pause(&self, id: &str) -> Answer<bool>;
    /// Ends and removes it.
    fn kill(&self, id: &str) -> Answer<()>;
    /// Its time from now.
    fn set_timeout(&self, id: &str, timeout: Duration, only_longer: bool) -> Answer<()>;
    /// Freezes its files in a snapshot.
    fn take_snapshot(&self, request: &SnapshotSandbox) -> Answer<Snapshot>;
    /// Makes further ones of it.
    fn fork(&self, request: &ForkSandbox) -> Answer<Vec<ForkedSandbox>>;
    /// Puts it back on a snapshot.
    fn rollback(&self, id: &str, snapshot: &str) -> Answer<Sandbox>;
    /// What it uses.
    fn usage(&self, id: &str) -> Answer<SandboxUsage>;
    /// The newest lines of its log, oldest first.
    fn logs(&self, id: &str, limit: usize) -> Answer<Vec<SandboxLogLine>>;
    /// The sandbox that belongs to a session.
    fn session(&self, key: &str) -> Answer<Sandbox>;
    /// Snapshots of sandboxes that were asked for, newest first.
    fn snapshots(&self, query: &SnapshotQuery) -> Answer<Vec<NamedSnapshot>>;
    /// A snapshot, by its id (or what it begins with) or its name.
    fn snapshot(&self, reference: &str) -> Answer<NamedSnapshot>;
    /// What each of these snapshots alone takes of the disk, in bytes.
    fn snapshot_bytes(&self, ids: &[String]) -> Answer<Vec<u64>>;
    /// Deletes a snapshot with its names, whatever stands on it.
    fn delete_snapshot(&self, id: &str) -> Answer<()>;
    /// All templates, by name.
    fn templates(&self) -> Answer<Vec<Template>>;
    /// The template of a name.
    fn template(&self, name: &str) -> Answer<Template>;
    /// Takes a template's name away; its snapshot stays.
    fn delete_template(&self, name: &str) -> Answer<()>;
    /// How large the machine is.
    fn host(&self) -> Host;
    /// The way to a sandbox's files and processes. Resumes a paused one that asks for it.
    fn agent<'a>(&'a self, id: &'a str) -> BoxFuture<'a, Answer<Agent>>;
}

/// A snapshot, and the names under which sandboxes can be made from it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct NamedSnapshot {
    /// The snapshot.
    pub(super) snapshot: Snapshot,
    /// Its names.
    pub(super) names: Vec<String>,
    /// Whether it is one that lists show: of a sandbox, and asked for.
    pub(super) is_listed: bool,
}

/// Which snapshots to list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct SnapshotQuery {
    /// Of this sandbox.
    pub(super) sandbox: Option<String>,
    /// With this name.
    pub(super) name: Option<String>,
    /// Behind this place.
    pub(super) after: Option<String>,
    /// At most so many.
    pub(super) limit: usize,
}
