//! The requests, each with the type of its answer.

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::{Deserialize, Serialize};

use super::check::{Checked, Repaired};
use super::exec::{ExecBegun, TerminalSize};
use super::records::{
    Adopted, BaseDir, Changed, DaemonStatus, Deleted, FileAt, FileLines, Forked, Imported, Landed,
    LogEntry, Mounted, RolledBack, Snapshot, Stopping, Undone, Unmounted, Workspace,
};
use super::retention::{RetentionApplied, RetentionRule};
use super::sandbox::{
    AttachedSandbox, BuiltTemplate, Console, ForkedSandbox, Kernel, KernelInstalled, Limits,
    OnTimeout, Sandbox, SandboxLogLine, SandboxState, SandboxUsage, Template, VmSpec,
};
use super::space::{Collected, Hashed, Setting, Size, SnapshotsDeleted, StoreUsage};
use super::{Call, WirePath};

macro_rules! requests {
    ($($(#[$doc:meta])* $name:ident -> $answer:ty {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
            #[serde(deny_unknown_fields)]
            pub struct $name {
                $($(#[$field_meta])* pub $field: $type,)*
            }

            impl Call for $name {
                type Answer = $answer;
            }

            impl From<$name> for Request {
                fn from(request: $name) -> Self {
                    Self::$name(request)
                }
            }
        )*

        /// Any request, as it travels.
        #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(rename_all = "snake_case")]
        pub enum Request {
            $($(#[$doc])* $name($name),)*
        }

        impl Request {
            /// Which request it is; for the log.
            #[must_use]
            pub fn verb(&self) -> &'static str {
                match self {
                    $(Self::$name(_) => stringify!($name),)*
                }
            }
        }
    };
}

requests! {
    /// Asks who the daemon is and what is mounted.
    Status -> DaemonStatus {}

    /// Asks the daemon to unmount everything and end.
    Stop -> Stopping {}

    /// Checks every rule of the store's format that metadata can show.
    CheckStore -> Checked {
        /// Also read all contents, and verify those that were hashed.
        #[serde(default)]
        data: bool,
    }

    /// Puts right what can be without guessing. Nothing may be mounted.
    RepairStore -> Repaired {
        /// Also verify contents, and refuse what is damaged.
        data: bool,
        /// Only say what would be done.
        dry_run: bool,
    }

    /// Makes an empty workspace.
    CreateWorkspace -> Workspace {
        /// Its name.
        name: String,
    }

    /// Makes a workspace with a copy of a directory.
    ImportWorkspace -> Imported {
        /// Its name.
        name: String,
        /// The directory to copy, absolute.
        dir: WirePath,
    }

    /// Makes a workspace that shows directories of the host in place.
    CreateWorkspaceFrom -> Workspace {
        /// Its name.
        name: String,
        /// The directories, absolute, and where they are shown.
        dirs: Vec<BaseDir>,
        /// What is left out: lines as in a `.gitignore`, relative to the root.
        exclude: Vec<String>,
    }

    /// Takes in what a workspace shows of the host. It goes on if the client goes away.
    AdoptWorkspace -> Adopted {
        /// The workspace.
        name: String,
        /// Answer as soon as it has begun.
        detach: bool,
    }

    /// Lists the workspaces by name.
    ListWorkspaces -> Vec<Workspace> {}

    /// Describes one workspace.
    ShowWorkspace -> Workspace {
        /// Its name.
        name: String,
    }

    /// Gives a workspace another name.
    RenameWorkspace -> Workspace {
        /// Its name so far.
        name: String,
        /// Its new name.
        to: String,
    }

    /// Says how much a workspace may hold; what is neither given nor lifted stays.
    SetQuota -> Workspace {
        /// Its name.
        name: String,
        /// At most so many bytes.
        bytes: Option<u64>,
        /// Any number of bytes.
        any_bytes: bool,
        /// At most so many inodes.
        inodes: Option<u64>,
        /// Any number of inodes.
        any_inodes: bool,
    }

    /// Removes a workspace; its snapshots stay.
    DeleteWorkspace -> Deleted {
        /// Its name.
        name: String,
        /// Only say what would go.
        dry_run: bool,
    }

    /// Mounts a workspace, or a snapshot read-only.
    Mount -> Mounted {
        /// A workspace's name or a snapshot reference.
        target: String,
        /// Where, absolute; absent for the place inside the store.
        dir: Option<WirePath>,
        /// A workspace only to look at, whoever works in it.
        #[serde(default)]
        read_only: bool,
    }

    /// Unmounts one directory, or every mount of a workspace or snapshot.
    Umount -> Unmounted {
        /// A workspace's name or a snapshot reference, as typed.
        target: String,
        /// The same text as an absolute path.
        dir: WirePath,
        /// Detach even if it is in use.
        lazy: bool,
    }

    /// Freezes the present state of a workspace.
    TakeSnapshot -> Snapshot {
        /// The workspace.
        workspace: String,
        /// A name for the snapshot, unique in its workspace.
        name: Option<String>,
        /// A message to keep with it.
        message: Option<String>,
        /// Labels to keep with it.
        labels: BTreeMap<String, String>,
        /// Return only once it would survive a power failure.
        durable: bool,
        /// When to delete it, RFC 3339.
        #[serde(default)]
        expires_at: Option<String>,
        /// Let nothing delete it.
        #[serde(default)]
        protected: bool,
    }

    /// Makes workspaces on a snapshot, all or none.
    Fork -> Forked {
        /// A workspace's name or a snapshot reference.
        source: String,
        /// Take `source` for a snapshot even if a workspace has that name.
        snapshot_only: bool,
        /// The new workspace's name.
        name: String,
        /// How many; they are then called NAME-1, NAME-2 and so on.
        count: Option<u32>,
        /// Mount them too.
        mount: bool,
        /// Where; with a count, each below it. Absent for the places inside the store.
        dir: Option<WirePath>,
    }

    /// Puts a workspace back on an older snapshot.
    Rollback -> RolledBack {
        /// The workspace.
        workspace: String,
        /// The snapshot reference.
        snapshot: String,
    }

    /// Takes the last landing of a workspace in directories of the host back.
    UndoLanding -> Undone {
        /// The workspace.
        workspace: String,
        /// Only say what would be done.
        dry_run: bool,
    }

    /// Merges what a workspace changed into another.
    Land -> Landed {
        /// The workspace whose changes are to land.
        workspace: String,
        /// The one to land on, or the absolute path of a directory of the host that it stands on; absent
        /// for what it was forked or made from.
        onto: Option<WirePath>,
        /// Only say what would be done.
        dry_run: bool,
        /// Only these paths and what lies under them, from the root; absent for all.
        only: Vec<WirePath>,
        /// Take text that both changed for a conflict.
        no_merge: bool,
    }

    /// Asks what differs between two states.
    Diff -> Vec<Changed> {
        /// A workspace's name, a snapshot reference, or `WORKSPACE@base`.
        a: String,
        /// The same; absent to compare the workspace `a` with what it was made from.
        b: Option<String>,
        /// Only these paths and what lies under them, from the root; absent for all.
        paths: Vec<WirePath>,
        /// Tell of every file in a renamed directory.
        each_file: bool,
        /// Tell where the files are.
        versions: bool,
    }

    /// Asks how the lines of two files differ.
    DiffFile -> FileLines {
        /// One file; absent to compare the other with nothing.
        old: Option<FileAt>,
        /// The other.
        new: Option<FileAt>,
        /// Answer with hunks, not only with counts.
        hunks: bool,
    }

    /// Tells what happened to a workspace, newest first.
    Log -> Vec<LogEntry> {
        /// The workspace, or one that was deleted.
        workspace: String,
        /// At most this many.
        limit: Option<usize>,
    }

    /// Lists snapshots, newest first unless asked otherwise.
    ListSnapshots -> Vec<Snapshot> {
        /// Only those of this workspace.
        workspace: Option<String>,
        /// Only those of this name.
        name: Option<String>,
        /// Only those with all of these labels.
        labels: BTreeMap<String, String>,
        /// Only those that are protected, or are not.
        #[serde(default)]
        protected: Option<bool>,
        /// Only those that Floe took by itself, or those taken by hand.
        #[serde(default)]
        automatic: Option<bool>,
        /// Only those that bring this back: `filesystem` or `filesystem+memory`.
        #[serde(default)]
        fidelity: Option<String>,
        /// Only those taken before this time, RFC 3339.
        before: Option<String>,
        /// Only those taken at this time or later.
        since: Option<String>,
        /// Oldest first.
        oldest_first: bool,
        /// Only those behind this place, as a snapshot's `cursor` says it.
        after: Option<String>,
        /// At most this many.
        limit: Option<usize>,
    }

    /// Changes what is said of snapshots, of all of them or none.
    EditSnapshots -> Vec<Snapshot> {
        /// The snapshot references.
        snapshots: Vec<String>,
        /// A name.
        name: Option<String>,
        /// No name.
        no_name: bool,
        /// A message; an empty one is none.
        message: Option<String>,
        /// When to delete them, RFC 3339.
        expires_at: Option<String>,
        /// Do not delete them by themselves.
        never_expires: bool,
        /// Let nothing delete them, or take that back.
        protected: Option<bool>,
        /// Labels that they get, or that get another value.
        labels: BTreeMap<String, String>,
        /// Labels that they lose.
        without: Vec<String>,
    }

    /// Tells how long snapshots are kept.
    ShowRetention -> Vec<RetentionRule> {
        /// The rules that hold for this workspace; absent for all that were set.
        workspace: Option<String>,
    }

    /// Sets how long snapshots are kept.
    SetRetention -> Vec<RetentionRule> {
        /// Of this workspace; absent for those without a rule of their own.
        workspace: Option<String>,
        /// Those that Floe takes by itself.
        automatic: bool,
        /// Keep so many of the newest.
        keep_last: Option<NonZeroU64>,
        /// Keep those taken in the last so many seconds.
        keep_within_s: Option<u64>,
    }

    /// Takes back how long snapshots are kept.
    ClearRetention -> Vec<RetentionRule> {
        /// Of this workspace; absent for those without a rule of their own.
        workspace: Option<String>,
        /// Those that Floe takes by itself.
        automatic: bool,
    }

    /// Deletes the snapshots that no rule keeps and those that have expired.
    ApplyRetention -> RetentionApplied {
        /// Only say which they are.
        dry_run: bool,
    }

    /// Deletes snapshots, all of them or none.
    DeleteSnapshots -> SnapshotsDeleted {
        /// The snapshot references; if there are none, those that match the rest.
        snapshots: Vec<String>,
        /// Only those of this workspace.
        workspace: Option<String>,
        /// Only those of this name.
        name: Option<String>,
        /// Only those with all of these labels.
        labels: BTreeMap<String, String>,
        /// Only those taken before this time, RFC 3339.
        before: Option<String>,
        /// But for the newest that match, so many of each workspace.
        keep_last: usize,
        /// Only say which they are.
        dry_run: bool,
        /// Answer only when their space was given back.
        wait: bool,
    }

    /// Tells how much snapshots and workspaces take.
    Sizes -> Vec<Size> {
        /// Names of workspaces, or snapshot references.
        targets: Vec<String>,
    }

    /// Tells what the store takes of the disk.
    Usage -> StoreUsage {}

    /// Deletes what no rule keeps, and gives back what nothing needs any more. It goes on in the background
    /// if the client goes away.
    Collect -> Collected {
        /// Only say what rules would delete, and what that would free.
        #[serde(default)]
        dry_run: bool,
    }

    /// Hashes what is frozen and stores equal contents once. It goes on in the background if the client
    /// goes away.
    HashNow -> Hashed {}

    /// Tells settings of the store, or changes one.
    StoreConfig -> Vec<Setting> {
        /// The setting; absent for all.
        name: Option<String>,
        /// Its new value; absent to leave it.
        value: Option<String>,
        /// Take back what was set.
        unset: bool,
    }

    /// Describes one snapshot.
    ShowSnapshot -> Snapshot {
        /// The snapshot reference.
        snapshot: String,
    }

    /// Makes a sandbox and starts it.
    CreateSandbox -> AttachedSandbox {
        /// What to start from: a template's name, or a snapshot's id or name; absent for `base`.
        template: Option<String>,
        /// What to remember of it.
        metadata: BTreeMap<String, String>,
        /// Environment of its processes.
        env: BTreeMap<String, String>,
        /// Its time in seconds; absent: it has no end.
        timeout_s: Option<u64>,
        /// What happens when its time is over.
        on_timeout: OnTimeout,
        /// Resume it when a request to it arrives while it is paused.
        auto_resume: bool,
        /// Share the host's network, if the configuration allows it.
        network: bool,
        /// Guard its files and processes with a token of its own.
        secure: bool,
        /// How much it may use; what is absent is as the configuration says.
        limits: Limits,
        /// A second request with this key is answered with the first one's sandbox.
        idempotency_key: Option<String>,
        /// The session it belongs to: of a key there is one running sandbox at most, which is the answer
        /// if it is there.
        session: Option<String>,
        /// Have it be a virtual machine, made of this.
        vm: Option<VmSpec>,
    }

    /// Lists sandboxes, newest first unless asked otherwise.
    ListSandboxes -> Vec<Sandbox> {
        /// Only those in one of these states; empty for all.
        states: Vec<SandboxState>,
        /// Only those with all of these.
        metadata: BTreeMap<String, String>,
        /// Only those started from this, as it was asked for.
        template: Option<String>,
        /// Only those made at this time or later, RFC 3339.
        since: Option<String>,
        /// Oldest first.
        oldest_first: bool,
        /// Only those behind this place, as a sandbox's `cursor` says it.
        after: Option<String>,
        /// At most this many.
        limit: Option<usize>,
    }

    /// Describes one sandbox.
    ShowSandbox -> Sandbox {
        /// Its id, or the beginning of it.
        sandbox: String,
    }

    /// Freezes a sandbox's processes. One that is paused stays so.
    PauseSandbox -> Sandbox {
        /// Its id, or the beginning of it.
        sandbox: String,
    }

    /// Has a paused sandbox go on, or starts a stopped one. One that runs goes on running.
    ResumeSandbox -> AttachedSandbox {
        /// Its id, or the beginning of it.
        sandbox: String,
        /// Its time from now, in seconds; that of one that runs is only ever made longer.
        timeout_s: Option<u64>,
        /// Start its processes anew.
        cold: bool,
    }

    /// Takes a snapshot of a sandbox; one that is being taken is the answer.
    SnapshotSandbox -> Snapshot {
        /// Its id, or the beginning of it.
        sandbox: String,
        /// A name; it becomes a template's name too.
        name: Option<String>,
        /// A message to keep with it.
        message: Option<String>,
        /// Labels to keep with it.
        labels: BTreeMap<String, String>,
    }

    /// Makes further sandboxes of a sandbox as it is now.
    ForkSandbox -> Vec<ForkedSandbox> {
        /// Its id, or the beginning of it.
        sandbox: String,
        /// How many.
        count: u32,
        /// Their time in seconds; absent: they have no end.
        timeout_s: Option<u64>,
    }

    /// Puts a sandbox back on a snapshot; its processes are ended, and it is started again.
    RollbackSandbox -> Sandbox {
        /// Its id, or the beginning of it.
        sandbox: String,
        /// The snapshot reference.
        snapshot: String,
    }

    /// Ends a sandbox and removes its workspace; its snapshots stay.
    KillSandbox -> Sandbox {
        /// Its id, or the beginning of it.
        sandbox: String,
    }

    /// Runs a command in a sandbox. After the answer the connection carries the lines of [`super::exec`].
    SandboxExec -> ExecBegun {
        /// The sandbox's id, or the beginning of it.
        sandbox: String,
        /// The program, looked up in the sandbox.
        cmd: String,
        /// Its arguments.
        args: Vec<String>,
        /// Environment that it gets besides that of the sandbox.
        env: BTreeMap<String, String>,
        /// Where it runs, from the user's home; absent for that.
        cwd: Option<String>,
        /// As whom, by name; absent for the sandbox's usual user.
        user: Option<String>,
        /// Whether it gets the input that the client sends; otherwise it has none.
        stdin: bool,
        /// Give it a terminal of this size.
        terminal: Option<TerminalSize>,
        /// End it after so many seconds.
        timeout_s: Option<u64>,
        /// Remove the sandbox when it has ended, or the client is gone.
        ends_sandbox: bool,
    }

    /// Gets a kernel for virtual machines.
    InstallKernel -> Kernel {
        /// Its file; absent: the distribution's.
        kernel: Option<WirePath>,
        /// The directory of its modules, if it has some.
        modules: Option<WirePath>,
    }

    /// Describes the kernel that virtual machines boot.
    ShowKernel -> KernelInstalled {}

    /// Reads on what a virtual machine's console says.
    ReadConsole -> Console {
        /// Its id, or the beginning of it.
        sandbox: String,
        /// From there on, in bytes, as the answer before said; 0 for the beginning.
        offset: u64,
    }

    /// Measures what a sandbox uses.
    MeasureSandbox -> SandboxUsage {
        /// Its id, or the beginning of it.
        sandbox: String,
    }

    /// Tells what happened in and to a sandbox, oldest first.
    SandboxLogs -> Vec<SandboxLogLine> {
        /// Its id, or the beginning of it.
        sandbox: String,
        /// At most so many of the newest.
        limit: Option<usize>,
    }

    /// Lists templates by name.
    ListTemplates -> Vec<Template> {}

    /// Makes a template of a snapshot, and runs commands in it.
    BuildTemplate -> BuiltTemplate {
        /// Its name.
        name: String,
        /// Start from this directory of the host, absolute.
        from_dir: Option<WirePath>,
        /// Start from this snapshot, or template; absent for `base`.
        from_snapshot: Option<String>,
        /// Commands for a shell, as root; each leaves a snapshot.
        run: Vec<String>,
    }

    /// Removes a template's name; sandboxes that were made from it go on.
    DeleteTemplate -> Template {
        /// Its name.
        name: String,
    }
}
