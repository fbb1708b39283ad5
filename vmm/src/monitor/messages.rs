//! What monitor and daemon say on the control socket: one JSON object a line.

use serde::{Deserialize, Serialize};

use crate::machine::gate::Exit;
use crate::snapshot::Stats;

/// Longest line in bytes, either way.
pub const LINE_MAX: usize = 64 * 1024;

/// From the daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "command", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Hold the guest.
    Pause,
    /// Let it run.
    Resume,
    /// Switch the machine off at once.
    Stop,
    /// Say how it is.
    Status,
    /// Take a snapshot. Two descriptors come with the line: an empty file as long as RAM, for pages, and an
    /// empty one for what [`crate::snapshot::image::Taken`] is written to.
    Snapshot {
        /// The image that is made of it.
        id: String,
        /// The image that only what changed since is wanted over, if it is the last that was taken.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        over: Option<String>,
    },
    /// The answer to [`Event::Held`].
    Frozen {
        /// Whether the files are frozen; else there is no snapshot.
        ok: bool,
    },
    /// Give up the snapshot that is being taken, if the guest was not held yet.
    Cancel,
    /// Say which pages were touched since the machine was started from an image. A descriptor comes with the
    /// line: an empty file, for a [`crate::snapshot::WorkingSet`].
    Touched,
}

/// From the monitor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The machine was built and the guest runs.
    Running,
    /// A command was carried out.
    Done {
        /// Which.
        #[serde(flatten)]
        command: Command,
    },
    /// A command was not carried out.
    Refused {
        /// Which; `None`: the line was no command.
        #[serde(flatten)]
        command: Option<Command>,
        /// Why.
        message: String,
    },
    /// The answer to [`Command::Status`].
    Status {
        /// Whether the guest is held.
        paused: bool,
        /// Requests that file system servers have not answered.
        fs_in_flight: usize,
        /// Devices that stand still.
        faults: Vec<DeviceFault>,
    },
    /// The guest is held for a snapshot: freeze its files, and say [`Command::Frozen`].
    Held {
        /// The image that is made of it.
        id: String,
    },
    /// A snapshot was taken: everything is in its files, and the guest runs.
    Taken {
        /// The image that is made of it.
        id: String,
        /// What it cost.
        #[serde(flatten)]
        stats: Stats,
    },
    /// There is no snapshot. The guest runs as before.
    NotTaken {
        /// The image that was to be made of it.
        id: String,
        /// Why, outermost first.
        causes: Vec<String>,
    },
    /// The machine could not be built. The last thing said.
    Failed {
        /// What failed.
        message: String,
        /// Why, outermost first.
        causes: Vec<String>,
        /// What the user can do.
        hint: Option<String>,
    },
    /// The machine ended. The last thing said.
    Ended {
        /// How.
        how: How,
        /// The same in words.
        message: String,
        /// The line with which the guest's kernel gave up, if it did.
        panic: Option<String>,
        /// The last lines of its console.
        lines: Vec<String>,
        /// Devices that stood still.
        faults: Vec<DeviceFault>,
        /// What it did.
        #[serde(default)]
        counts: Counts,
    },
}

/// What a machine did in its life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// How often its vCPUs came to the monitor.
    pub exits: u64,
    /// Requests to servers of file systems.
    pub fs_requests: u64,
}

/// How a machine ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// The guest switched itself off.
    PowerOff,
    /// The guest asked for a reset: a new monitor starts it again.
    Reset,
    /// It was stopped.
    Stopped,
    /// The guest is broken.
    GuestFault,
    /// The host or the monitor failed.
    HostFault,
}

impl From<&Exit> for How {
    fn from(exit: &Exit) -> Self {
        match exit {
            Exit::PowerOff => Self::PowerOff,
            Exit::Reset => Self::Reset,
            Exit::Stopped => Self::Stopped,
            Exit::TripleFault { .. } | Exit::CpuFault { .. } => Self::GuestFault,
            Exit::HostError { .. } | Exit::Panicked { .. } => Self::HostFault,
        }
    }
}

/// A virtio device that stands still because of what its driver did.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFault {
    /// Which device.
    pub device: String,
    /// What happened.
    pub fault: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_read_as_documented() {
        let text = |event: &Event| serde_json::to_string(event).unwrap();
        assert_eq!(text(&Event::Running), r#"{"event":"running"}"#);
        let done = Event::Done {
            command: Command::Pause,
        };
        assert_eq!(text(&done), r#"{"event":"done","command":"pause"}"#);
        assert_eq!(serde_json::from_str::<Event>(&text(&done)).unwrap(), done);
        for (command, said) in [(Some(Command::Pause), r#""command":"pause","#), (None, "")] {
            let refused = Event::Refused {
                command,
                message: "no".to_owned(),
            };
            let said = format!(r#"{{"event":"refused",{said}"message":"no"}}"#);
            assert_eq!(text(&refused), said);
            assert_eq!(serde_json::from_str::<Event>(&said).unwrap(), refused);
        }
        assert_eq!(
            serde_json::from_str::<Command>(r#"{"command":"stop"}"#).unwrap(),
            Command::Stop
        );
        assert!(serde_json::from_str::<Command>(r#"{"command":"format"}"#).is_err());
        let snapshot = Command::Snapshot {
            id: "a".to_owned(),
            over: None,
        };
        assert_eq!(
            serde_json::to_string(&snapshot).unwrap(),
            r#"{"command":"snapshot","id":"a"}"#
        );
        let stats = Stats {
            rounds: 2,
            pause: std::time::Duration::from_micros(700),
            ..Stats::default()
        };
        let taken = Event::Taken {
            id: "a".to_owned(),
            stats,
        };
        assert_eq!(
            text(&taken),
            r#"{"event":"taken","id":"a","rounds":2,"precopied":0,"residual":0,"pause_us":700,"hold_us":0,"freeze_us":0,"slowed_us":0,"total_us":0}"#
        );
        assert_eq!(serde_json::from_str::<Event>(&text(&taken)).unwrap(), taken);
    }
}
