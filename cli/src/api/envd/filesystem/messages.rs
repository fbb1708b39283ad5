//! Messages of the service `filesystem.Filesystem`.
//!
//! Members that a client leaves out have the value that protocol buffers give them.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::super::json;
use crate::agent::{Entry, EntryKind, WatchEvent, WatchKind};

/// A path: absolute, or relative to the user's home.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct PathRequest {
    /// The path.
    #[serde(default)]
    pub(super) path: String,
}

/// A path and its new one.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct MoveRequest {
    /// The path.
    #[serde(default)]
    pub(super) source: String,
    /// The new one.
    #[serde(default)]
    pub(super) destination: String,
}

/// A directory to list.
#[derive(Debug, Default, Deserialize, ToSchema)]
pub(super) struct ListDirRequest {
    /// The directory.
    #[serde(default)]
    pub(super) path: String,
    /// How deep: 1 (as when nothing is said) lists its entries.
    #[serde(default)]
    pub(super) depth: u32,
}

/// A directory to watch.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatchRequest {
    /// The directory.
    #[serde(default)]
    pub(super) path: String,
    /// Everything below it too.
    #[serde(default)]
    pub(super) recursive: bool,
    /// Tell what is there now with each event.
    #[serde(default)]
    pub(super) include_entry: bool,
    /// Taken, and without effect: every directory can be watched.
    #[serde(default, rename = "allowNetworkMounts")]
    _allow_network_mounts: bool,
}

/// Names a watcher.
#[derive(Debug, Default, Deserialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct WatcherRequest {
    /// Its id.
    #[serde(default)]
    pub(super) watcher_id: String,
}

/// A new watcher.
#[derive(Debug, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct CreateWatcherResponse {
    /// Its id.
    pub(super) watcher_id: String,
}

/// What happened since the last time.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EventsResponse {
    /// Oldest first.
    pub(super) events: Vec<FilesystemEvent>,
}

/// What is at a path.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct EntryResponse {
    /// What is there.
    entry: EntryInfo,
}

impl From<Entry> for EntryResponse {
    fn from(entry: Entry) -> Self {
        Self {
            entry: entry.into(),
        }
    }
}

/// What is in a directory.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct ListDirResponse {
    /// What is there.
    pub(super) entries: Vec<EntryInfo>,
}

/// A file, directory or link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct EntryInfo {
    /// The last part of its path.
    name: String,
    /// What it is.
    #[serde(rename = "type")]
    kind: FileType,
    /// Its absolute path.
    path: String,
    /// Bytes, as a text.
    #[serde(serialize_with = "json::number_as_text")]
    #[schema(value_type = String)]
    size: u64,
    /// Permission bits.
    mode: u32,
    /// Kind and permissions as `ls -l` shows them.
    permissions: String,
    /// The owner's name.
    owner: String,
    /// The group's name.
    group: String,
    /// When its contents last changed.
    modified_time: String,
    /// Where a link leads.
    #[serde(skip_serializing_if = "Option::is_none")]
    symlink_target: Option<String>,
    /// Whether it is a link: newer clients look here, older ones at the type.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    is_symlink: bool,
}

/// What something is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) enum FileType {
    /// A device, a socket or the like.
    #[serde(rename = "FILE_TYPE_UNSPECIFIED")]
    Unspecified,
    /// A file.
    #[serde(rename = "FILE_TYPE_FILE")]
    File,
    /// A directory.
    #[serde(rename = "FILE_TYPE_DIRECTORY")]
    Directory,
    /// A link.
    #[serde(rename = "FILE_TYPE_SYMLINK")]
    Symlink,
}

impl From<Entry> for EntryInfo {
    fn from(entry: Entry) -> Self {
        Self {
            name: entry.name,
            kind: match entry.kind {
                EntryKind::File => FileType::File,
                EntryKind::Directory => FileType::Directory,
                EntryKind::Symlink => FileType::Symlink,
                EntryKind::Other => FileType::Unspecified,
            },
            path: entry.path,
            size: entry.size,
            mode: entry.mode,
            permissions: entry.permissions,
            owner: entry.owner,
            group: entry.group,
            modified_time: json::time(entry.modified.secs, entry.modified.nanos),
            symlink_target: entry.symlink_target,
            is_symlink: entry.kind == EntryKind::Symlink,
        }
    }
}

/// Something happened in a watched directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) struct FilesystemEvent {
    /// Path relative to the watched directory.
    pub(super) name: String,
    /// What happened.
    #[serde(rename = "type")]
    kind: EventType,
    /// What is there now, if that was asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    entry: Option<EntryInfo>,
}

/// What happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ToSchema)]
pub(super) enum EventType {
    /// It is new under this name.
    #[serde(rename = "EVENT_TYPE_CREATE")]
    Create,
    /// Its contents changed.
    #[serde(rename = "EVENT_TYPE_WRITE")]
    Write,
    /// It is gone.
    #[serde(rename = "EVENT_TYPE_REMOVE")]
    Remove,
    /// It has another name now.
    #[serde(rename = "EVENT_TYPE_RENAME")]
    Rename,
    /// Its owner, permissions or the like changed.
    #[serde(rename = "EVENT_TYPE_CHMOD")]
    Chmod,
}

impl FilesystemEvent {
    /// What a client is told; `None` where so much changed that not all of it is known.
    pub(super) fn of(event: WatchEvent, include_entry: bool) -> Option<Self> {
        let kind = match event.kind {
            WatchKind::Create => EventType::Create,
            WatchKind::Write => EventType::Write,
            WatchKind::Remove => EventType::Remove,
            WatchKind::Rename => EventType::Rename,
            WatchKind::Chmod => EventType::Chmod,
            WatchKind::Overflow => return None,
        };
        Some(Self {
            name: event.name,
            kind,
            entry: event.entry.filter(|_| include_entry).map(EntryInfo::from),
        })
    }

    /// About how many bytes it takes.
    pub(super) fn bytes(&self) -> usize {
        let entry = self.entry.as_ref().map_or(0, |entry| {
            let target = entry.symlink_target.as_ref().map_or(0, String::len);
            size_of::<EntryInfo>() + entry.name.len() + entry.path.len() + target
        });
        size_of::<Self>() + self.name.len() + entry
    }
}

/// One message of the stream that tells what happens in a directory.
#[derive(Debug, PartialEq, Eq, Serialize, ToSchema)]
#[serde(rename_all = "lowercase")]
pub(super) enum WatchDirResponse {
    /// From now on everything is told. Always the first.
    Start {},
    /// Something happened.
    Filesystem(Box<FilesystemEvent>),
    /// Nothing, for a while.
    Keepalive {},
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::agent::Modified;

    pub(in super::super) fn event(name: &str, kind: WatchKind) -> WatchEvent {
        WatchEvent {
            name: name.to_owned(),
            kind,
            entry: Some(entry(EntryKind::File)),
        }
    }

    fn entry(kind: EntryKind) -> Entry {
        Entry {
            name: "a".to_owned(),
            path: "/home/user/a".to_owned(),
            kind,
            size: 5_000_000_000,
            mode: 0o644,
            permissions: "-rw-r--r--".to_owned(),
            owner: "user".to_owned(),
            group: "user".to_owned(),
            modified: Modified { secs: 1, nanos: 0 },
            symlink_target: None,
            target_kind: None,
        }
    }

    #[test]
    fn an_entry_has_the_form_that_clients_read() {
        let told = serde_json::to_value(EntryResponse::from(entry(EntryKind::File))).unwrap();
        let expected = json!({"entry": {
            "name": "a", "type": "FILE_TYPE_FILE", "path": "/home/user/a", "size": "5000000000",
            "mode": 420, "permissions": "-rw-r--r--", "owner": "user", "group": "user",
            "modifiedTime": "1970-01-01T00:00:01Z",
        }});
        assert_eq!(told, expected);
    }

    #[test]
    fn older_and_newer_clients_see_that_a_link_is_one() {
        let link = Entry {
            symlink_target: Some("/b".to_owned()),
            ..entry(EntryKind::Symlink)
        };
        let told = serde_json::to_value(EntryInfo::from(link)).unwrap();
        assert_eq!(told["type"], "FILE_TYPE_SYMLINK");
        assert_eq!(told["isSymlink"], true);
        assert_eq!(told["symlinkTarget"], "/b");
    }

    #[test]
    fn events_tell_of_the_entry_only_if_that_was_asked_for() {
        let plain = FilesystemEvent::of(event("x/y", WatchKind::Write), false).unwrap();
        let expected = json!({"name": "x/y", "type": "EVENT_TYPE_WRITE"});
        assert_eq!(serde_json::to_value(&plain).unwrap(), expected);
        let full = FilesystemEvent::of(event("x", WatchKind::Create), true).unwrap();
        assert!(full.entry.is_some() && full.bytes() > plain.bytes());
        assert_eq!(
            FilesystemEvent::of(event("", WatchKind::Overflow), false),
            None
        );
        let told = serde_json::to_value(WatchDirResponse::Filesystem(Box::new(plain))).unwrap();
        assert_eq!(told["filesystem"]["name"], "x/y");
        let start = serde_json::to_value(WatchDirResponse::Start {}).unwrap();
        assert_eq!(start, json!({"start": {}}));
    }
}
