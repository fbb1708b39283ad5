//! What is said in JSON: requests, events, and the end of each channel.
//!
//! These are alleged, not checked: whoever reads them bounds and checks what is in them before use.
//! Fields are only ever added, each with a default; unknown ones are ignored.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::frame::MAX_OPEN;

/// What the daemon asks for. The table in `docs/agent.md` says what follows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "snake_case")]
pub enum Request {
    /// Starts a command and attaches to it.
    Start(StartProcess),
    /// Attaches to a process.
    Attach {
        /// Which.
        process: ProcessRef,
    },
    /// Lists the processes that run.
    Processes,
    /// Gives a process input; the data follows.
    Input {
        /// Which.
        process: ProcessRef,
    },
    /// Ends the input of a process.
    CloseInput {
        /// Which.
        process: ProcessRef,
    },
    /// Sends a signal to a process and its group.
    Signal {
        /// Which.
        process: ProcessRef,
        /// The signal's number.
        signal: i32,
    },
    /// Changes the size of a process's terminal.
    Resize {
        /// Which.
        process: ProcessRef,
        /// The new size.
        size: PtySize,
    },
    /// Reads a file.
    ReadFile(FileRef),
    /// Writes a file; the data follows.
    WriteFile(FileRef),
    /// Looks at a file, not following a link.
    Stat(FileRef),
    /// Lists a directory.
    List {
        /// Which.
        #[serde(flatten)]
        file: FileRef,
        /// How many levels; 1 is the directory itself.
        depth: u32,
    },
    /// Makes a directory and its parents.
    MakeDir(FileRef),
    /// Renames.
    Rename {
        /// What.
        from: String,
        /// To what.
        to: String,
        /// As whom.
        #[serde(default)]
        user: Option<String>,
    },
    /// Removes a file, or a directory and all in it.
    Remove(FileRef),
    /// Watches a directory.
    Watch {
        /// Which.
        #[serde(flatten)]
        file: FileRef,
        /// With all below it.
        recursive: bool,
    },
    /// Says what the system has and uses.
    Metrics,
    /// Connects to a TCP port.
    ConnectPort {
        /// On the loopback addresses.
        port: u16,
    },
    /// Sets the default environment of commands.
    SetEnv {
        /// All of it.
        env: BTreeMap<String, String>,
    },
    /// Sets the clock. In a virtual machine only; from version 2 on.
    SetTime {
        /// Seconds since 1970, not negative.
        secs: i64,
        /// Nanoseconds on top, below 1,000,000,000.
        nanos: u32,
    },
    /// Gives the kernel's random number generator a new beginning. In a virtual machine only; from
    /// version 2 on.
    AddEntropy {
        /// What it begins with.
        seed: Seed,
    },
    /// Ends the virtual machine. In one only; from version 2 on.
    Shutdown,
    /// Writes back what programs changed in the root and the workspace and is only in the machine's memory
    /// yet. In a virtual machine only; from version 3 on.
    Sync,
}

impl Request {
    /// The lowest version of the protocol in which it may be sent.
    #[must_use]
    pub fn since(&self) -> u16 {
        match self {
            Self::SetTime { .. } | Self::AddEntropy { .. } | Self::Shutdown => 2,
            Self::Sync => 3,
            _ => 1,
        }
    }
}

/// Fewest bytes of a [`Seed`]: with fewer, the kernel's generator may not be ready afterwards.
pub const SEED_MIN: usize = 32;

/// Most bytes of a [`Seed`].
pub const SEED_MAX: usize = 512;

/// Random bytes, which nobody else may know: they are not shown.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Seed(pub Vec<u8>);

impl std::fmt::Debug for Seed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Seed({} bytes)", self.0.len())
    }
}

/// A file, and on whose behalf.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileRef {
    /// Absolute, or relative to the user's home.
    pub path: String,
    /// The user's name; the default user if not given.
    #[serde(default)]
    pub user: Option<String>,
}

/// A command to start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct StartProcess {
    /// The program: a path, or a name that is looked for in `PATH`.
    pub cmd: String,
    /// Its arguments, without its name.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment, over the default one.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
    /// Directory; the user's home if not given.
    #[serde(default)]
    pub cwd: Option<String>,
    /// User; the default user if not given.
    #[serde(default)]
    pub user: Option<String>,
    /// Whether input will come. If not it is `/dev/null`. A terminal always takes input.
    #[serde(default)]
    pub stdin: bool,
    /// A terminal of that size instead of pipes.
    #[serde(default)]
    pub pty: Option<PtySize>,
    /// A name to find it by.
    #[serde(default)]
    pub tag: Option<String>,
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PtySize {
    /// Columns.
    pub cols: u16,
    /// Rows.
    pub rows: u16,
}

/// A process that was started by a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProcessRef {
    /// By its id.
    Pid(u32),
    /// By its tag: the newest that runs, or else the newest.
    Tag(String),
}

impl std::fmt::Display for ProcessRef {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pid(pid) => write!(f, "process {pid}"),
            Self::Tag(tag) => write!(f, "process '{tag}'"),
        }
    }
}

/// Something happened on a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Event {
    /// The channel is attached to a process.
    Started {
        /// The process.
        pid: u32,
        /// Whether it has a terminal.
        pty: bool,
    },
    /// Output that this channel will never get: it was too old when the channel attached.
    Lost {
        /// How much.
        bytes: u64,
    },
    /// One of the processes that run.
    Process(ProcessInfo),
    /// The file is open.
    Opened(Entry),
    /// Some of a directory's entries.
    Entries(Vec<Entry>),
    /// From now on everything is told.
    Watching,
    /// Something changed in the watched directory.
    Changed(WatchEvent),
    /// The connection to the port stands.
    Connected,
}

/// The last word on a channel.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// It was done.
    Ok(Outcome),
    /// It was not, or not all of it.
    Failed(Failure),
}

/// What came of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// Nothing more to say. Also after a cancel.
    Done,
    /// The process ended.
    Exit(Exit),
    /// What is there now.
    Entry(Entry),
    /// What the system has and uses.
    Metrics(AgentMetrics),
}

/// How a process ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    /// Its exit code; -1 if a signal ended it.
    pub code: i32,
    /// The signal that ended it.
    pub signal: Option<i32>,
}

/// Why something was not done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What kind of reason.
    pub kind: FailureKind,
    /// The reason, with the name of the thing.
    pub message: String,
}

/// Kinds of reasons.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FailureKind {
    /// There is no such file or directory.
    NotFound,
    /// Something is there already.
    AlreadyExists,
    /// A directory was needed.
    NotADirectory,
    /// A file was needed.
    IsADirectory,
    /// The user may not.
    PermissionDenied,
    /// No room, or above a quota.
    NoSpace,
    /// The request makes no sense.
    InvalidArgument,
    /// There is no such user.
    UnknownUser,
    /// There is no such process, or it has ended.
    NoSuchProcess,
    /// Nothing listens there.
    PortClosed,
    /// A limit was reached.
    Exhausted,
    /// Anything else; also kinds that this version does not know.
    #[serde(other)]
    Other,
}

/// What a name in a directory stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EntryKind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link.
    Symlink,
    /// A device, socket or FIFO.
    #[serde(other)]
    Other,
}

/// A file, directory or link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    /// The last part of its path.
    pub name: String,
    /// Its absolute path.
    pub path: String,
    /// What it is.
    pub kind: EntryKind,
    /// Bytes.
    pub size: u64,
    /// Permission bits, with set-id and sticky.
    pub mode: u32,
    /// Kind and permissions as `ls -l` shows them.
    pub permissions: String,
    /// The owner's name, or number.
    pub owner: String,
    /// The group's name, or number.
    pub group: String,
    /// When its contents last changed.
    pub modified: Modified,
    /// Where a link leads: the path of what it stands for, or its own text if that is not there.
    #[serde(default)]
    pub symlink_target: Option<String>,
    /// What a link stands for, if that is there.
    #[serde(default)]
    pub target_kind: Option<EntryKind>,
}

/// A time, since 1970.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Modified {
    /// Seconds; negative before 1970.
    pub secs: i64,
    /// Nanoseconds on top, below 1,000,000,000.
    pub nanos: u32,
}

/// A process that was started by a request and runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessInfo {
    /// Its id.
    pub pid: u32,
    /// The program, as asked for.
    pub cmd: String,
    /// Its arguments, as asked for.
    pub args: Vec<String>,
    /// Its environment, as asked for.
    pub env: BTreeMap<String, String>,
    /// Its directory, as asked for.
    pub cwd: Option<String>,
    /// Its tag.
    pub tag: Option<String>,
}

/// What changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WatchKind {
    /// It is new under this name.
    Create,
    /// Its contents changed.
    Write,
    /// It is gone.
    Remove,
    /// It had this name and has another now.
    Rename,
    /// Its owner, permissions, times or attributes changed.
    Chmod,
    /// So much changed that some of it is not told. The name is empty.
    Overflow,
}

/// One change in a watched directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WatchEvent {
    /// Path relative to the watched directory; `.` for that itself.
    pub name: String,
    /// What changed.
    pub kind: WatchKind,
    /// What is there now, if anything.
    #[serde(default)]
    pub entry: Option<Entry>,
}

/// What the system of the sandbox has and uses. In a process sandbox, processors and memory are the
/// host's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct AgentMetrics {
    /// Seconds since 1970.
    pub at_secs: i64,
    /// Processors.
    pub cpu_count: u32,
    /// Time that processors worked since the start of the system, in microseconds, all together.
    pub cpu_busy_us: u64,
    /// Time that there was since then, in microseconds, all processors together.
    pub cpu_total_us: u64,
    /// Bytes of memory.
    pub memory_total: u64,
    /// Of them, in use and not to be had by giving up caches.
    pub memory_used: u64,
    /// Of them, caches of files.
    pub memory_cached: u64,
    /// Bytes of the root's file system.
    pub disk_total: u64,
    /// Of them, in use.
    pub disk_used: u64,
    /// Processes that can be seen.
    pub processes: u32,
}

/// The payload of an open frame: the window towards the daemon, and the request.
#[must_use]
pub fn encode_open(window: u32, request: &Request) -> Option<Vec<u8>> {
    let mut payload = window.to_le_bytes().to_vec();
    serde_json::to_writer(&mut payload, request).ok()?;
    (payload.len() <= MAX_OPEN).then_some(payload)
}

/// Reads the payload of an open frame: the window, and the request or why it is none.
#[must_use]
pub fn decode_open(payload: &[u8]) -> Option<(u32, Result<Request, Failure>)> {
    let (window, json) = payload.split_first_chunk()?;
    let request = serde_json::from_slice(json).map_err(|error| Failure {
        kind: FailureKind::InvalidArgument,
        message: format!("the agent does not understand the request: {error}"),
    });
    Some((u32::from_le_bytes(*window), request))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn comes_back(request: &Request) {
        let payload = encode_open(77, request).unwrap();
        assert_eq!(decode_open(&payload), Some((77, Ok(request.clone()))));
    }

    #[test]
    fn requests_come_back_as_they_were() {
        let file = FileRef {
            path: "a \"b\"\n/ü".to_owned(),
            user: None,
        };
        comes_back(&Request::Processes);
        comes_back(&Request::List {
            file: file.clone(),
            depth: 3,
        });
        comes_back(&Request::Watch {
            file: file.clone(),
            recursive: true,
        });
        comes_back(&Request::ReadFile(file));
        comes_back(&Request::Attach {
            process: ProcessRef::Tag("x".to_owned()),
        });
        comes_back(&Request::Start(StartProcess {
            cmd: "sh".to_owned(),
            args: vec!["-c".to_owned()],
            pty: Some(PtySize { cols: 80, rows: 24 }),
            ..StartProcess::default()
        }));
    }

    #[test]
    fn the_request_is_what_the_document_says() {
        let json = br#"{"do":"start","cmd":"ls","later":[1]}"#;
        let request: Request = serde_json::from_slice(json).unwrap();
        let plain = StartProcess {
            cmd: "ls".to_owned(),
            ..StartProcess::default()
        };
        assert_eq!(request, Request::Start(plain));
        let json = br#"{"do":"signal","process":{"pid":7},"signal":9}"#;
        let request: Request = serde_json::from_slice(json).unwrap();
        let process = ProcessRef::Pid(7);
        assert_eq!(request, Request::Signal { process, signal: 9 });
    }

    #[test]
    fn what_came_with_version_2_is_what_the_document_says() {
        let time = Request::SetTime {
            secs: 1_700_000_000,
            nanos: 5,
        };
        let seed = Request::AddEntropy {
            seed: Seed(vec![0, 255]),
        };
        for (request, json) in [
            (&time, r#"{"do":"set_time","secs":1700000000,"nanos":5}"#),
            (&seed, r#"{"do":"add_entropy","seed":[0,255]}"#),
            (&Request::Shutdown, r#"{"do":"shutdown"}"#),
        ] {
            comes_back(request);
            assert_eq!(serde_json::to_string(request).unwrap(), json);
            assert_eq!(request.since(), 2);
        }
        assert_eq!(Request::Metrics.since(), 1);
    }

    #[test]
    fn what_came_with_version_3_is_what_the_document_says() {
        comes_back(&Request::Sync);
        let json = serde_json::to_string(&Request::Sync).unwrap();
        assert_eq!(json, r#"{"do":"sync"}"#);
        assert_eq!(Request::Sync.since(), *crate::hello::VERSIONS.end());
    }

    #[test]
    fn a_seed_is_not_shown() {
        let seed = Seed(vec![123; 32]);
        assert_eq!(format!("{seed:?}"), "Seed(32 bytes)");
    }

    #[test]
    fn kinds_of_a_later_version_are_other() {
        let failure: Failure =
            serde_json::from_str(r#"{"kind":"solar_flare","message":"x"}"#).unwrap();
        assert_eq!(failure.kind, FailureKind::Other);
    }

    #[test]
    fn an_unknown_request_is_a_failure_and_no_panic() {
        let (_, request) = decode_open(b"\0\0\0\0{\"do\":\"fly\"}").unwrap();
        assert_eq!(request.unwrap_err().kind, FailureKind::InvalidArgument);
        assert_eq!(decode_open(b"\0\0\0"), None);
    }

    #[test]
    fn a_request_that_is_too_long_is_not_encoded() {
        let long = StartProcess {
            cmd: "x".repeat(MAX_OPEN),
            ..StartProcess::default()
        };
        assert_eq!(encode_open(0, &Request::Start(long)), None);
    }

    proptest! {
        #[test]
        fn any_payload_is_a_request_or_a_failure(
            bytes in proptest::collection::vec(any::<u8>(), 0..256),
        ) {
            let decoded = decode_open(&bytes);
            prop_assert_eq!(decoded.is_some(), bytes.len() >= 4);
        }

        #[test]
        fn any_text_after_a_known_word_is_a_request_or_a_failure(text in "\\PC{0,80}") {
            for word in ["start", "list", "watch", "attach"] {
                let json = format!("\0\0\0\0{{\"do\":\"{word}\",{text}");
                prop_assert!(decode_open(json.as_bytes()).is_some());
            }
        }
    }
}
