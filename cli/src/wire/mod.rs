//! What client and daemon say to each other: lines of JSON over a Unix socket.
//!
//! ```text
//! daemon  {"floe":"0.1.0","pid":4711}                            on connecting
//! client  {"snapshot":{"workspace":"w", ...}}                    a request
//! daemon  "accepted"                                             it begins to work on it
//! daemon  {"progress":{"files":120,"bytes":88000}}               only while importing or adopting
//! daemon  {"ok":{"id":"1f0c...", ...}}  or  {"error":{...}}      the answer
//! ```
//!
//! A connection carries any number of requests, one after the other. A daemon that is ending closes
//! its connections, but not one with a request that it has accepted, for as long as it can wait.
//! So a client whose connection ends before `accepted` knows that nothing was done, and asks the
//! next daemon; one whose connection ends after it does not know, and must not repeat. A request
//! that cannot be understood is answered with an error and never accepted. The greeting lets a
//! client notice that it talks to another version. The answers in [`records`] are
//! also what `--json` prints.

mod changes;
pub mod check;
pub mod line;
mod path;
pub mod records;
pub mod retention;
pub mod space;

use std::collections::BTreeMap;
use std::num::NonZeroU64;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

pub use path::WirePath;

use crate::error::ApiError;
use check::{Checked, Repaired};
use retention::{RetentionApplied, RetentionRule};
use space::{Collected, Hashed, Setting, Size, SnapshotsDeleted, StoreUsage};

use records::{
    Adopted, BaseDir, Changed, DaemonStatus, Deleted, FileAt, FileLines, Forked, Imported, Landed,
    LogEntry, Mounted, RolledBack, Snapshot, Stopping, Undone, Unmounted, Workspace,
};

/// The first line a daemon sends.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Greeting {
    /// The daemon's version of Floe.
    #[serde(rename = "floe")]
    pub version: String,
    /// Its process.
    pub pid: u32,
}

/// What a client may find as the first line.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
pub enum FirstLine {
    /// The daemon listens.
    Greeting(Greeting),
    /// It will not, and says why.
    Refusal {
        /// Why.
        error: ApiError,
    },
}

/// A line from the daemon after a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply<T> {
    /// Work on the request begins; until this line nothing was done.
    Accepted,
    /// The request is still being worked on.
    Progress(Progress),
    /// The answer.
    Ok(T),
    /// The request failed.
    Error(ApiError),
}

/// How far an import is, or giving space back or a check: then in objects.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Progress {
    /// Files taken in so far.
    pub files: u64,
    /// Bytes taken in so far.
    pub bytes: u64,
    /// How many files there will be, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<u64>,
}

/// A request together with the type of its answer.
pub trait Call: Into<Request> {
    /// What a successful answer holds.
    type Answer: Serialize + DeserializeOwned;
}

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
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    fn round_trip<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(value: &T) {
        let text = serde_json::to_string(value).unwrap();
        assert!(!text.contains('\n'), "{text}");
        assert_eq!(&serde_json::from_str::<T>(&text).unwrap(), value, "{text}");
    }

    #[test]
    fn requests_survive_the_wire() {
        round_trip(&Request::from(Status {}));
        round_trip(&Request::from(TakeSnapshot {
            workspace: "w".into(),
            message: Some("two\nlines".into()),
            labels: BTreeMap::from([("k".into(), "v=1".into())]),
            ..TakeSnapshot::default()
        }));
        round_trip(&Request::from(Mount {
            target: "w".into(),
            dir: Some(WirePath::from(std::path::Path::new("/mnt/ü"))),
        }));
    }

    #[test]
    fn replies_survive_the_wire() {
        round_trip(&Reply::<Stopping>::Progress(Progress {
            files: 3,
            ..Progress::default()
        }));
        round_trip(&Reply::<Stopping>::Accepted);
        round_trip(&Reply::Ok(Stopping { pid: 7 }));
        let error = ApiError::new(ErrorKind::NotFound, "gone").hint("`floe ws list`");
        round_trip(&Reply::<Stopping>::Error(error));
        round_trip(&Greeting {
            version: "1".into(),
            pid: 1,
        });
    }

    #[test]
    fn the_documented_spelling_is_kept() {
        let text = serde_json::to_string(&Request::from(Rollback {
            workspace: "w".into(),
            snapshot: "s".into(),
        }));
        assert_eq!(
            text.unwrap(),
            r#"{"rollback":{"workspace":"w","snapshot":"s"}}"#
        );
        assert_eq!(
            serde_json::to_string(&Reply::<()>::Accepted).unwrap(),
            r#""accepted""#
        );
        let greeting = Greeting {
            version: "0.1.0".into(),
            pid: 4711,
        };
        assert_eq!(
            serde_json::to_string(&greeting).unwrap(),
            r#"{"floe":"0.1.0","pid":4711}"#
        );
    }
}
