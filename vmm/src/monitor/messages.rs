//! What monitor and daemon say on the control socket: one JSON object a line.

use serde::{Deserialize, Serialize};

use crate::machine::gate::Exit;

/// Longest line in bytes, either way.
pub const LINE_MAX: usize = 64 * 1024;

/// From the daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
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
    },
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
    }
}
